//! A program as the tables of a P4 switch.

use std::net::IpAddr;

use dta_proto::program::{Entry, Mac, Program, Purpose, QueuePair, Store, Transport};
use dta_proto::store::{Merge, StoreKind};

use super::places::{NoRoom, Places};
use super::tables::{Holds, Item, Match, Tables};
use super::translator::{FLOOD_GROUP, GROUPS, NACK_PORT, NACK_SESSION, QUEUE_PAIRS, REPORTS_PORT};
use crate::config::{ListedReporter, P4};

/// Most copies of one report.
const COPIES: u32 = 4;

/// Why a switch cannot hold a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// There is no room for something.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The P4 program cannot do something.
    #[error(
        "store {store} cannot be written by this switch: {why}; name the stores that it should write in `stores`"
    )]
    Store {
        /// Its name.
        store: String,
        /// What the switch does not have.
        why: String,
    },
    /// An address that the switch needs is not known.
    #[error("{0}")]
    Address(String),
}

/// What a queue pair is called in the switch: two for each collector, writes first.
pub fn pair_number(collector: u8, purpose: Purpose) -> u32 {
    2 * u32::from(collector) + u32::from(purpose == Purpose::Atomic)
}

/// The collector and purpose of a queue pair of the switch.
pub fn pair_of(number: u32) -> (u8, Purpose) {
    let purpose = if number & 1 == 0 { Purpose::Write } else { Purpose::Atomic };
    (u8::try_from(number / 2).unwrap_or(u8::MAX), purpose)
}

/// The port by which a collector is reached: its own of `collector_ports`, or the last one.
pub fn collector_port(ports: &[u16], collector: u8) -> Option<u16> {
    ports.get(usize::from(collector)).or(ports.last()).copied()
}

/// The tables of a program on a switch that is configured so. `reporters` are those that are listed; none = all may
/// report.
///
/// # Errors
/// A [`LowerError`] that names what the switch cannot hold.
pub fn lower(
    program: &Program,
    places: &Places,
    config: &P4,
    reporters: &[ListedReporter],
) -> Result<Tables, LowerError> {
    let mut tables = Tables::default();
    forwarding(&mut tables, config)?;
    listed(&mut tables, reporters);
    tables.set(Item::Clone(NACK_SESSION), Holds::Copies(vec![(NACK_PORT, 0)]));
    for entry in program.entries() {
        lower_entry(&mut tables, entry, program, places, config)?;
    }
    Ok(tables)
}

/// Adds the tables of one entry of a program.
///
/// # Errors
/// As [`lower`].
pub fn lower_entry(
    tables: &mut Tables,
    entry: &Entry,
    program: &Program,
    places: &Places,
    config: &P4,
) -> Result<(), LowerError> {
    match entry {
        Entry::Service(service) => {
            if service.port != REPORTS_PORT {
                return Err(LowerError::Address(format!(
                    "the switch takes reports at UDP port {REPORTS_PORT} alone: give it as the port of `listen`, not {}",
                    service.port
                )));
            }
            let key = vec![Match::Exact(ip(service.address)?), Match::Exact(service.port.into())];
            tables.row("service", key, "take_reports", vec![]);
        }
        Entry::QueuePair(pair) => queue_pair(tables, pair, config)?,
        Entry::Store(store) => {
            self::store(tables, store, places)?;
        }
        Entry::Lists(lists) => {
            let place = places.lists(lists.store, lists.first);
            let (Some(store), Some(place)) = (program.part(lists.store, lists.collector), place) else {
                return Ok(());
            };
            let last = u128::from(lists.first) + u128::from(lists.count.max(1) - 1);
            let range = Match::Range { low: lists.first.into(), high: last };
            let offset = place.first.wrapping_sub(lists.first);
            let pair = pair_number(store.collector, store.queue_pair);
            let params = vec![offset.into(), pair.into(), store.address.into(), store.rkey.0.into()];
            tables.row("lists", vec![Match::Exact(lists.store.into()), range], "use_list", params);
        }
        Entry::Version0(version0) => {
            let key = vec![Match::Exact(version0.primitive.opcode().into())];
            tables.row("version0", key, "use_store", vec![version0.store.into()]);
        }
        Entry::SketchReporter(reporter) => {
            let key = vec![Match::Exact(reporter.store.into()), Match::Exact(reporter.reporter.into())];
            tables.row("sketch_reporter", key, "use_bit", vec![1 << (reporter.bit & 31)]);
        }
        // The data plane makes the frames of the reference mode, and leaves the time to the control plane.
        Entry::Mode(_) | Entry::Flush(_) | Entry::Session(_) => {}
    }
    Ok(())
}

