//! Rows that differ between bmv2 and Tofino. The keys and actions that only a program for Tofino has are in its
//! `tofino.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::tables::{Holds, Item, Mirror, MirrorSide, Tables, Towards};
use super::tofino::{self, NACK_BYTES, NODES, SESSION_PORTS, WHOLE};
use super::translator::{Lists, NACK_PORT, NACK_SESSION, UseList};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// `simple_switch_grpc`, over P4Runtime.
    Bmv2,
    /// A Tofino, over BfRuntime.
    Tofino,
}

impl Platform {
    /// Adds a multicast group. On Tofino it consists of nodes, one per replication id with all its ports, at
    /// most `nodes` per group.
    pub(super) fn add_group(self, tables: &mut Tables, group: u32, nodes: u32, copies: &[(u32, u32)]) {
        if self == Platform::Bmv2 {
            return tables.set(Item::Group(group), Holds::Copies(copies.to_vec()));
        }
        let mut by_id: BTreeMap<u32, BTreeSet<(u32, u32)>> = BTreeMap::new();
        for copy in copies {
            by_id.entry(copy.1).or_default().insert(*copy);
        }
        // Copies of a report have few ids, and broadcasts have one.
        debug_assert!(by_id.len() <= nodes as usize, "{by_id:?}");
        let numbers: Vec<u32> = (group * nodes..).take(by_id.len()).collect();
        tables.set(Item::Group(group), Holds::Copies(numbers.iter().map(|node| (*node, 0)).collect()));
        for (node, copies) in numbers.into_iter().zip(by_id.into_values()) {
            tables.set(Item::Node(node), Holds::Copies(copies.into_iter().collect()));
        }
    }

    /// Adds the group that makes these copies of a frame. Rows of postcards also leave by it, but on bmv2 by
    /// a clone session of the same number.
    pub(super) fn frame_copies(self, tables: &mut Tables, group: u32, copies: Vec<(u32, u32)>) {
        self.add_group(tables, group, NODES, &copies);
        if self == Platform::Bmv2 {
            tables.set(Item::Clone(group), Holds::Copies(copies));
        }
    }

    /// Adds the session for NACKs. Tofino also has one that sends postcards through ingress again.
    pub(super) fn add_clone_sessions(self, tables: &mut Tables) {
        if self == Platform::Bmv2 {
            return tables.set(Item::Clone(NACK_SESSION), Holds::Copies(vec![(NACK_PORT, 0)]));
        }
        for (session, port) in SESSION_PORTS {
            // A NACK needs only the headers of its report.
            let longest = if session == NACK_SESSION { NACK_BYTES } else { WHOLE };
            let mirror = Mirror { to: Towards::Port(port), at: MirrorSide::Ingress, longest };
            tables.set(Item::Clone(session), Holds::Mirror(mirror));
        }
    }

    /// Adds the rows of some lists: one for all, or on Tofino one for each prefix of their numbers.
    pub(super) fn add_list_rows(
        self,
        tables: &mut Tables,
        store: u16,
        lists: Range<u32>,
        to: impl Fn() -> UseList,
    ) {
        let (first, last) = (lists.start, lists.end - 1);
        if self == Platform::Bmv2 {
            return tables.add_row(Lists { store, list: first..=last }, to());
        }
        for list in tofino::range_prefixes(first, last) {
            tables.add_row(tofino::Lists { store, list }, to());
        }
    }

    /// The `ring_shift` of a list store: on Tofino, a list's ring starts at its number times 2^(4 + `ring_shift`).
    pub(super) fn ring_shift(self, ring: u64, element_shift: u32) -> u32 {
        let more = if self == Platform::Tofino { element_shift.saturating_sub(4) } else { 0 };
        ring.trailing_zeros() + more
    }

    /// Whether regions of postcard stores are also in a table of their own, for the keys of rows that are sent.
    pub(super) fn has_row_regions(self) -> bool {
        self == Platform::Tofino
    }
}
