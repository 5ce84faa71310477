//! Queries the last value of a flow, and its bytes.
//!
//! usage: cargo run --example query [ADDRESS]     ADDRESS of the collector; without one, this host's

use dta_rpc::{AskKeys, ClientOptions, DEFAULT_COLLECTOR, Key, Policy, collector::RemoteCollector};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or(DEFAULT_COLLECTOR.into());
    let collector = RemoteCollector::connect(&ClientOptions::without_tls(address)).await?;
    let flow: Key = "10.0.0.1:5000->10.0.0.2:5000/udp".parse()?;
    for answer in collector.key_write("flows", &[flow], Policy::Plurality, 0).await? {
        println!("{flow} is {:02x?}, by {} of {} copies", answer.value, answer.agreeing, answer.copies);
    }
    for answer in collector.query_counters("bytes", &[flow]).await? {
        println!("{flow} has {} bytes", answer.value);
    }
    Ok(())
}
