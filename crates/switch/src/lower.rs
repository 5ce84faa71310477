//! Lowers a program to the tables of a P4 switch.

use std::net::{IpAddr, Ipv4Addr};

use dta_proto::layout::append::entries_per_batch;
use dta_proto::program::{DataPlaneEntry, Mac, Program, ProgramQueuePair, Purpose, Store, Transport};
use dta_proto::store::{Merge, StoreKind};
use dta_proto::wire::dta::MAX_VALUE_LEN;

use super::places::StatePlaces;
use super::tables::Tables;
use super::tofino;
use super::translator::{self as table, FLOOD_GROUP, GROUPS, QUEUE_PAIRS, REPORTS_PORT};
use crate::TargetError;
use crate::options::SwitchOptions;
use crate::platform::Platform;

/// Maximum number of copies of one report.
const COPIES: u32 = 4;

/// A store that the switch's program does not support.
pub(super) fn cannot_write(store: &str, why: &str) -> TargetError {
    TargetError::Refused(format!(
        "store {store} cannot be written by this switch: {why}; name the stores that it should write in `stores`"
    ))
}

/// Number of a queue pair in the switch: two per collector, writes first.
pub fn pair_number(collector: u8, purpose: Purpose) -> u32 {
    2 * u32::from(collector) + u32::from(purpose == Purpose::Atomic)
}

/// Collector and purpose of one of the switch's queue pairs.
pub fn split_pair_number(number: u32) -> (u8, Purpose) {
    let purpose = if number & 1 == 0 { Purpose::Write } else { Purpose::Atomic };
    (u8::try_from(number / 2).unwrap_or(u8::MAX), purpose)
}

/// The port to a collector: its own of `collector_ports`, or the last one.
pub fn collector_port(ports: &[u16], collector: u8) -> Option<u16> {
    ports.get(usize::from(collector)).or(ports.last()).copied()
}

/// What a switch should hold, and its options.
pub struct Lowering<'a> {
    pub program: &'a Program,
    /// The places of its stores in the switch.
    pub places: &'a StatePlaces,
    pub options: &'a SwitchOptions,
    pub platform: Platform,
}