fn ip(address: IpAddr) -> Result<u128, LowerError> {
    match address {
        IpAddr::V4(address) => Ok(u32::from(address).into()),
        IpAddr::V6(address) => {
            Err(LowerError::Address(format!("{address} is an IPv6 address: the switch has IPv4 alone")))
        }
    }
}

fn mac(Mac(bytes): Mac) -> u128 {
    bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte))
}

/// Traffic that is not for the translator.
fn forwarding(tables: &mut Tables, config: &P4) -> Result<(), LowerError> {
    for station in &config.stations {
        let key = vec![Match::Exact(mac(station.mac))];
        tables.row("l2", key, "forward", vec![station.port.into()]);
    }
    for own in &config.router_macs {
        tables.row("l2", vec![Match::Exact(mac(*own))], "route", vec![]);
    }
    if !config.flood.is_empty() {
        let copies = config.flood.iter().map(|port| (u32::from(*port), 0)).collect();
        tables.set(Item::Group(FLOOD_GROUP), Holds::Copies(copies));
        let all = Match::Exact(mac(Mac([0xff; 6])));
        tables.row("l2", vec![all], "flood", vec![FLOOD_GROUP.into()]);
    }
    for route in &config.routes {
        let len = route.prefix.bits().min(32);
        let mask = u128::from(u32::MAX) & !((1_u128 << (32 - len)) - 1);
        let value = ip(route.prefix.address())? & mask;
        let key = vec![Match::Prefix { value, len: len.into() }];
        tables.row("l3", key, "next_hop", vec![route.port.into(), mac(route.source), mac(route.destination)]);
    }
    Ok(())
}

/// Who may report.
fn listed(tables: &mut Tables, reporters: &[ListedReporter]) {
    let default = if reporters.is_empty() { "permit" } else { "not_listed" };
    let does = Holds::Action { name: default.into(), params: vec![] };
    tables.set(Item::Default { table: "reporter".into() }, does);
    for reporter in reporters {
        let from = Match::Exact(u32::from(reporter.address).into());
        // A report of version 0 does not say whose it is.
        for (version, id) in [(1, reporter.id), (0, 0)] {
            tables.row(
                "reporter",
                vec![Match::Exact(version), Match::Exact(id.into()), from],
                "permit",
                vec![],
            );
        }
    }
}

fn queue_pair(tables: &mut Tables, pair: &QueuePair, config: &P4) -> Result<(), LowerError> {
    let number = pair_number(pair.collector, pair.purpose);
    if number >= QUEUE_PAIRS {
        return Err(LowerError::Address(format!("the switch has no queue pair {number}")));
    }
    let index = usize::from(pair.collector);
    let Some(port) = collector_port(&config.collector_ports, pair.collector) else {
        return Err(LowerError::Address(
            "`collector_ports` does not say by which port the collector is reached".into(),
        ));
    };
    let given = config.collector_macs.get(index).copied();
    let Some(destination_mac) = given.or_else(|| pair.destination.known_mac()) else {
        let collector = pair.destination.ip;
        return Err(LowerError::Address(format!(
            "the collector at {collector} does not tell the Ethernet address of its NIC: give it in `collector_macs`"
        )));
    };
    let Some(source_mac) = pair.source.known_mac() else {
        return Err(LowerError::Address(
            "the switch needs an Ethernet address to send from: give it as `mac`".into(),
        ));
    };
    let group = GROUPS * (number + 1);
    for copies in 1..=COPIES {
        let all: Vec<(u32, u32)> = (0..copies).map(|copy| (u32::from(port), copy)).collect();
        tables.set(Item::Group(group + copies), Holds::Copies(all.clone()));
        tables.set(Item::Clone(group + copies), Holds::Copies(all));
    }
    let key = || vec![Match::Exact(number.into())];
    let rc = u128::from(pair.transport == Transport::Rc);
    let params = vec![
        rc,
        pair.remote_qpn.into(),
        mac(source_mac),
        mac(destination_mac),
        ip(pair.source.ip)?,
        ip(pair.destination.ip)?,
        pair.destination.port.into(),
        pair.tos.into(),
    ];
    tables.row("queue_pair", key(), "use_queue_pair", params);
    tables.row("departure", key(), "depart", vec![group.into()]);
    let answers = vec![Match::Exact(ip(pair.source.ip)?), Match::Exact(pair.local_qpn.into())];
    tables.row("answer", answers, "answer_of", vec![number.into()]);
    Ok(())
}

