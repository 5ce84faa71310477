//! Reports the last value of a flow, and adds 1,500 bytes to its counter.
//!
//! usage: cargo run --example report [ADDRESS]     ADDRESS of the translator; default: this host

use dta_reporter::{Config, DtaBody, Key, Reporter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let translator = std::env::args().nth(1).unwrap_or("127.0.0.1:40040".into());
    let mut reporter = Reporter::open(Config::new(translator.parse()?))?;
    let key: Key = "10.0.0.1:5000->10.0.0.2:5000/udp".parse()?;
    // 1 and 4 are the ids of the stores `flows` and `bytes` (`dta-collector stores`).
    reporter.report(1, DtaBody::KeyWrite { redundancy: 0, key, value: &42u32.to_be_bytes() })?;
    reporter.report(4, DtaBody::KeyIncrement { redundancy: 0, key, delta: 1500 })?;
    println!("{} reports sent", reporter.close()?.reports);
    Ok(())
}
