//! Holds the Wireshark dissector (`docs/wireshark/dta.lua`) against this crate's own decoding: the vectors, and
//! generated reports and NACKs of every kind, good ones and bad ones.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::Command;

use dta_proto::key::Key;
use dta_proto::random::SplitMix64;
use dta_proto::to_hex_digits;
use dta_proto::wire::dta::{DtaBody, DtaReport, NACK_PORT_V0, Nack, PORT, Version};
use dta_proto::wire::{Error, datagram};
use serde_json::Value;

/// What tshark prints for each packet, in this order. The first is the error.
const FIELDS: [&str; 24] = [
    "_ws.expert.message",
    "dta.message",
    "dta.opcode",
    "dta.flags.immediate",
    "dta.flags.retransmittable",
    "dta.flags.restarted",
    "dta.flags.nack",
    "dta.version",
    "dta.store",
    "dta.reporter",
    "dta.sequence",
    "dta.redundancy",
    "dta.key",
    "dta.key.text",
    "dta.value",
    "dta.list",
    "dta.delta",
    "dta.hop",
    "dta.path_length",
    "dta.epoch",
    "dta.column",
    "dta.cell",
    "dta.nack.first",
    "dta.nack.count",
];

/// What the dissector should print: the name of each field with its value.
type Said = Vec<(&'static str, String)>;

fn bytes(hex: &Value) -> Vec<u8> {
    let text = hex.as_str().unwrap();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// Errors are compared by their start: the field and the offset.
fn of_error(error: Error) -> Said {
    vec![("_ws.expert.message", format!("{} at byte {}: ", error.field, error.offset))]
}

fn of_report(bytes: &[u8]) -> Said {
    let report = match DtaReport::parse_payload(bytes) {
        Ok(report) => report,
        Err(error) => return of_error(error),
    };
    let is_v0 = report.version == Version::V0;
    let mut said: Said = Vec::new();
    let mut say = |name, value: &dyn Display| said.push((name, value.to_string()));
    say("dta.message", &"Report");
    say("dta.opcode", &report.body.primitive().opcode());
    say("dta.flags.immediate", &u8::from(report.immediate));
    say("dta.flags.retransmittable", &u8::from(report.retransmittable));
    say("dta.flags.restarted", &u8::from(report.restarted));
    say("dta.version", &u8::from(!is_v0));
    say("dta.sequence", &report.sequence);
    if !is_v0 {
        say("dta.store", &report.store);
        say("dta.reporter", &report.reporter);
    }
    let mut key = |key: &Key| {
        said.push(("dta.key", to_hex_digits(if is_v0 { &key.0[..4] } else { &key.0 })));
        said.push(("dta.key.text", key.to_string()));
    };
    match &report.body {
        DtaBody::KeyWrite { key: k, .. }
        | DtaBody::KeyIncrement { key: k, .. }
        | DtaBody::Postcard { key: k, .. } => key(k),
        DtaBody::Append { .. } | DtaBody::SketchMerge { .. } => {}
    }
    let mut say = |name, value: &dyn Display| said.push((name, value.to_string()));
    match report.body {
        DtaBody::KeyWrite { redundancy, value, .. } => {
            say("dta.redundancy", &redundancy);
            say("dta.value", &to_hex_digits(value));
        }
        DtaBody::Append { list, value } => {
            say("dta.list", &list);
            say("dta.value", &to_hex_digits(value));
        }
        DtaBody::KeyIncrement { redundancy, delta, .. } => {
            say("dta.redundancy", &redundancy);
            say("dta.delta", &delta);
        }
        DtaBody::Postcard { hop, path_length, value, .. } => {
            say("dta.hop", &hop);
            say("dta.path_length", &path_length);
            say("dta.value", &to_hex_digits(&value.to_be_bytes()));
        }
        DtaBody::SketchMerge { epoch, column, cells } => {
            say("dta.epoch", &epoch);
            say("dta.column", &column);
            let cells: Vec<String> = (cells.chunks(4))
                .map(|cell| u32::from_be_bytes(cell.try_into().unwrap()).to_string())
                .collect();
            say("dta.cell", &cells.join(","));
        }
    }
    said
}

fn of_nack(bytes: &[u8]) -> Said {
    let (version, reporter, first, count) = match Nack::parse_payload(bytes) {
        Ok(Nack::V0 { sequence }) => (0, None, sequence.into(), 1),
        Ok(Nack::V1 { reporter, first, count }) => (1, Some(reporter), first, count),
        Err(error) => return of_error(error),
    };
    let reporter = reporter.map(|reporter| ("dta.reporter", reporter.to_string()));
    let mut said = vec![
        ("dta.message", "NACK".to_owned()),
        ("dta.flags.nack", "1".to_owned()),
        ("dta.version", version.to_string()),
        ("dta.nack.first", first.to_string()),
        ("dta.nack.count", count.to_string()),
    ];
    said.extend(reporter);
    said
}

/// One packet: a UDP payload with its ports, and the expected output.
struct Packet {
    payload: Vec<u8>,
    ports: [u16; 2],
    said: Said,
}

impl Packet {
    fn report(payload: Vec<u8>) -> Packet {
        Packet { said: of_report(&payload), payload, ports: [50_000, PORT] }
    }

    /// A NACK to a reporter of version 1, or to the port of version 0.
    fn nack(payload: Vec<u8>, to: u16) -> Packet {
        Packet { said: of_nack(&payload), payload, ports: [PORT, to] }
    }

    fn frame(&self) -> Vec<u8> {
        let [source, destination] = self.ports;
        let source = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), source);
        let destination = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), destination);
        let header = datagram::encode_header(source, destination, self.payload.len());
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0], &header[..], &self.payload].concat()
    }
}

