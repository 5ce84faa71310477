//! Flows of real traffic, as Debian's softflowd and pmacct export them, are those that tshark counts.

#[path = "../../../testbed/tests/shared/captures.rs"]
mod beside;
#[path = "../../../testbed/tests/shared/softflowd.rs"]
mod softflowd;

use std::net::{IpAddr, Ipv4Addr};

use dta_telemetry::exported::Exported;
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::reports::ArrivalTime;
use softflowd::{Flows, exported, exported_by_pmacct, ip_truth, is_lost, missing, traffic, truth};

/// Sums of the records of an exporter.
fn decode<'a>(
    decoder: &mut Decoder,
    exporter: Ipv4Addr,
    datagrams: impl IntoIterator<Item = &'a Vec<u8>>,
) -> Flows {
    let mut flows = Flows::new();
    for datagram in datagrams {
        decoder.decode_datagram(ArrivalTime::default(), (exporter, 2055).into(), datagram, |record| {
            let Exported::Flow(record) = record.unwrap() else { panic!("{record:?}") };
            let sum = flows.entry(record.flow_key()).or_default();
            *sum = (sum.0 + record.total_packets(), sum.1 + record.total_bytes());
        });
    }
    flows
}

#[test]
#[ignore = "starts Debian's softflowd (scripts/install-deps test)"]
fn every_flow_has_its_packets_and_bytes_and_every_gap_its_length() {
    let Some(folder) = beside::captures("every_flow_has_its_packets_and_bytes", "") else { return };
    let captures = traffic(&folder);
    for (capture, version) in captures.iter().flat_map(|capture| [5, 9, 10].map(|version| (capture, version)))
    {
        let mut flows = truth(capture);
        if version == 5 {
            flows.retain(|flow, _| flow.src.is_ipv4());
        }
        let datagrams = exported(capture, version);
        let mut decoder = Decoder::new(DecoderOptions::default());
        let what = format!("version {version}, {}", capture.display());
        assert_eq!(decode(&mut decoder, Ipv4Addr::new(10, 0, 0, 1), &datagrams), flows, "{what}");
        let kept = datagrams.iter().enumerate().filter(|(n, _)| !is_lost(*n, datagrams.len()));
        decode(&mut decoder, Ipv4Addr::new(10, 0, 0, 2), kept.map(|(_, datagram)| datagram));
        let mut gaps: Vec<_> =
            decoder.source_gaps().map(|(source, counted)| (source.exporter, counted.gaps)).collect();
        gaps.sort();
        let missing = missing(&datagrams, version);
        assert!(missing != 0);
        assert_eq!(gaps, [(IpAddr::from([10, 0, 0, 1]), 0), ([10, 0, 0, 2].into(), missing)], "{what}");
        assert!(
            decoder.named_counters().iter().all(|(name, count)| !name.ends_with("filled") || *count == 0),
            "{what}"
        );
    }
}

#[test]
#[ignore = "starts Debian's pmacct (scripts/install-deps test)"]
fn every_flow_that_pmacct_exports_has_its_packets_and_bytes() {
    let Some(folder) = beside::captures("every_flow_that_pmacct_exports", "") else { return };
    for capture in &traffic(&folder) {
        for version in [5, 9, 10] {
            let mut flows = ip_truth(capture);
            if version == 5 {
                flows.retain(|flow, _| flow.src.is_ipv4());
            }
            let datagrams = exported_by_pmacct(capture, version);
            let mut decoder = Decoder::new(DecoderOptions::default());
            let found = decode(&mut decoder, Ipv4Addr::LOCALHOST, &datagrams);
            assert_eq!(found, flows, "version {version}, {}", capture.display());
            assert_eq!(decoder.source_gaps().map(|(_, gaps)| gaps.gaps).sum::<u64>(), 0, "version {version}");
        }
    }
}
