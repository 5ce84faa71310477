//! Lets tshark, which shares no code with us, decode each frame that bmv2 made.

#[path = "shared/p4_suite/capture.rs"]
mod capture;

use std::path::Path;
use std::process::Command;

/// What tshark prints of each packet.
const FIELDS: [&str; 8] = [
    "ip.checksum.status",
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.invariant.crc",
];

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// What stands in a frame, as far as it has these fields.
fn fields(frame: &[u8]) -> [Option<u64>; FIELDS.len()] {
    let end = 14 + number(&frame[16..18]) as usize;
    let bth = &frame[42..54];
    let atomic = bth[0] & 0x1f == 0x14;
    [
        Some(1),
        Some(bth[0].into()),
        Some(number(&bth[5..8])),
        Some(u64::from(bth[8] >> 7)),
        Some(number(&bth[9..12])),
        (!atomic).then(|| number(&frame[66..70])),
        atomic.then(|| number(&frame[66..74])),
        Some(number(&frame[end - 4..end])),
    ]
}

#[test]
#[ignore = "needs tshark: `make test` installs it and runs this"]
fn tshark_reads_every_frame_of_bmv2() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../translator-p4/frames/bmv2.pcap.gz");
    let frames = capture::read(std::fs::File::open(&file).unwrap()).unwrap();
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file).args([
        "-o",
        "ip.check_checksum:TRUE",
        "-Y",
        "udp.dstport == 4791",
        "-T",
        "fields",
    ]);
    tshark.args(["-E", "separator=,", "-E", "occurrence=f"]);
    tshark.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = tshark.output().expect("tshark starts: apt-get install tshark");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    let roce: Vec<&Vec<u8>> = frames.iter().filter(|frame| frame[36..38] == 4791u16.to_be_bytes()).collect();
    assert_eq!(lines.len(), roce.len());
    for (line, frame) in lines.iter().zip(roce) {
        let printed: Vec<Option<u64>> = line
            .split(',')
            .map(|text| match text.strip_prefix("0x") {
                Some(digits) => Some(u64::from_str_radix(digits, 16).unwrap()),
                None => text.parse().ok(),
            })
            .collect();
        assert_eq!(printed, fields(frame), "{line}");
    }
}