/// Numbers that look random and are the same on every run.
struct Numbers(SplitMix64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    /// A flow, or any bytes; of version 0, four and zeros.
    fn key(&mut self, version: Version) -> Key {
        match (version, self.flag()) {
            (Version::V0, _) => Key::from_version_0(self.bytes()),
            (Version::V1, true) => Key(self.bytes()),
            (Version::V1, false) => {
                let mut key = Key(self.bytes());
                key.0[12..].copy_from_slice(&[
                    [1, 2, 6, 17, 47, 58, 132, 253][self.below(8) as usize],
                    0,
                    0,
                    0,
                ]);
                key
            }
        }
    }

    fn report(&mut self) -> Vec<u8> {
        let version = if self.flag() { Version::V1 } else { Version::V0 };
        let is_v0 = version == Version::V0;
        let value: [u8; 60] = self.bytes();
        let len = if is_v0 { 4 } else { 4 * (1 + self.below(15) as usize) };
        let value = &value[..len];
        let key = self.key(version);
        let redundancy = self.below(5) as u8;
        let body = match self.below(if is_v0 { 4 } else { 5 }) {
            0 => DtaBody::KeyWrite { redundancy, key, value },
            1 => DtaBody::Append { list: self.next() as u32, value },
            2 => DtaBody::KeyIncrement { redundancy, key, delta: self.next() },
            3 => {
                let hop = self.below(14) as u8;
                let path_length =
                    if is_v0 || self.flag() { 0 } else { hop + 1 + self.below(14 - u64::from(hop)) as u8 };
                DtaBody::Postcard { key, hop, path_length, value: self.next() as u32 }
            }
            _ => {
                let cells = &value[..len.min(16)];
                DtaBody::SketchMerge { epoch: self.next() as u32, column: self.next() as u32, cells }
            }
        };
        let report = DtaReport {
            version,
            immediate: self.flag(),
            retransmittable: self.flag(),
            restarted: self.flag(),
            sequence: if is_v0 { self.below(256) as u32 } else { self.next() as u32 },
            reporter: if is_v0 { 0 } else { self.next() as u16 },
            store: if is_v0 { 0 } else { self.next() as u16 },
            body,
        };
        let mut buffer = [0; 128];
        let len = report.encode_into(&mut buffer).unwrap();
        buffer[..len].to_vec()
    }

    fn nack(&mut self) -> Vec<u8> {
        let nack = match self.flag() {
            true => Nack::V0 { sequence: self.next() as u8 },
            false => Nack::V1 {
                reporter: self.next() as u16,
                first: self.next() as u32,
                count: 1 + self.below(u64::from(u16::MAX)) as u16,
            },
        };
        let mut buffer = [0; 16];
        let len = nack.encode_into(&mut buffer).unwrap();
        buffer[..len].to_vec()
    }

    /// The same with another byte, fewer bytes or more; never empty, because tshark passes no empty payload
    /// to a dissector.
    fn spoiled(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        let at = self.below(bytes.len() as u64) as usize;
        match self.below(4) {
            0 | 1 => bytes[at] ^= 1 << self.below(8),
            2 => bytes.truncate(at.max(1)),
            _ => bytes.extend(&self.bytes::<8>()[..1 + at % 8]),
        }
        bytes
    }
}

