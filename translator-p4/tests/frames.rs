//! The software engine in reference mode makes the frames that bmv2 made of the generated reports: they are
//! committed (`frames/bmv2.pcap.gz`, written by the suite's run against bmv2).

use std::path::Path;

use dta_p4_suite::{Outcome, Software, capture, generate, software};

/// Which program made the frames.
const DIGEST: &str = include_str!("../frames/sources.sha256");
const COMPILED: &str = include_str!("../compiled/v1model/sources.sha256");

#[test]
fn the_software_makes_the_frames_that_bmv2_made() {
    assert_eq!(DIGEST, COMPILED, "the frames are of another program: run make test-p4");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("frames/bmv2.pcap.gz");
    let mut of_bmv2 = Outcome::default();
    for frame in capture::read(std::fs::File::open(file).unwrap()).unwrap() {
        let packet = &frame[14..];
        // NACKs go to the ports of reporters, frames to that of RoCEv2.
        match u16::from_be_bytes([packet[22], packet[23]]) {
            4791 => of_bmv2.add_frame(packet).unwrap(),
            _ => of_bmv2.nacks.push(packet.to_vec()),
        }
    }
    let Software { mut made, flushed, .. } = software(&generate::program(), &generate::packets()).unwrap();
    for frame in flushed.frames.values().flatten() {
        made.add_frame(frame).unwrap();
    }
    assert!(made.frame_count() > 15_000, "only {} frames", made.frame_count());
    assert_eq!(made.difference(&of_bmv2, ["software", "bmv2"]), None);
}

/// The generated reports come by every way: each primitive, each reason, NACKs.
#[test]
fn the_reports_reach_everything() {
    let packets = generate::packets();
    assert!(packets.len() >= 10_000);
    assert_eq!(packets, generate::packets(), "the same on every run");
    let Software { made, flushed, counters } = software(&generate::program(), &packets).unwrap();
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
