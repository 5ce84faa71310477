//! The journal: every report that was made, and what the links are known to have done to it.
//!
//! The fault injector of the reporters' links tells the fate of each datagram, because it runs in this process; the
//! translator's ledger file tells the fate of each copy that its own injector, or the recovery of an RC queue pair, lost or
//! moved. What neither knows (a full socket buffer, a firewall) is known by count alone, see [`super::check::Pools`].

use crate::topology::Primitive;

use super::workload::{Body, Report};

/// What is known of one report beside its contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Datagrams of it that were sent, first and again.
    pub sent: u16,
    /// Datagrams of it that the reporters' link is known to have lost.
    pub lost: u16,
    /// It may have arrived after later reports: the link moved it, or only a repeat of it came through.
    pub moved: bool,
    /// Bit n: copy n's frame is known to be lost between translator and NIC.
    pub copies_lost: u8,
    /// Bit n: copy n's frame may have arrived after later ones.
    pub copies_moved: u8,
}

impl Fate {
    /// Whether no record says that the report did not reach the translator.
    pub fn arrived(&self) -> bool {
        self.sent > self.lost
    }

    /// Whether copy `n` reached the NIC, as far as there are records.
    pub fn landed(&self, n: usize) -> bool {
        self.arrived() && self.copies_lost >> n & 1 == 0
    }

    /// Whether its place among other reports, in copy `n`'s slot, is not known.
    pub fn order_unknown(&self, n: usize) -> bool {
        self.moved || self.copies_moved >> n & 1 == 1
    }

    /// Whether anything at all happened to it.
    pub fn touched(&self) -> bool {
        self.lost > 0 || self.moved || self.copies_lost != 0 || self.copies_moved != 0
    }
}

/// One report.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Switch and contents.
    pub report: Report,
    /// What is known of it.
    pub fate: Fate,
}

/// All reports, in the order in which they were made.
#[derive(Debug, Default)]
pub struct Journal {
    entries: Vec<Entry>,
    /// Per switch, by running number of its reports: index in `entries`.
    by_switch: Vec<Vec<u32>>,
}

impl Journal {
    /// Notes a report; gives its running number among the reports of its switch, from 0.
    pub fn add(&mut self, report: Report) -> u32 {
        let switch = usize::from(report.switch);
        if self.by_switch.len() <= switch {
            self.by_switch.resize_with(switch + 1, Vec::new);
        }
        let number = self.by_switch[switch].len() as u32;
        self.by_switch[switch].push(self.entries.len() as u32);
        self.entries.push(Entry { report, fate: Fate::default() });
        number
    }

    /// All reports in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The fate of report `number` of `switch`, to be completed; `None` if there was no such report.
    pub fn fate_mut(&mut self, switch: u16, number: u32) -> Option<&mut Fate> {
        let index = *self.by_switch.get(usize::from(switch))?.get(number as usize)?;
        Some(&mut self.entries[index as usize].fate)
    }

    /// Reports of a primitive, with their place in the order of all.
    pub fn of(&self, primitive: Primitive) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().filter(move |(_, e)| e.report.body.primitive() == primitive)
    }

    /// How many reports of a primitive there are.
    pub fn count(&self, primitive: Primitive) -> u64 {
        self.of(primitive).count() as u64
    }

    /// Reports that, by the records, did not reach the translator.
    pub fn not_arrived(&self) -> u64 {
        self.entries.iter().filter(|e| !e.fate.arrived()).count() as u64
    }
}

/// The flow that a keyed report is of.
pub fn flow_of(body: &Body) -> Option<u32> {
    match body {
        Body::KeyWrite { flow, .. }
        | Body::Postcard { flow, .. }
        | Body::Append { flow, .. }
        | Body::KeyIncrement { flow, .. } => Some(*flow),
        Body::SketchMerge { .. } => None,
    }
}