fn packets() -> Vec<Packet> {
    let all: Value = serde_json::from_str(include_str!("../vectors/wire.json")).unwrap();
    let vectors = |name: &str| -> Vec<Vec<u8>> {
        let cases = all[name].as_array().unwrap();
        cases.iter().map(|case| bytes(&case["hex"])).filter(|bytes| !bytes.is_empty()).collect()
    };
    let mut packets = Vec::new();
    for name in ["reports", "reports_reserved", "report_errors"] {
        packets.extend(vectors(name).into_iter().map(Packet::report));
    }
    for name in ["nacks", "nack_errors"] {
        packets.extend(vectors(name).into_iter().map(|nack| Packet::nack(nack, 50_001)));
    }
    let mut numbers = Numbers(SplitMix64(7));
    for _ in 0..1000 {
        let report = numbers.report();
        packets.push(Packet::report(report.clone()));
        packets.push(Packet::report(numbers.spoiled(report)));
    }
    for _ in 0..200 {
        let nack = numbers.nack();
        let to = if nack.len() == 2 { NACK_PORT_V0 } else { 50_002 };
        packets.push(Packet::nack(nack.clone(), to));
        packets.push(Packet::nack(numbers.spoiled(nack), to));
    }
    packets
}

/// Fields of each packet as tshark prints them with the dissector.
fn dissect(frames: &[Vec<u8>], captured: usize, options: &[&str]) -> Vec<Vec<String>> {
    let mut pcap = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1].map(u32::to_le_bytes).concat();
    for frame in frames {
        let kept = &frame[..frame.len().min(captured)];
        pcap.extend([0, 0, kept.len() as u32, frame.len() as u32].map(u32::to_le_bytes).concat());
        pcap.extend(kept);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reports.pcap");
    std::fs::write(&file, pcap).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/wireshark/dta.lua");
    let mut tshark = Command::new("tshark");
    // The settings of the user running this must not affect the test.
    tshark.env("HOME", folder.path()).env_remove("XDG_CONFIG_HOME");
    tshark.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(&file).args(options);
    tshark.args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=a", "-E", "aggregator=,"]);
    tshark.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = tshark.output().expect("tshark starts: apt-get install tshark");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<String>> =
        output.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect();
    assert!(lines.len() == frames.len() && lines.iter().all(|line| line.len() == FIELDS.len()), "{output}");
    lines
}

/// Later versions of tshark print flags as words.
fn plain(text: &str) -> &str {
    match text {
        "True" => "1",
        "False" => "0",
        text => text,
    }
}

#[test]
#[ignore = "needs tshark: `make test` installs it and runs this"]
fn the_dissector_says_what_this_crate_decodes() {
    let packets = packets();
    let frames: Vec<Vec<u8>> = packets.iter().map(Packet::frame).collect();
    let mut errors = 0;
    for (packet, line) in packets.iter().zip(dissect(&frames, usize::MAX, &[])) {
        let context = || format!("{}: {line:?}", to_hex_digits(&packet.payload));
        if let [("_ws.expert.message", start)] = &packet.said[..] {
            assert!(line[0].starts_with(start), "{start:?}: {}", context());
            errors += 1;
            continue;
        }
        for (name, printed) in FIELDS.iter().zip(&line) {
            let expected = packet.said.iter().find(|(said, _)| said == name).map_or("", |(_, value)| value);
            assert_eq!(plain(printed), expected, "{name} of {}", context());
        }
    }
    // Some spoiled reports are still good.
    assert!(errors > 300 && errors < packets.len() - 1200, "{errors} of {}", packets.len());
}

#[test]
#[ignore = "needs tshark: `make test` installs it and runs this"]
fn the_dissector_takes_other_ports_and_captures_that_are_cut() {
    let report =
        |port| Packet { ports: [9, port], ..Packet::report(Numbers(SplitMix64(7)).report()) }.frame();
    let frames = [report(4711), report(4713), report(4714), report(PORT)];
    let messages = |options: &[&str]| -> Vec<String> {
        dissect(&frames, usize::MAX, options).into_iter().map(|line| line[1].clone()).collect()
    };
    assert_eq!(messages(&[]), ["", "", "", "Report"]);
    assert_eq!(messages(&["-o", "dta.ports:4711,4712-4713"]), ["Report", "Report", "", ""]);

    // A part of a report does not count as a bad one.
    let whole = Packet::report(Numbers(SplitMix64(7)).report()).frame();
    let line = &dissect(std::slice::from_ref(&whole), whole.len() - 1, &[])[0];
    assert_eq!((&*line[1], &*line[0]), ("Report", "The capture has a part of it"));
}
