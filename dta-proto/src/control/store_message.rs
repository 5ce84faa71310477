//! Stores as messages.

use crate::control;
use crate::store::{Merge, SpecError, StoreKind, StoreSpec};

impl From<&StoreSpec> for control::Store {
    fn from(spec: &StoreSpec) -> Self {
        use control::store::Kind;
        let kind = match spec.kind {
            StoreKind::KeyWrite { slots, value_len, redundancy } => Kind::KeyWrite(control::KeyWriteStore {
                slots,
                value_len: value_len.into(),
                redundancy: redundancy.into(),
            }),
            StoreKind::Postcarding { slots, hops, redundancy } => {
                Kind::Postcarding(control::PostcardingStore {
                    slots,
                    hops: hops.into(),
                    redundancy: redundancy.into(),
                })
            }
            StoreKind::Append { lists, ring, batch_len, entry_len, notify } => {
                Kind::Append(control::AppendStore {
                    lists,
                    ring,
                    batch_len: batch_len.into(),
                    entry_len: entry_len.into(),
                    notify,
                })
            }
            StoreKind::KeyIncrement { slots, redundancy } => {
                Kind::KeyIncrement(control::KeyIncrementStore { slots, redundancy: redundancy.into() })
            }
            StoreKind::SketchMerge { columns, rows, epochs, merge, expected } => {
                Kind::SketchMerge(control::SketchMergeStore {
                    columns,
                    rows: rows.into(),
                    epochs,
                    merge: match merge {
                        Merge::Sum => control::Merge::Sum,
                        Merge::Max => control::Merge::Max,
                        Merge::Or => control::Merge::Or,
                    }
                    .into(),
                    expected: expected.into(),
                })
            }
        };
        control::Store { id: spec.id.into(), name: spec.name.clone(), kind: Some(kind) }
    }
}

impl TryFrom<&control::Store> for StoreSpec {
    type Error = SpecError;

    /// Checks as [`StoreSpec::validate`] does.
    fn try_from(store: &control::Store) -> Result<Self, SpecError> {
        use control::store::Kind;
        let fail = |field, value: String, must| SpecError { store: store.name.clone(), field, value, must };
        let byte =
            |field, n: u32| u8::try_from(n).map_err(|_| fail(field, n.to_string(), "a number below 256"));
        let kind = match store
            .kind
            .as_ref()
            .ok_or_else(|| fail("kind", "missing".into(), "one of the five kinds"))?
        {
            Kind::KeyWrite(s) => StoreKind::KeyWrite {
                slots: s.slots,
                value_len: byte("value_len", s.value_len)?,
                redundancy: byte("redundancy", s.redundancy)?,
            },
            Kind::Postcarding(s) => StoreKind::Postcarding {
                slots: s.slots,
                hops: byte("hops", s.hops)?,
                redundancy: byte("redundancy", s.redundancy)?,
            },
            Kind::Append(s) => StoreKind::Append {
                lists: s.lists,
                ring: s.ring,
                batch_len: byte("batch_len", s.batch_len)?,
                entry_len: byte("entry_len", s.entry_len)?,
                notify: s.notify,
            },
            Kind::KeyIncrement(s) => {
                StoreKind::KeyIncrement { slots: s.slots, redundancy: byte("redundancy", s.redundancy)? }
            }
            Kind::SketchMerge(s) => StoreKind::SketchMerge {
                columns: s.columns,
                rows: byte("rows", s.rows)?,
                epochs: s.epochs,
                merge: match control::Merge::try_from(s.merge) {
                    Ok(control::Merge::Sum) => Merge::Sum,
                    Ok(control::Merge::Max) => Merge::Max,
                    Ok(control::Merge::Or) => Merge::Or,
                    Err(_) => return Err(fail("merge", s.merge.to_string(), "sum, max or or")),
                },
                expected: byte("expected", s.expected)?,
            },
        };
        let id =
            u16::try_from(store.id).map_err(|_| fail("id", store.id.to_string(), "a number below 65536"))?;
        let spec = StoreSpec { id, name: store.name.clone(), kind };
        spec.validate()?;
        Ok(spec)
    }
}
