//! The entries of the reporter (`reporter-p4/README.md`).

use std::net::Ipv4Addr;

use super::controller::{Controller, Is, Row};
use super::truth::{ACL_DENY, DENIED_PORT, SWITCH, Station, Traffic};

/// Where reports come from and go to.
pub(super) const REPORTER_MAC: u64 = 0x0200_0000_0077;
pub(super) const REPORTER_IP: Ipv4Addr = Ipv4Addr::new(198, 18, 9, 7);
pub(super) const TRANSLATOR_MAC: u64 = 0x0200_0000_0088;
pub(super) const SERVICE: Ipv4Addr = Ipv4Addr::new(198, 18, 9, 2);
const REPORTS: u128 = 40_040;

/// The stores that reports go to, by their ids.
pub(super) const LENGTHS: u16 = 1;
pub(super) const PATHS: u16 = 2;
pub(super) const FLOWS: u16 = 3;
pub(super) const COUNTERS: u16 = 4;

/// Reports of one packet: of a flow, and of a drop.
pub(super) const OF_FLOW: u64 = 5;
pub(super) const OF_DROP: u64 = 3;

/// Clone sessions of flow and of drop reports.
pub(super) const FLOW_SESSION: usize = 1;
pub(super) const DROP_SESSION: usize = 4;

/// A power of two of nanoseconds: a bit more than a second.
pub(super) const INTERVAL: u32 = 30;
/// Changes of hop latency by 2^26 ns. SD-Fabric's 2^14 ns would make a report of each packet: that of bmv2 changes by
/// more from one packet to the next.
const LATENCY_MASK: u128 = 0xfc00_0000;

const ALL: Row<'static> = Row {
    table: "watchlist",
    key: &[],
    action: "watch",
    params: &[("flows", 1), ("queues", 0), ("drops", 1)],
    priority: 1,
};

async fn settings(
    reporter: &mut Controller,
    interval_mask: u128,
    latency_mask: u128,
    every: u128,
) -> anyhow::Result<()> {
    let params = [
        ("switch_id", u128::from(SWITCH)),
        ("time_offset", 0),
        ("interval_mask", interval_mask),
        ("latency_mask", latency_mask),
        ("every_packet", every),
    ];
    reporter
        .set_default(&Row { table: "settings", key: &[], action: "set", params: &params, priority: 0 })
        .await
}

/// A row of a table of exact keys.
fn row<'a>(
    table: &'a str,
    key: &'a [(&'a str, Is)],
    action: &'a str,
    params: &'a [(&'a str, u128)],
) -> Row<'a> {
    Row { table, key, action, params, priority: 0 }
}

/// Lets the reporter report each packet that it forwards or drops.
pub(super) async fn fill(reporter: &mut Controller, traffic: &Traffic) -> anyhow::Result<()> {
    settings(reporter, 0, 0, 1).await?;
    for port in 1..=3 {
        reporter
            .insert(&row("ingress_port", &[("ingress_port", Is::Exactly(port))], "admit", &[("hop", 0)]))
            .await?;
        let last = [("is_last_hop", u128::from(port < 3))];
        reporter.insert(&row("egress_port", &[("egress_port", Is::Exactly(port))], "allow", &last)).await?;
    }
    reporter.copies(false, 1, &[(1, 0), (2, 0)]).await?;
    for (mac, station) in &traffic.stations {
        let mac = mac.iter().fold(0, |value, byte| value << 8 | u128::from(*byte));
        let key = [("destination", Is::Exactly(mac))];
        match station {
            Station::Port(port) => {
                reporter.insert(&row("l2", &key, "forward", &[("port", (*port).into())])).await?;
            }
            Station::All => reporter.insert(&row("l2", &key, "flood", &[("group", 1)])).await?,
        }
    }
    let denied = DENIED_PORT.into();
    let key = [("protocol", Is::Masked(17, 0xff)), ("destination_port", Is::Between(denied, denied))];
    let params = [("reason", ACL_DENY.into())];
    reporter.insert(&Row { table: "acl", key: &key, action: "deny", params: &params, priority: 1 }).await?;
    reporter.insert(&ALL).await?;

    let params = [
        ("reporter", 1),
        ("source_mac", REPORTER_MAC.into()),
        ("destination_mac", TRANSLATOR_MAC.into()),
        ("source_ip", u32::from(REPORTER_IP).into()),
        ("destination_ip", u32::from(SERVICE).into()),
        ("source_port", 50_001),
        ("destination_port", REPORTS),
        ("tos", 0),
    ];
    reporter.insert(&row("destination", &[("number", Is::Exactly(1))], "translator", &params)).await?;
    let to = |store: u16| [("destination", 1), ("store", u128::from(store))];
    // The length of the frame, by its flow; the path; and the flow in a list.
    let mut params = to(LENGTHS).to_vec();
    params.extend([("redundancy", 0), ("key_kind", 0), ("value_kind", 4), ("with_time", 0)]);
    report(reporter, 1, "key_write", &params).await?;
    let mut params = to(PATHS).to_vec();
    params.push(("value_kind", 2));
    report(reporter, 2, "postcard", &params).await?;
    for (replica, list) in [(3, 0), (8, 1)] {
        let mut params = to(FLOWS).to_vec();
        params.extend([("list_number", list), ("entry_kind", 2), ("immediate", 0)]);
        report(reporter, replica, "append", &params).await?;
    }
    // Packets and bytes of the flow; drops by reason, of the switch and of the flow.
    for (replica, key_kind, value_kind) in [(4, 5, 3), (5, 6, 4), (6, 3, 3), (7, 4, 3)] {
        let mut params = to(COUNTERS).to_vec();
        params.extend([("redundancy", 0), ("key_kind", key_kind), ("value_kind", value_kind)]);
        report(reporter, replica, "key_increment", &params).await?;
    }
    let copies =
        |replicas: std::ops::RangeInclusive<u32>| replicas.map(|replica| (3, replica)).collect::<Vec<_>>();
    reporter.copies(true, FLOW_SESSION as u32, &copies(1..=5)).await?;
    reporter.copies(true, DROP_SESSION as u32, &copies(6..=8)).await
}

async fn report(
    reporter: &mut Controller,
    replica: u128,
    action: &str,
    params: &[(&str, u128)],
) -> anyhow::Result<()> {
    let key = [("replica", Is::Exactly(replica))];
    reporter.insert(&Row { table: "report", key: &key, action, params, priority: 0 }).await
}

/// From now on, the filters that a switch has by default, and the flows of one network of 24 bits alone.
pub(super) async fn filter(reporter: &mut Controller, network: Ipv4Addr) -> anyhow::Result<()> {
    let interval_mask = u128::from(u64::MAX << INTERVAL);
    settings(reporter, interval_mask, LATENCY_MASK, 0).await?;
    reporter.delete(&ALL).await?;
    for side in ["source", "destination"] {
        let key = [(side, Is::Masked(u32::from(network).into(), 0xffff_ff00))];
        reporter.insert(&Row { key: &key, ..ALL }).await?;
    }
    Ok(())
}
