//! sFlow of real traffic, made by an independent script, is what tshark counts in the capture and reads in the datagrams.

#[path = "../../../testbed/tests/shared/captures.rs"]
mod beside;
#[path = "../../../testbed/tests/shared/sflow.rs"]
mod sflow;
#[path = "../../../testbed/tests/shared/softflowd.rs"]
#[allow(dead_code, reason = "softflowd itself is not used here")]
mod softflowd;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use dta_proto::counter::FlowReason;
use dta_proto::drop_reason::DropReasonTable;
use dta_proto::flow_record::DIRECTION_INGRESS;
use dta_telemetry::exported::Exported;
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::reports::ArrivalTime;
use sflow::{Drops, made, payloads, truth};
use softflowd::{Flows, is_lost, traffic};

/// What datagrams say.
#[derive(Debug, Default, PartialEq)]
struct Decoded {
    flows: Flows,
    others: u64,
    drops: Drops,
    interfaces: u64,
}

fn decode<'a>(decoder: &mut Decoder, datagrams: impl IntoIterator<Item = &'a Vec<u8>>) -> Decoded {
    let mut decoded = Decoded::default();
    for datagram in datagrams {
        decoder.decode_datagram(
            ArrivalTime::default(),
            (Ipv4Addr::LOCALHOST, 6343).into(),
            datagram,
            |one| match one {
                Ok(Exported::Flow(record)) => {
                    let sum = decoded.flows.entry(record.flow_key()).or_default();
                    *sum = (sum.0 + record.total_packets(), sum.1 + record.total_bytes());
                    assert_eq!((record.out_if, record.direction), (3, DIRECTION_INGRESS));
                }
                Ok(Exported::Drop(drop)) => {
                    *decoded.drops.entry((drop.flow, drop.reason)).or_default() += 1;
                    assert_eq!((drop.ingress, drop.egress), (Some(1), Some(3)));
                }
                Ok(Exported::Interface(reading)) => {
                    decoded.interfaces += 1;
                    assert_eq!((reading.interface, reading.speed), (3, Some(1_000_000_000)));
                }
                Err(FlowReason::NoFlow) => decoded.others += 1,
                other => panic!("{other:?}"),
            },
        );
    }
    decoded
}

/// How many samples of each of the formats 1 to 5 tshark's dissector finds, and how many datagrams in which it finds damage.
fn dissected(file: &Path) -> ([u64; 5], usize) {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=a"]);
    tshark.args(["-e", "sflow_245.sampletype", "-e", "_ws.malformed"]);
    let output = tshark.output().expect("tshark starts: scripts/install-deps test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut formats, mut malformed) = ([0; 5], 0);
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (types, damage) = line.split_once('|').unwrap();
        types.split(',').for_each(|format| formats[format.parse::<usize>().unwrap() - 1] += 1);
        malformed += usize::from(!damage.is_empty());
    }
    (formats, malformed)
}

#[test]
#[ignore = "starts tshark (scripts/install-deps test)"]
fn every_sample_and_every_gap_is_what_tshark_counts() {
    let Some(folder) = beside::captures("every_sample_and_every_gap", "") else { return };
    for capture in traffic(&folder) {
        let what = capture.display();
        let into = tempfile::NamedTempFile::new().unwrap();
        let datagrams = made(&capture, into.path());
        let (flows, others, drops) = truth(&capture);
        let mut decoder = Decoder::new(DecoderOptions::default());
        let decoded = decode(&mut decoder, &datagrams);
        let sources: Vec<_> =
            decoder.source_gaps().map(|(source, counted)| (source.to_string(), counted.gaps)).collect();
        assert_eq!(sources, [("10.200.0.1/sflow/5".to_owned(), 0)]);
        let (formats, malformed) = dissected(into.path());
        assert!(formats.iter().all(|count| *count > 3), "{what}: {formats:?}");
        let sampled =
            decoded.flows.values().map(|(packets, _)| packets / u64::from(sflow::RATE)).sum::<u64>();
        assert_eq!(formats[0] + formats[2], sampled + decoded.others, "{what}");
        assert_eq!(formats[1] + formats[3], decoded.interfaces, "{what}");
        assert_eq!(formats[4], decoded.drops.values().sum::<u64>(), "{what}");
        assert_eq!(malformed, 0, "{what}");
        assert_eq!(decoded, Decoded { flows, others, drops, interfaces: decoded.interfaces }, "{what}");
        // A third is lost.
        let mut decoder = Decoder::new(DecoderOptions::default());
        let kept = datagrams.iter().enumerate().filter(|(n, _)| !is_lost(*n, datagrams.len()));
        decode(&mut decoder, kept.map(|(_, datagram)| datagram));
        let lost = (0..datagrams.len()).filter(|n| is_lost(*n, datagrams.len())).count() as u64;
        let counted: Vec<_> = decoder.source_gaps().map(|(_, counted)| counted).collect();
        assert_eq!((counted[0].gaps, counted[0].gaps_filled, counted[0].repeats), (lost, 0, 0), "{what}");
    }
}

/// Of `$DTA_CAPTURES/cases/flows`: each third of the notices has another reason, none of which INT's tables may name.
#[test]
fn reasons_of_drops_have_the_numbers_and_names_of_sflow() {
    let Some(folder) = beside::captures("reasons_of_drops_have", "cases/flows/dev") else { return };
    let datagrams = payloads(&folder.join("16-sflow-drops-266-269-295.pcap"));
    let mut reasons = BTreeMap::new();
    for ((_, reason), count) in decode(&mut Decoder::new(DecoderOptions::default()), &datagrams).drops {
        let name = DropReasonTable::default().reason_name(reason);
        *reasons.entry((reason.to_string(), name)).or_insert(0) += count;
    }
    let wanted = [
        ("sflow 266", "ingress-spanning-tree-filter"),
        ("sflow 269", "blackhole-route"),
        ("sflow 295", "source-ip-class-e"),
    ];
    assert_eq!(reasons, wanted.map(|(reason, name)| ((reason.to_owned(), Some(name)), 13)).into());
}
