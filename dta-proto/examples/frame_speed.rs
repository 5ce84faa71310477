//! Benchmarks building and checking RoCEv2 frames on one core, all in cache:
//! `cargo run --release -p dta-proto --example frame_speed`. Prints millions per second, the best of many
//! short rounds.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

use dta_proto::key::Key;
use dta_proto::wire::dta::{DtaBody, DtaReport};
use dta_proto::wire::frame::{FetchAddTemplate, FrameRoute, Received, WriteTemplate};
use dta_proto::wire::roce::{BthFields, Psn, RoceRepr, Transport};

/// Operations per round: short, so that some rounds are not interrupted.
const ROUND: u32 = 20_000;
const ROUNDS: usize = 300;

fn time(name: &str, mut one: impl FnMut(u32)) {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for i in 0..ROUND {
            one(i);
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{name:60} {:6.1} M/s", f64::from(ROUND) / best / 1e6);
}

fn main() {
    let route = FrameRoute::new(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 0x11);
    let mut buffer = [0; 128];
    let payload = [7; 16];

    let template = WriteTemplate::new(&route, Transport::Uc, 0x11, payload.len()).unwrap();
    time("WRITE ONLY, checksum and 12-byte value, by template", |i| {
        let len = template.write_frame(
            Psn::new(i),
            false,
            u64::from(i) << 4,
            0x1234,
            black_box(&payload),
            &mut buffer,
        );
        black_box((&buffer, len.unwrap()));
    });
    let (covered, frame) = (36, [7; 76]);
    time("  floor: copy of the frame and CRC-32 of its last 36 bytes", |i| {
        buffer[..76].copy_from_slice(black_box(&frame));
        black_box(dta_proto::crc::crc32_update(i, black_box(&buffer[72 - covered..72])));
    });
    time("WRITE ONLY, the same, field by field", |i| {
        let place = BthFields { dest_qp: 0x11, psn: Psn::new(i), ack_req: false };
        let packet =
            RoceRepr::write(Transport::Uc, place, u64::from(i) << 4, 0x1234, black_box(&payload), None);
        let len = route.write_frame(&packet, &mut buffer);
        black_box((&buffer, len.unwrap()));
    });
    let template = FetchAddTemplate::new(&route, 0x11).unwrap();
    time("FETCH_ADD, by template", |i| {
        let len = template.write_frame(Psn::new(i), false, u64::from(i) << 3, 0x1234, 1, &mut buffer);
        black_box((&buffer, len.unwrap()));
    });

    let template = WriteTemplate::new(&route, Transport::Uc, 0x11, payload.len()).unwrap();
    let len = template.write_frame(Psn::new(1), false, 64, 0x1234, &payload, &mut buffer).unwrap();
    time("the same WRITE ONLY, received and checked", |_| {
        let received = Received::parse_packet(black_box(&buffer[..len])).unwrap();
        black_box((received.roce.base_header().psn, received.roce.rdma_header(), received.roce.payload()));
    });
    time("  floor: CRC-32 of its 72 bytes", |i| {
        black_box(dta_proto::crc::crc32_update(i, black_box(&buffer[..72])));
    });

    let report = DtaReport {
        sequence: 1,
        reporter: 1,
        ..DtaReport::new(1, DtaBody::KeyWrite { redundancy: 0, key: Key([1; 16]), value: &[2; 12] })
    };
    time("key-write report, version 1, made", |i| {
        let report = DtaReport { sequence: i, ..report };
        let len = black_box(&report).encode_into(&mut buffer).unwrap();
        black_box((&buffer, len));
    });
    let len = report.encode_into(&mut buffer).unwrap();
    time("key-write report, version 1, parsed", |_| {
        black_box(DtaReport::parse_payload(black_box(&buffer[..len])).unwrap());
    });
}