fn store(tables: &mut Tables, store: &Store, places: &Places) -> Result<(), LowerError> {
    let cannot = |why: String| LowerError::Store { store: store.spec.name.clone(), why };
    let id = store.spec.id;
    let number = u128::from(places.number(id));
    let shift = |len: u64| u128::from(len.trailing_zeros());
    let element = store.spec.element_len();
    // Masks of powers of two have 32 bits.
    let mask = |count: u64| match u32::try_from(count.saturating_sub(1)) {
        Ok(mask) => Ok(u128::from(mask)),
        Err(_) => Err(cannot(format!("{count} elements, and the switch has 32 bits for their number"))),
    };
    let (action, params) = match store.spec.kind {
        StoreKind::KeyWrite { slots, value_len, redundancy } => {
            let words = u128::from(value_len / 4);
            ("key_write_store", vec![number, redundancy.into(), words, mask(slots)?, shift(element)])
        }
        StoreKind::KeyIncrement { slots, redundancy } => {
            ("key_increment_store", vec![number, redundancy.into(), mask(slots)?])
        }
        StoreKind::Postcarding { slots, hops, redundancy } => {
            let rows = places.rows(id).ok_or_else(|| cannot("it has no rows in the switch".into()))?;
            let (base, cache) = (rows.first.into(), u128::from(rows.count - 1));
            let params =
                vec![number, redundancy.into(), hops.into(), mask(slots)?, shift(element), base, cache];
            ("postcarding_store", params)
        }
        StoreKind::Append { lists, ring, batch_len, entry_len, notify } => {
            if batch_len > 64 {
                return Err(cannot(format!(
                    "batches of {batch_len} bytes, and the switch makes 16, 32 or 64"
                )));
            }
            let entries = (batch_len - 8) / entry_len;
            let words = entry_len / 4;
            let params = vec![
                number,
                lists.into(),
                shift(ring),
                mask(ring)?,
                shift(batch_len.into()),
                words.into(),
                entries.into(),
                notify.into(),
            ];
            ("append_store", params)
        }
        StoreKind::SketchMerge { columns, rows, epochs, merge, expected } => {
            let states =
                places.columns(id).ok_or_else(|| cannot("it has no columns in the switch".into()))?;
            let merge = match merge {
                Merge::Sum => 0,
                Merge::Max => 1,
                Merge::Or => 2,
            };
            let params = vec![
                number,
                rows.into(),
                merge,
                expected.into(),
                shift(columns.into()),
                mask(columns.into())?,
                mask(epochs.into())?,
                shift(element),
                states.first.into(),
            ];
            ("sketch_merge_store", params)
        }
    };
    tables.row("store", vec![Match::Exact(id.into())], action, params);
    let is_sketch = matches!(store.spec.kind, StoreKind::SketchMerge { .. });
    if is_sketch && !store.buckets.is_all() {
        return Err(cannot("its columns are shared by several collectors".into()));
    }
    // Lists have their memory in a table of their own.
    if !matches!(store.spec.kind, StoreKind::Append { .. }) {
        let pair = pair_number(store.collector, store.queue_pair);
        for (low, high) in store.buckets.ranges() {
            let key = vec![Match::Exact(id.into()), Match::Range { low: low.into(), high: high.into() }];
            tables.row(
                "region",
                key,
                "use_region",
                vec![pair.into(), store.address.into(), store.rkey.0.into()],
            );
        }
    }
    Ok(())
}