impl Lowering<'_> {
    /// All tables. `reporters` are the listed ones; without any, all may report.
    pub fn lower_program(&self, reporters: &[(u16, Ipv4Addr)]) -> Result<Tables, TargetError> {
        let mut tables = Tables::default();
        self.forwarding(&mut tables)?;
        lower_reporters(&mut tables, reporters);
        self.platform.add_clone_sessions(&mut tables);
        for entry in self.program.entries() {
            self.lower_entry(&mut tables, entry)?;
        }
        Ok(tables)
    }

    /// Adds the rows of one entry of the program.
    pub fn lower_entry(&self, tables: &mut Tables, entry: &DataPlaneEntry) -> Result<(), TargetError> {
        match entry {
            DataPlaneEntry::Service(service) => {
                if service.port != REPORTS_PORT {
                    return Err(TargetError::Refused(format!(
                        "the switch accepts reports only at UDP port {REPORTS_PORT}: give it as the port of `listen`, not {}",
                        service.port
                    )));
                }
                let key = table::Service { address: require_ipv4(service.address)?, port: service.port };
                tables.add_row(key, table::TakeReports {});
            }
            DataPlaneEntry::QueuePair(pair) => self.queue_pair(tables, pair)?,
            DataPlaneEntry::Store(store) => self.lower_store(tables, store)?,
            DataPlaneEntry::Lists(lists) => {
                let Some(of) = self.program.store_part(lists.store, lists.collector) else { return Ok(()) };
                for (part, place) in self.places.list_places(lists) {
                    let state_offset = place.wrapping_sub(part.start);
                    let to = || table::UseList {
                        state_offset,
                        pair: pair_number(of.collector, of.queue_pair),
                        address: of.address,
                        rkey: of.rkey.0,
                    };
                    self.platform.add_list_rows(tables, lists.store, part, to);
                }
            }
            DataPlaneEntry::Version0(version0) => {
                let key = table::Version0 { primitive: version0.primitive.opcode() };
                tables.add_row(key, table::UseStore { store: version0.store });
            }
            DataPlaneEntry::SketchReporter(of) => {
                let key = table::SketchReporter { store: of.store, reporter: of.reporter };
                tables.add_row(key, table::UseBit { mask: 1 << (of.bit & 31) });
            }
            // The data plane emits reference-mode frames and leaves timing to the control plane.
            DataPlaneEntry::Mode(_) | DataPlaneEntry::Flush(_) | DataPlaneEntry::Session(_) => {}
        }
        Ok(())
    }

    /// Traffic that is not for the translator.
    fn forwarding(&self, tables: &mut Tables) -> Result<(), TargetError> {
        for station in &self.options.stations {
            tables.add_row(table::L2 { mac: station.mac }, table::Forward { port: station.port });
        }
        for own in &self.options.router_macs {
            tables.add_row(table::L2 { mac: *own }, table::Route {});
        }
        if !self.options.flood.is_empty() {
            let copies: Vec<_> = self.options.flood.iter().map(|port| (u32::from(*port), 0)).collect();
            self.platform.add_group(tables, FLOOD_GROUP, tofino::NODES, &copies);
            tables.add_row(table::L2 { mac: Mac([0xff; 6]) }, table::Flood { group: FLOOD_GROUP });
        }
        for route in &self.options.routes {
            require_ipv4(route.prefix.written_address())?;
            let (port, source, destination) = (route.port, route.source, route.destination);
            tables.add_row(table::L3 { address: route.prefix }, table::NextHop { port, source, destination });
        }
        Ok(())
    }

    fn queue_pair(&self, tables: &mut Tables, pair: &ProgramQueuePair) -> Result<(), TargetError> {
        let number = pair_number(pair.collector, pair.purpose);
        if number >= QUEUE_PAIRS {
            return Err(TargetError::Refused(format!("the switch has no queue pair {number}")));
        }
        let Some(port) = collector_port(&self.options.collector_ports, pair.collector) else {
            return Err(TargetError::Refused(
                "`collector_ports` does not give the port to the collector".into(),
            ));
        };
        let given = self.options.collector_macs.get(usize::from(pair.collector)).copied();
        let Some(destination_mac) = given.or_else(|| pair.destination.known_mac()) else {
            let collector = pair.destination.ip;
            return Err(TargetError::Refused(format!(
                "the collector at {collector} does not give the Ethernet address of its NIC: give it in `collector_macs`"
            )));
        };
        let Some(source_mac) = pair.source.known_mac() else {
            return Err(TargetError::Refused(
                "the switch needs an Ethernet address to send from: give it as `mac`".into(),
            ));
        };
        let group = GROUPS * (number + 1);
        for copies in 1..=COPIES {
            let all = (0..copies).map(|copy| (u32::from(port), copy)).collect();
            self.platform.frame_copies(tables, group + copies, all);
        }
        let source_ip = require_ipv4(pair.source.ip)?;
        let to = table::UseQueuePair {
            rc: pair.transport == Transport::Rc,
            remote_qpn: pair.remote_qpn,
            source_mac,
            destination_mac,
            source_ip,
            destination_ip: require_ipv4(pair.destination.ip)?,
            udp_port: pair.destination.port,
            tos: pair.tos,
        };
        tables.add_row(table::QueuePair { pair: number }, to);
        tables.add_row(table::Departure { pair: number }, table::Depart { group });
        let answer = table::Answer { address: source_ip, local_qpn: pair.local_qpn };
        tables.add_row(answer, table::AnswerOf { pair: number });
        Ok(())
    }

    fn lower_store(&self, tables: &mut Tables, store: &Store) -> Result<(), TargetError> {
        let cannot = |why: String| cannot_write(&store.spec.name, &why);
        let is_counted_twice = matches!(store.spec.kind, StoreKind::KeyIncrement { replicas: 2.., .. });
        if store.buckets.copy_count() > 1 || is_counted_twice {
            return Err(cannot(
                "its keys have replicas at several collectors (spread_copies, replicas), and the P4 programs look up one \
                 collector for all copies: only software translators write such stores"
                    .into(),
            ));
        }
        let id = store.spec.id;
        let (key, number) = (table::Store { store: id }, self.places.store_number(id));
        let element_shift = store.spec.element_len().trailing_zeros();
        // Masks of powers of two have 32 bits.
        let mask = |count: u64| {
            u32::try_from(count.saturating_sub(1))
                .map_err(|_| cannot(format!("{count} elements, and the switch has 32 bits for their number")))
        };
        // The last arm is for primitives that the P4 programs do not have. Today they have all.
        #[allow(unreachable_patterns)]
        match store.spec.kind {
            StoreKind::KeyWrite { slots, value_len, redundancy: copies, keys } => {
                tables.add_row(
                    key,
                    table::KeyWriteStore {
                        number,
                        copies,
                        value_words: value_len / 4,
                        inline_keys: !keys.are_hashed(),
                        slots_mask: mask(slots)?,
                        element_shift,
                    },
                );
            }
            StoreKind::KeyIncrement { slots, redundancy: copies, .. } => {
                tables.add_row(key, table::KeyIncrementStore { number, copies, slots_mask: mask(slots)? });
            }
            StoreKind::Postcarding { slots, hops, redundancy: copies } => {
                let rows =
                    self.places.row_range(id).ok_or_else(|| cannot("it has no rows in the switch".into()))?;
                let (slots_mask, cache_base, cache_mask) = (mask(slots)?, rows.first, rows.count - 1);
                tables.add_row(
                    key,
                    table::PostcardingStore {
                        number,
                        copies,
                        hops,
                        slots_mask,
                        element_shift,
                        cache_base,
                        cache_mask,
                    },
                );
            }
            StoreKind::Append { lists, ring, batch_len, entry_len, notify } => {
                if batch_len > 64 {
                    return Err(cannot(format!(
                        "batches of {batch_len} bytes, and the switch makes 16, 32 or 64"
                    )));
                }
                if usize::from(entry_len) > MAX_VALUE_LEN {
                    return Err(cannot(format!(
                        "entries of {entry_len} bytes, and a report holds {MAX_VALUE_LEN} at most"
                    )));
                }
                let element_shift = batch_len.trailing_zeros();
                tables.add_row(
                    key,
                    table::AppendStore {
                        number,
                        lists,
                        ring_shift: self.platform.ring_shift(ring, element_shift),
                        ring_mask: mask(ring)?,
                        element_shift,
                        entry_words: entry_len / 4,
                        entries: entries_per_batch(batch_len, entry_len),
                        notify,
                    },
                );
            }
            StoreKind::SketchMerge { columns, rows, epochs, merge, expected: expected_reporters } => {
                let states = self
                    .places
                    .column_range(id)
                    .ok_or_else(|| cannot("it has no columns in the switch".into()))?;
                let merge = match merge {
                    Merge::Sum => 0,
                    Merge::Max => 1,
                    Merge::Or => 2,
                };
                let (columns_shift, state_base) = (columns.trailing_zeros(), states.first);
                let (columns_mask, epochs_mask) = (mask(columns.into())?, mask(epochs.into())?);
                match self.platform {
                    Platform::Bmv2 => tables.add_row(
                        key,
                        table::SketchMergeStore {
                            number,
                            rows,
                            merge,
                            expected_reporters,
                            columns_shift,
                            columns_mask,
                            epochs_mask,
                            element_shift,
                            state_base,
                        },
                    ),
                    Platform::Tofino => tables.add_row(
                        key,
                        tofino::SketchMergeStore {
                            number,
                            rows,
                            merge,
                            expected_reporters,
                            others: expected_reporters.max(1) - 1,
                            columns_shift,
                            columns,
                            epochs_mask,
                            element_shift,
                            state_base,
                        },
                    ),
                }
                if !store.buckets.is_whole_store() {
                    return Err(cannot("its columns are shared by several collectors".into()));
                }
            }
            _ => return Err(cannot(format!("it is a {} store", store.spec.primitive()))),
        }
        // The memory of lists is in a separate table.
        if matches!(store.spec.kind, StoreKind::Append { .. }) {
            return Ok(());
        }
        let pair = pair_number(store.collector, store.queue_pair);
        let (address, rkey) = (store.address, store.rkey.0);
        for (first, last) in store.buckets.buckets_of_copy(0).to_ranges() {
            let bucket = first..=last;
            if self.platform.has_row_regions() && matches!(store.spec.kind, StoreKind::Postcarding { .. }) {
                let key = tofino::RowRegion { store: id, bucket: bucket.clone() };
                tables.add_row(key, tofino::UseRowRegion { pair, address, rkey });
            }
            tables.add_row(table::Region { store: id, bucket }, table::UseRegion { pair, address, rkey });
        }
        Ok(())
    }
}

fn require_ipv4(address: IpAddr) -> Result<Ipv4Addr, TargetError> {
    match address {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(address) => {
            Err(TargetError::Refused(format!("{address} is an IPv6 address: the switch supports only IPv4")))
        }
    }
}

fn lower_reporters(tables: &mut Tables, reporters: &[(u16, Ipv4Addr)]) {
    match reporters {
        [] => tables.default_action::<table::Reporter>(table::Permit {}),
        [..] => tables.default_action::<table::Reporter>(table::NotListed {}),
    }
    for &(reporter, source) in reporters {
        // A version-0 report does not name its reporter.
        for (version, reporter) in [(1, reporter), (0, 0)] {
            let key = table::Reporter { version, reporter, source };
            tables.add_row(key, table::Permit {});
        }
    }
}
