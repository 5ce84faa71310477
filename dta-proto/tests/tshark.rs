//! Lets tshark, which shares no code with us, decode the frames of `vectors/wire.json`, and
//! compares field by field.
//!
//! tshark (4.0) checks the IPv4 checksum and shows the iCRC, but does not check it: what is
//! compared is that it finds our iCRC where it expects one. The iCRC itself is checked against an
//! ACK of the kernel's soft-RoCE and zlib's CRC-32, in the vectors.

use std::process::Command;

use serde_json::Value;

/// What tshark prints for each frame, in this order.
const FIELDS: [&str; 17] = [
    "ip.checksum.status",
    "infiniband.bth.opcode",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.invariant.crc",
];

/// A number as tshark prints it, decimal or hex, or None where it prints nothing.
fn printed(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        _ if text.is_empty() => None,
        Some(digits) => Some(u64::from_str_radix(digits, 16).unwrap()),
        None => Some(text.parse().unwrap_or_else(|_| panic!("tshark printed {text:?}"))),
    }
}

/// A number of a vector, written as a number or as text.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => printed(text),
        other => other.as_u64(),
    }
}

fn is_ipv4(case: &Value) -> bool {
    !case["src"].as_str().unwrap().contains(':')
}

fn expected(case: &Value, bytes: &[u8]) -> [Option<u64>; FIELDS.len()] {
    let place = if case["reth"].is_null() { &case["atomic"] } else { &case["reth"] };
    [
        // IPv6 has no checksum.
        is_ipv4(case).then_some(1),
        number(&case["opcode"]),
        Some(1),
        number(&case["pad"]),
        Some(0xffff),
        number(&case["dest_qp"]),
        Some(u64::from(case["ack_req"].as_bool().unwrap())),
        number(&case["psn"]),
        number(&place["va"]),
        number(&place["rkey"]),
        number(&case["reth"]["length"]),
        number(&case["atomic"]["swap_add"]),
        number(&case["atomic"]["compare"]),
        number(&case["aeth"]["msn"]),
        number(&case["atomic_ack"]),
        number(&case["imm"]),
        bytes.last_chunk().map(|icrc| u64::from(u32::from_be_bytes(*icrc))),
    ]
}

#[test]
#[ignore = "needs tshark: `make test` installs it and runs this"]
fn tshark_reads_our_frames() {
    let all: Value = serde_json::from_str(include_str!("../vectors/wire.json")).unwrap();
    // To other ports it would be plain UDP to tshark.
    let cases: Vec<&Value> =
        all["frames"].as_array().unwrap().iter().filter(|case| case["dst_port"] == 4791).collect();
    let mut pcap = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1].map(u32::to_le_bytes).concat();
    let mut frames = Vec::new();
    for case in &cases {
        let text = case["hex"].as_str().unwrap();
        let mut bytes: Vec<u8> =
            (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect();
        if case["ethernet"].is_null() {
            let ethertype = if is_ipv4(case) { [8, 0] } else { [0x86, 0xdd] };
            bytes = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], &ethertype[..], &bytes[..]].concat();
        }
        let len = bytes.len() as u32;
        pcap.extend([0, 0, len, len].map(u32::to_le_bytes).concat());
        pcap.extend(&bytes);
        frames.push(bytes);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("frames.pcap");
    std::fs::write(&file, pcap).unwrap();
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file).args([
        "-o",
        "ip.check_checksum:TRUE",
        "-T",
        "fields",
        "-E",
        "separator=,",
        "-E",
        "occurrence=f",
    ]);
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().expect("tshark starts: apt-get install tshark");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), cases.len());
    for ((case, bytes), line) in cases.iter().zip(&frames).zip(lines) {
        let got: Vec<&str> = line.split(',').collect();
        assert_eq!(got.len(), FIELDS.len(), "{line}");
        for ((field, got), expected) in FIELDS.iter().zip(got).zip(expected(case, bytes)) {
            // The one field that tshark prints as bytes.
            let got = match *field {
                "infiniband.immdt" if !got.is_empty() => printed(&format!("0x{got}")),
                _ => printed(got),
            };
            assert_eq!(got, expected, "{} {field}: {line}", case["name"]);
        }
    }
}
