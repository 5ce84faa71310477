//! The software engine in reference mode makes the frames that bmv2 made of the generated reports: they are
//! committed (`frames/bmv2.pcap.gz`, written by the suite's run against bmv2).

#[path = "shared/p4_suite/mod.rs"]
mod p4_suite;

use std::collections::BTreeMap;
use std::path::Path;

use dta_proto::key::Key;
use dta_proto::layout::hash;
use p4_suite::{DataPlaneOutcome, Software, capture, generate, run_software};

/// Which program made the frames.
const DIGEST: &str = include_str!("../../translator-p4/frames/sources.sha256");
const COMPILED: &str = include_str!("../../translator-p4/compiled/v1model/sources.sha256");

#[test]
fn the_software_makes_the_frames_that_bmv2_made() {
    assert_eq!(DIGEST, COMPILED, "the frames are of another program: run make test-p4");
    let of_bmv2 = of_bmv2();
    let Software { mut made, flushed, .. } =
        run_software(&generate::generate_program(), &generate::generate_packets()).unwrap();
    for frame in flushed.frames.values().flatten() {
        made.add_frame(frame).unwrap();
    }
    assert!(made.frame_count() > 15_000, "only {} frames", made.frame_count());
    assert_eq!(made.difference(&of_bmv2, ["software", "bmv2"]), None);
}

/// What bmv2 made.
fn of_bmv2() -> DataPlaneOutcome {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../translator-p4/frames/bmv2.pcap.gz");
    let mut of_bmv2 = DataPlaneOutcome::default();
    for frame in capture::read(std::fs::File::open(file).unwrap()).unwrap() {
        let packet = &frame[14..];
        // NACKs go to the ports of reporters, frames to that of RoCEv2.
        match u16::from_be_bytes([packet[22], packet[23]]) {
            4791 => of_bmv2.add_frame(packet).unwrap(),
            _ => of_bmv2.nacks.push(packet.to_vec()),
        }
    }
    of_bmv2
}

/// The generated reports come by every way: each primitive, each reason, NACKs.
#[test]
fn the_reports_reach_everything() {
    let packets = generate::generate_packets();
    assert!(packets.len() >= 10_000);
    assert_eq!(packets, generate::generate_packets(), "the same on every run");
    let Software { made, flushed, counters } = run_software(&generate::generate_program(), &packets).unwrap();
    let count = |name: &str| counters.iter().find(|(n, _)| n == name).map_or(0, |(_, value)| *value);
    for reason in [
        "header",
        "checksum",
        "version",
        "opcode",
        "length",
        "field",
        "unknown_store",
        "wrong_primitive",
        "list_range",
        "list_not_owned",
        "redundancy",
        "value_length",
        "hop",
        "path_length",
        "column",
        "epoch_old",
        "duplicate_column",
        "sketch_reporters",
    ] {
        assert!(count(&format!("dropped.{reason}")) > 0, "no report is dropped for {reason}: {counters:?}");
    }
    for primitive in ["key-write", "append", "key-increment", "postcarding", "sketch-merge"] {
        assert!(count(&format!("{primitive}.emitted")) > 200, "{primitive}: {counters:?}");
    }
    for name in ["superseded", "partial_rows", "immediate_ignored", "nacks"] {
        assert!(count(name) > 10, "{name}: {counters:?}");
    }
    assert!(made.nacks.len() > 20 && made.frames.len() == 4 && flushed.frame_count() > 50);
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Faults that earlier DTA pipelines had, looked for in what bmv2 made.
#[test]
fn bmv2_has_none_of_the_known_faults() {
    let frames = of_bmv2().frames;
    let (keys, mut zero_keys, mut turns, mut rows) = (generate::report_keys(), 0, 0, 0);
    let mut others = 0;
    let mut batches: BTreeMap<(u64, u64), u32> = BTreeMap::new();
    for frames in frames.values() {
        for (n, frame) in frames.iter().enumerate() {
            // One counter for all copies and queue pairs.
            assert_eq!(number(&frame[37..40]), (0xff_fff0 + n as u64) & 0xff_ffff);
            if frame[28] == 0x14 {
                // Lengths of FETCH_ADD: 20 + 8 + 12 + 28 + 4.
                assert_eq!((frame.len(), number(&frame[2..4]), number(&frame[24..26])), (72, 72, 52));
                continue;
            }
            let immediate = if matches!(frame[28], 0x0b | 0x2b) { 4 } else { 0 };
            let (address, payload) = (number(&frame[40..48]), &frame[56 + immediate..frame.len() - 4]);
            let (store, offset, len) = (address >> 40, address & 0xff_ffff_ffff, payload.len() as u64);
            assert_eq!((number(&frame[52..56]), offset % len), (len, 0));
            let at = offset / len;
            match store {
                // One batch lost with each turn of the ring: here they follow one another, each at its place.
                40..=59 => {
                    let sequence = number(&payload[payload.len() - 8..][..4]) as u32;
                    assert_eq!(u64::from(sequence.wrapping_sub(1) & 3), at & 3);
                    if let Some(before) = batches.insert((store, at >> 2), sequence) {
                        assert_eq!(
                            sequence,
                            before.wrapping_add(1).max(1),
                            "store {store}, list {}",
                            at >> 2
                        );
                        turns += u32::from(at & 3 == 0);
                    }
                }
                // A row that was evicted, written to the slot of another key; a key of zeros taken for none.
                1..=28 => {
                    let of =
                        |key: &&Key| hash::value_checksum(key, &payload[4..]) == number(&payload[..4]) as u32;
                    // Some reports were damaged into ones of other keys.
                    let Some(key) = keys.iter().find(of) else {
                        others += 1;
                        continue;
                    };
                    let slots: u64 = if store >= 21 {
                        256
                    } else {
                        1 << (6 + 3 * ((store - 1) / 4) + (store - 1) % 4 + 1)
                    };
                    assert!(
                        hash::key_slots(key, 4, slots).contains(&at),
                        "store {store}: a slot of another key"
                    );
                    zero_keys += u32::from(key.0 == [0; 16]);
                    rows += u32::from(store >= 21);
                }
                _ => {}
            }
        }
    }
    assert!(
        zero_keys > 100 && turns > 50 && rows > 3_000 && others < 100,
        "{zero_keys} {turns} {rows} {others}"
    );
}
