//! Store descriptions: what is accepted, what is refused and with which message, and that no
//! representation loses anything.

use dta_proto::control;
use dta_proto::layout::{append, key_write, postcarding, sketch_merge};
use dta_proto::store::{Merge, SlotKeys, StoreKind, StoreSpec};
use proptest::prelude::*;

fn spec(kind: StoreKind) -> StoreSpec {
    StoreSpec { id: 7, name: "flows".into(), kind }
}

fn any_merge() -> impl Strategy<Value = Merge> {
    prop_oneof![Just(Merge::Sum), Just(Merge::Max), Just(Merge::Or)]
}

/// Lengths of values, and whether their keys stand beside them.
fn any_values() -> impl Strategy<Value = (u8, SlotKeys)> {
    let hashed = [4, 12, 28, 60].map(|value_len| (value_len, SlotKeys::Hashed));
    prop::sample::select(hashed.into_iter().chain([(12, SlotKeys::Inline)]).collect::<Vec<_>>())
}

/// Descriptions that are usable.
fn any_kind() -> impl Strategy<Value = StoreKind> {
    let pow2 = |most: u32| (0..=most).prop_map(|bits| 1u64 << bits);
    prop_oneof![
        (pow2(32), any_values(), 1u8..=4).prop_map(|(slots, (value_len, keys), redundancy)| {
            StoreKind::KeyWrite { slots, value_len, redundancy, keys }
        }),
        (pow2(32), prop_oneof![Just(6u8), Just(14)], 1u8..=4)
            .prop_map(|(slots, hops, redundancy)| StoreKind::Postcarding { slots, hops, redundancy }),
        (pow2(16), pow2(30), 0u32..=8, 1u16..=63, any::<bool>()).prop_map(
            |(lists, ring, shape, words, notify)| {
                let batch_len = 16u16 << shape;
                StoreKind::Append {
                    lists: lists as u32,
                    ring,
                    batch_len,
                    entry_len: (4 * words).min(batch_len - 8) as u8,
                    notify,
                }
            }
        ),
        (pow2(32), 1u8..=4, 1u8..=2).prop_map(|(slots, redundancy, replicas)| StoreKind::KeyIncrement {
            slots,
            redundancy,
            replicas: replicas.min(4 / redundancy),
        }),
        (pow2(31), 1u8..=4, 1u32..=16, any_merge(), 1u8..=32).prop_map(
            |(columns, rows, bits, merge, expected)| {
                StoreKind::SketchMerge { columns: columns as u32, rows, epochs: 1 << bits, merge, expected }
            }
        ),
    ]
}

proptest! {
    #[test]
    fn a_usable_description_survives_every_representation(kind in any_kind(), id: u16) {
        let spec = StoreSpec { id, name: "a-Store_9".into(), kind };
        prop_assert_eq!(spec.validate(), Ok(()));
        prop_assert_eq!(StoreSpec::try_from(&control::Store::from(&spec)), Ok(spec.clone()));
        let json = serde_json::to_string(&spec).unwrap();
        prop_assert_eq!(serde_json::from_str::<StoreSpec>(&json).unwrap(), spec.clone());
        prop_assert!(spec.region_len().is_power_of_two());
        prop_assert_eq!(spec.region_len() / spec.element_len(), spec.element_count());
    }

    /// The last element of each layout ends where the region does.
    #[test]
    fn offsets_fill_the_region(kind in any_kind()) {
        let spec = spec(kind);
        let last = match spec.kind {
            StoreKind::KeyWrite { slots, value_len, keys, .. } => {
                key_write::slot_offset(slots - 1, keys.inline_key_len() + value_len)
            }
            StoreKind::Postcarding { slots, hops, .. } => postcarding::row_offset(slots - 1, hops),
            StoreKind::Append { lists, ring, batch_len, .. } => append::batch_offset(lists - 1, ring as u32, ring, batch_len),
            StoreKind::KeyIncrement { slots, .. } => dta_proto::layout::key_increment::counter_offset(slots - 1),
            StoreKind::SketchMerge { columns, rows, epochs, .. } => {
                sketch_merge::column_offset(epochs - 1, columns - 1, epochs, columns, rows)
            }
        };
        prop_assert_eq!(last + spec.element_len(), spec.region_len());
    }

    /// Whatever a peer sends is checked, and nothing panics.
    #[test]
    fn a_peer_cannot_send_an_unusable_store(id: u32, a: u64, b: u32, c: u32, d: u32, e: i32, which in 0u8..6) {
        use control::store::Kind;
        let kind = match which {
            0 => Some(Kind::KeyWrite(control::KeyWriteStore { slots: a, value_len: b, redundancy: c, keys: e })),
            1 => Some(Kind::Postcarding(control::PostcardingStore { slots: a, hops: b, redundancy: c })),
            2 => Some(Kind::Append(control::AppendStore { lists: b, ring: a, batch_len: c, entry_len: d, notify: true })),
            3 => Some(Kind::KeyIncrement(control::KeyIncrementStore { slots: a, redundancy: b, replicas: c })),
            4 => Some(Kind::SketchMerge(control::SketchMergeStore {
                columns: b, rows: c, epochs: d, merge: e, expected: id,
            })),
            _ => None,
        };
        if let Ok(spec) = StoreSpec::try_from(&control::Store { id, name: "flows".into(), kind }) {
            prop_assert_eq!(spec.validate(), Ok(()));
        }
    }
}

