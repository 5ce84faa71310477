//! How long decoding takes per record of NetFlow v9, beside copying the same bytes:
//! `cargo run --release -p dta-telemetry --features emit --example decode_speed`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use dta_telemetry::flows::emit::{self, FIELDS, encode_template, set};
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::reports::ArrivalTime;

/// Elements for every column.
const ALL_FIELDS: [(u16, u16); 28] = [
    (8, 4),
    (12, 4),
    (15, 4),
    (10, 4),
    (14, 4),
    (2, 4),
    (1, 4),
    (22, 4),
    (21, 4),
    (7, 2),
    (11, 2),
    (6, 1),
    (4, 1),
    (5, 1),
    (16, 4),
    (17, 4),
    (61, 1),
    (89, 1),
    (58, 2),
    (59, 2),
    (234, 4),
    (70, 3),
    (225, 4),
    (226, 4),
    (227, 2),
    (228, 2),
    (230, 1),
    (351, 8),
];
const RECORDS: usize = 20;
const TIME: Duration = Duration::from_secs(2);

fn main() {
    for (name, fields) in [("9 fields", &FIELDS[..]), ("all columns", &ALL_FIELDS)] {
        let len: usize = fields.iter().map(|(_, len)| usize::from(*len)).sum();
        let mut decoder = Decoder::new(DecoderOptions::default());
        let template = emit::netflow_v9_datagram(0, 1, &[set(0, &encode_template(256, fields))]);
        let from = ([192, 0, 2, 1], 2055).into();
        decoder
            .decode_datagram(ArrivalTime::default(), from, &template, |_| panic!("a template says nothing"));
        let body: Vec<_> = (0..RECORDS * len).map(|at| (at % 250) as u8 & 0x3f | 1).collect();
        let datagram = emit::netflow_v9_datagram(1, 1, &[set(256, &body)]);
        let (mut records, start) = (0u64, Instant::now());
        while start.elapsed() < TIME {
            for _ in 0..1000 {
                decoder.decode_datagram(ArrivalTime::default(), from, black_box(&datagram), |one| {
                    records += u64::from(one.is_ok());
                    black_box(one).ok();
                });
            }
        }
        let decoding = start.elapsed().as_nanos() as f64 / records as f64;
        let (mut copy, mut copies, start) = (vec![0; datagram.len()], 0u64, Instant::now());
        while start.elapsed() < TIME {
            for _ in 0..1000 {
                copy.copy_from_slice(black_box(&datagram));
                black_box(&mut copy);
            }
            copies += 1000;
        }
        let copying = start.elapsed().as_nanos() as f64 / copies as f64 / RECORDS as f64;
        println!(
            "{name}: {decoding:.1} ns a record, {:.0} times a copy of its {len} bytes",
            decoding / copying
        );
    }
}
