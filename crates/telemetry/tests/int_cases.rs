//! Telemetry Reports that are easily misread, beside the captures: `$DTA_CAPTURES/cases/int` (default `../shared/data`). Its
//! `EXPECTED.md` says where each comes from and what is right; without them the tests say so and pass, except in CI.

#[path = "../../../testbed/tests/shared/captures.rs"]
mod beside;

use std::net::IpAddr;

use dta_telemetry::int::{Dialect, IntReport, IntSettings, parse_reports};
use dta_telemetry::reports::{ArrivalTime, PrimitiveBatch, Rules, StoreIds, Telemetry};

use beside::captures;

const STORES: StoreIds =
    StoreIds { paths: Some(1), values: Some(2), events: Some(3), counters: Some(4), postcards: Some(5) };
/// The flow of the cases that are ordinary traffic.
const TLS_FLOW: &str = "192.0.2.10:443->198.51.100.7:50123/tcp";

fn payload(name: &str) -> Option<Vec<u8>> {
    let folder = captures(name, "cases/int")?;
    let text = std::fs::read_to_string(folder.join(format!("{name}.hex"))).unwrap();
    let digits = text.trim().as_bytes().chunks_exact(2);
    Some(digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect())
}

/// Switches of all hops, in the order in which the packet passed them.
fn path(report: &IntReport<'_>) -> Vec<u32> {
    let mut path: Vec<_> = report.hops_with_switches().filter_map(|(switch, _)| switch).collect();
    path.reverse();
    path
}

/// What the datagram counts, by name.
fn counts(payload: &[u8], settings: &IntSettings) -> impl Fn(&str) -> u64 + use<> {
    let mut telemetry = Telemetry::new(Rules::default());
    telemetry.set_stores(STORES);
    let mut made = PrimitiveBatch::default();
    let from = IpAddr::from([127, 0, 0, 1]);
    telemetry.ingest_datagram(ArrivalTime { now: 1, wall: 1 }, from, payload, settings, &mut made);
    assert_eq!(telemetry.int_counters().find_imbalance(), None);
    let named = telemetry.named_counters();
    move |name| named.iter().find(|(of, _)| of == name).map_or(0, |(_, count)| *count)
}

/// The datagram's flow, path and counts; it has one report.
#[track_caller]
fn check(name: &str, dialect: Dialect, flow: &str, wanted: &[u32], counted: &[(&str, u64)]) {
    let Some(payload) = payload(name) else { return };
    let settings = IntSettings { dialect, ..IntSettings::default() };
    let reports: Vec<_> = parse_reports(&payload, &settings).unwrap().map(Result::unwrap).collect();
    let [report] = &reports[..] else { panic!("{} reports", reports.len()) };
    assert_eq!(report.packet.unwrap().flow.to_string(), flow);
    assert_eq!(path(report), wanted);
    let counts = counts(&payload, &settings);
    for (name, count) in [("int.reports", 1), ("int.unread", 0)].iter().chain(counted) {
        assert_eq!(counts(name), *count, "{name}");
    }
}

#[test]
fn encrypted_traffic_is_not_read_as_int() {
    for name in [
        "01-tls-record-over-tcp",
        "02-encrypted-tcp-segment-invents-hops",
        "12-http-segment-taken-for-cut-int-v0.5",
    ] {
        check(name, Dialect::Auto, TLS_FLOW, &[1], &[("int.xd", 1), ("int.changed", 1)]);
    }
}

#[test]
fn the_packet_of_an_untracked_flow_plants_no_path() {
    let name = "04-v1.0-drop-report-f0-payload-like-int";
    check(name, Dialect::Auto, "192.0.2.10:5001->198.51.100.7:5000/udp", &[9], &[("int.changed", 1)]);
}

#[test]
fn a_v20_report_without_a_length_is_read_to_the_end() {
    let name = "06-v2.0-report-length-0-as-laofan13-P4-INT";
    check(name, Dialect::Auto, "192.0.2.10:5001->198.51.100.7:5000/udp", &[1, 2, 3], &[("int.changed", 1)]);
}

#[test]
fn transparent_securitys_words_are_no_switches() {
    let name = "08-transparent-security-source-only";
    check(name, Dialect::Auto, "192.0.2.10:5001->198.51.100.7:5000/udp", &[1, 2, 3], &[]);
}

#[test]
fn geants_program_for_int_v04_is_read() {
    let name = "09-geant-int-v0.4-program";
    check(name, Dialect::Geant, "192.0.2.10:5001->198.51.100.7:5000/udp", &[1, 2], &[("int.changed", 1)]);
}