#[test]
fn counters_of_which_a_message_gives_no_replicas_have_one() {
    let counters = |replicas| control::KeyIncrementStore { slots: 8, redundancy: 2, replicas };
    let of = |replicas| {
        let kind = Some(control::store::Kind::KeyIncrement(counters(replicas)));
        StoreSpec::try_from(&control::Store { id: 1, name: "bytes".into(), kind }).unwrap().kind
    };
    assert_eq!(of(0), StoreKind::KeyIncrement { slots: 8, redundancy: 2, replicas: 1 });
    assert_eq!((of(1), of(2)), (of(0), StoreKind::KeyIncrement { slots: 8, redundancy: 2, replicas: 2 }));
}

#[test]
fn each_field_is_refused_by_its_name() {
    let key_write = |slots, value_len, redundancy| StoreKind::KeyWrite {
        slots,
        value_len,
        redundancy,
        keys: Default::default(),
    };
    let append = |lists, ring, batch_len, entry_len| StoreKind::Append {
        lists,
        ring,
        batch_len,
        entry_len,
        notify: false,
    };
    let sketch = |columns, rows, epochs, expected| StoreKind::SketchMerge {
        columns,
        rows,
        epochs,
        merge: Merge::Sum,
        expected,
    };
    for (kind, field) in [
        (key_write(0, 4, 1), "slots"),
        (key_write(1000, 4, 1), "slots"),
        (key_write(1 << 33, 4, 1), "slots"),
        (key_write(1 << 10, 5, 1), "value_len"),
        (StoreKind::KeyWrite { slots: 8, value_len: 28, redundancy: 1, keys: SlotKeys::Inline }, "value_len"),
        (key_write(1 << 10, 4, 0), "redundancy"),
        (key_write(1 << 10, 4, 5), "redundancy"),
        (StoreKind::Postcarding { slots: 8, hops: 5, redundancy: 1 }, "hops"),
        (StoreKind::KeyIncrement { slots: 8, redundancy: 9, replicas: 1 }, "redundancy"),
        (StoreKind::KeyIncrement { slots: 8, redundancy: 1, replicas: 0 }, "replicas"),
        (StoreKind::KeyIncrement { slots: 8, redundancy: 1, replicas: 3 }, "replicas"),
        (StoreKind::KeyIncrement { slots: 8, redundancy: 3, replicas: 2 }, "replicas"),
        (append(3, 8, 64, 4), "lists"),
        (append(4, 1 << 31, 64, 4), "ring"),
        (append(4, 8, 8, 4), "batch_len"),
        (append(4, 8, 96, 4), "batch_len"),
        (append(4, 8, 8192, 4), "batch_len"),
        (append(4, 8, 1024, 254), "entry_len"),
        (append(4, 8, 128, 192), "entry_len"),
        (append(4, 8, 64, 0), "entry_len"),
        (append(4, 8, 64, 6), "entry_len"),
        (append(4, 8, 64, 60), "entry_len"),
        (sketch(3, 1, 2, 1), "columns"),
        (sketch(4, 0, 2, 1), "rows"),
        (sketch(4, 5, 2, 1), "rows"),
        (sketch(4, 1, 1, 1), "epochs"),
        (sketch(4, 1, 2, 0), "expected"),
        (sketch(4, 1, 2, 33), "expected"),
    ] {
        let error = spec(kind.clone()).validate().expect_err(&format!("{kind:?}"));
        assert_eq!(error.field, field, "{error}");
        assert!(error.to_string().contains("`flows`"), "{error}");
    }
    for name in ["", "a b", "ü", &"x".repeat(64)] {
        let error = StoreSpec { id: 0, name: name.into(), kind: key_write(8, 4, 1) }.validate().unwrap_err();
        assert_eq!(error.field, "name");
    }
}

#[test]
fn an_unknown_or_missing_field_is_named() {
    let good = r#"{"id":1,"name":"kw","kind":"key-write","slots":1024,"value_len":4,"redundancy":2}"#;
    serde_json::from_str::<StoreSpec>(good).unwrap();
    let inline = good.replace("\"value_len\":4", "\"value_len\":12,\"keys\":\"inline\"");
    let StoreKind::KeyWrite { keys, .. } = serde_json::from_str::<StoreSpec>(&inline).unwrap().kind else {
        panic!()
    };
    assert_eq!(keys, SlotKeys::Inline);
    let error = |text: &str| serde_json::from_str::<StoreSpec>(text).unwrap_err().to_string();
    assert!(error(&good.replace("slots", "slotz")).contains("slotz"));
    assert!(error(&good.replace(r#""slots":1024,"#, "")).contains("slots"));
    assert!(error(&inline.replace("inline", "outline")).contains("outline"));
    assert!(error(&good.replace("key-write", "key-wrote")).contains("key-wrote"));
}
