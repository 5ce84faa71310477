//! Keys, values and entries of traces: as another implementation makes them (`vectors/telemetry.py`), and by writing and
//! reading.

use dta_proto::key::{Flow, Key};
use dta_proto::trace::{
    self, Books, ENTRY_LEN, Latency, NAME_LEN, Named, PacketSighting, TraceEntry, TraceName,
};
use proptest::prelude::*;
use serde_json::Value as Json;

fn vectors() -> Json {
    serde_json::from_str(include_str!("../vectors/telemetry.json")).unwrap()
}

#[test]
fn keys_are_those_of_the_vectors() {
    let vectors = vectors();
    let cases = vectors["trace"].as_array().unwrap();
    assert_eq!(cases.len(), 11);
    for case in cases {
        let number = |n: usize| case["numbers"][n].as_u64().unwrap();
        let flow = || case["flow"].as_str().unwrap().parse::<Flow>().unwrap();
        let (host, hop) = (|| number(0) as u16, |n| number(n) as u8);
        let key = match case["kind"].as_str().unwrap() {
            "tpkt" => {
                let digest = u64::from_str_radix(case["digest"].as_str().unwrap(), 16).unwrap();
                trace::path_key(digest, host())
            }
            "tlat" => trace::latency_key(&flow(), host(), hop(1), hop(2)),
            "tpks" => trace::packets_key(&flow(), host(), hop(1)),
            "tbts" => trace::bytes_key(&flow(), host(), hop(1)),
            "tdrp" => trace::drops_key(&flow(), host(), number(1) as u32),
            "tsiz" => trace::flow_size_key(&flow()),
            other => panic!("{other}"),
        };
        assert_eq!(key, case["key"].as_str().unwrap().parse::<Key>().unwrap(), "{case}");
        assert_eq!(key.to_ipv4_flow(), None, "no key of a trace is taken for a flow's: {case}");
    }
}

#[test]
fn entries_and_values_are_those_of_the_vectors() {
    let vectors = vectors();
    let bytes = |name: &str| -> Vec<u8> {
        let hex = vectors["entries"][name].as_str().unwrap();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let time = 0x18ea_6b6c_f9f8_3a15;
    let flow: Flow = "10.0.0.1:5000->10.0.0.2:80/tcp".parse().unwrap();
    let digest = 0x0123_4567_89ab_cdef;
    let seen = PacketSighting {
        time,
        flow: flow.to_key(),
        digest,
        host: 0x0102,
        hop: 3,
        synced: true,
        length: 1514,
    };
    let name = TraceName::new("iface:eth0");
    let books = Books { seen: 15, reported: 5, left_out: 4, ring_full: 3, refused: 3 };
    for (of, entry) in [
        ("packet", TraceEntry::Packet { seen, points: 6, left: 0xfedc_ba98_7654_3210 }),
        ("drop", TraceEntry::Drop { seen, reason: 64, interface: 9 }),
        ("slow", TraceEntry::Slow { seen, from: 1, latency: 5_000_000_000 }),
        ("name", TraceEntry::Name { time, host: 0x0102, of: Named::Point, number: 3, name }),
        ("books", TraceEntry::Books { time, host: 0x0102, books }),
    ] {
        assert_eq!(entry.to_bytes()[..], bytes(of), "{of}");
        assert_eq!(TraceEntry::parse_bytes(&bytes(of)), Some(entry), "{of}");
    }
    let latency = Latency { last: 5, least: 3, most: 9, mean: 6, packets: 4, time };
    assert_eq!(latency.to_bytes()[..], bytes("latency"));
    assert_eq!(Latency::parse_bytes(&bytes("latency")), Some(latency));
}

#[test]
fn the_stores_are_sound_and_are_not_taken_where_none_is_named() {
    let stores = trace::default_trace_stores();
    for store in &stores {
        store.validate().unwrap();
        assert!(dta_proto::telemetry::is_telemetry_store(&store.name), "{}", store.name);
    }
    let bytes: u64 = stores.iter().map(dta_proto::store::StoreSpec::region_len).sum();
    assert!(bytes < 20 << 20, "{bytes}");
}

#[test]
fn a_long_name_is_cut_at_a_character() {
    let name = TraceName::new(&"é".repeat(30));
    assert_eq!(name.to_lossy_string(), "é".repeat(NAME_LEN / 2));
    assert_eq!(TraceName::new(&format!("x{}", "é".repeat(30))).to_lossy_string().len(), NAME_LEN - 1);
}

fn seen() -> impl Strategy<Value = PacketSighting> {
    (any::<(u64, [u8; 16], u64)>(), any::<(u16, u8, bool, u32)>()).prop_map(
        |((time, flow, digest), (host, hop, synced, length))| {
            let flow = Key(flow);
            PacketSighting { time, flow, digest, host, hop, synced, length }
        },
    )
}

fn entry() -> impl Strategy<Value = TraceEntry> {
    let of = prop::sample::select(vec![Named::Host, Named::Point, Named::Reason]);
    prop_oneof![
        (seen(), any::<(u8, u64)>()).prop_map(|(seen, (points, left))| TraceEntry::Packet {
            seen,
            points,
            left
        }),
        (seen(), any::<(u32, u32)>()).prop_map(|(seen, (reason, interface))| TraceEntry::Drop {
            seen,
            reason,
            interface
        }),
        (seen(), any::<(u8, u64)>()).prop_map(|(seen, (from, latency))| TraceEntry::Slow {
            seen,
            from,
            latency
        }),
        (any::<(u64, u16)>(), any::<[u64; 5]>()).prop_map(|((time, host), all)| {
            let [seen, reported, left_out, ring_full, refused] = all;
            TraceEntry::Books { time, host, books: Books { seen, reported, left_out, ring_full, refused } }
        }),
        (any::<(u64, u16, u32)>(), of, ".{0,50}").prop_map(|((time, host, number), of, name)| {
            TraceEntry::Name { time, host, of, number, name: TraceName::new(&name) }
        }),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(entry in entry()) {
        let bytes = entry.to_bytes();
        prop_assert_eq!(TraceEntry::parse_bytes(&bytes), Some(entry));
        prop_assert_eq!(TraceEntry::parse_bytes(&bytes[..ENTRY_LEN - 1]), None);
    }

    #[test]
    fn any_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..70), kind in 0usize..6) {
        let mut bytes = bytes;
        if let (Some(place), Some(kind)) = (bytes.get_mut(..4), [b"pckt", b"drop", b"slow", b"name", b"book"].get(kind)) {
            place.copy_from_slice(*kind);
        }
        if let Some(TraceEntry::Name { name, .. }) = TraceEntry::parse_bytes(&bytes) {
            let _ = name.to_lossy_string();
        }
        let _ = Latency::parse_bytes(&bytes);
    }
}
