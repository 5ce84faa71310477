//! How fast the software NIC executes WRITEs in memory, beside the floor:
//! `cargo run --release -p dta-collector --example soft_nic`.

use std::time::Duration;

use dta_collector::nic::soft::bench::{BenchError, WriteBench};

fn main() -> Result<(), BenchError> {
    let mut bench = WriteBench::new(1 << 30, 64)?;
    println!("1 GiB in {}, batches of 64", bench.pages());
    for _ in 0..5 {
        let rate = |(writes, took): (u64, Duration)| writes as f64 / took.as_secs_f64() / 1e6;
        let floor = rate(bench.floor(10_000_000));
        let nic = rate(bench.run(10_000_000));
        println!("UC WRITE of 16 bytes: {nic:.1} M/s, floor {floor:.1} M/s, ratio {:.2}", nic / floor);
    }
    Ok(())
}
