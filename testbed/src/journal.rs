//! The journal: every report made, and what is known about its fate on the links.
//!
//! The fault injector of the reporters' links reports the fate of each datagram, because it runs in this process; the
//! translator's ledger file has the fate of each copy that its own injector, or the recovery of an RC queue pair,
//! lost or moved. What neither knows (a full socket buffer, a firewall) is known only by count, see
//! [`super::check::Pools`].

use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, bail};
use dta_files::moment::now;
use dta_translator::packets::faults::{LedgerFate, RECORD};

use super::workload::SwitchReport;
use crate::topology::Primitive;

/// What is known about one report, besides its contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportFate {
    /// How often its datagram was sent, first and again.
    pub sent: u16,
    /// Its datagrams that the reporters' link is known to have lost.
    pub lost: u16,
    /// It may have arrived after later reports: the link moved it, or only a repeat of it arrived.
    pub moved: bool,
    /// Bit n: copy n's frame is known to be lost between translator and NIC.
    pub copies_lost: u8,
    /// Bit n: the frame reached the NIC damaged.
    pub copies_damaged: u8,
    /// Bit n: copy n's queue pair gave it up as lost. A frame that was only late may still have been executed, in place of
    /// what the requester sent under its number later.
    pub copies_given_up: u8,
    /// Bit n: copy n's frame may have arrived after later ones.
    pub copies_moved: u8,
}

impl ReportFate {
    /// Whether no record says that the report did not reach the translator.
    pub fn has_arrived(&self) -> bool {
        self.sent > self.lost
    }

    /// Whether copy `n` reached the NIC, by all records.
    pub fn has_copy_landed(&self, n: usize) -> bool {
        self.may_have_landed(n) && self.copies_given_up >> n & 1 == 0
    }

    /// Whether copy `n` may have reached the NIC: nobody saw it lost, although its queue pair may have given it up.
    pub fn may_have_landed(&self, n: usize) -> bool {
        self.has_arrived() && self.copies_lost >> n & 1 == 0
    }

    /// Whether its place among other reports, in copy `n`'s slot, is unknown.
    pub fn order_unknown(&self, n: usize) -> bool {
        self.moved || (self.copies_moved | self.copies_given_up) >> n & 1 == 1
    }

    /// Whether any of its copies is lost, certainly or possibly.
    pub fn any_copy_lost(&self) -> bool {
        self.copies_lost | self.copies_given_up != 0
    }

    /// Where a report ended whose copies were lost after the translator.
    pub fn lost_behind_translator(&self) -> &'static str {
        if self.copies_damaged != 0 && self.copies_given_up == 0 && self.copies_damaged == self.copies_lost {
            super::check::DAMAGED_AT_NIC
        } else {
            super::check::LOST_TO_NIC
        }
    }

    /// Whether anything at all happened to it.
    pub fn is_affected(&self) -> bool {
        self.lost > 0
            || self.moved
            || self.copies_lost != 0
            || self.copies_moved != 0
            || self.copies_given_up != 0
    }
}

#[derive(Clone, Debug)]
pub struct JournalEntry {
    pub report: SwitchReport,
    /// What is known about it.
    pub fate: ReportFate,
}

/// All reports, in the order in which they were made.
#[derive(Debug, Default)]
pub struct Journal {
    entries: Vec<JournalEntry>,
    /// By switch and number of the report: index in `entries`.
    by_switch: Vec<Vec<u32>>,
    /// Kept only if stores have epochs.
    times: Option<ReportTimes>,
}

/// When reports were under way, in milliseconds since 1970.
#[derive(Debug, Default)]
struct ReportTimes {
    /// By report: when it was made, and when a datagram of it was last sent.
    reports: Vec<[u64; 2]>,
    /// When the translator had executed everything sent except what it held: the times of the question and of the
    /// answer.
    idle: Vec<[u64; 2]>,
    /// When, in addition, it held nothing.
    settled: Vec<u64>,
}

impl Journal {
    /// An empty journal that keeps when reports were under way.
    pub fn with_times() -> Self {
        Self { times: Some(ReportTimes::default()), ..Self::default() }
    }

    /// Whether it keeps when reports were under way.
    pub fn has_report_times(&self) -> bool {
        self.times.is_some()
    }

    /// Adds a report; returns its number among the reports of its switch, from 0.
    pub fn add(&mut self, report: SwitchReport) -> u32 {
        let switch = usize::from(report.switch);
        if self.by_switch.len() <= switch {
            self.by_switch.resize_with(switch + 1, Vec::new);
        }
        let number = self.by_switch[switch].len() as u32;
        self.by_switch[switch].push(self.entries.len() as u32);
        self.entries.push(JournalEntry { report, fate: ReportFate::default() });
        if let Some(times) = &mut self.times {
            times.reports.push([now(); 2]);
        }
        number
    }

    /// Notes that a datagram of report `number` of `switch` has just been sent.
    pub fn note_sent(&mut self, switch: u16, number: u32) {
        if let Some(times) = &mut self.times
            && let Some(index) =
                self.by_switch.get(usize::from(switch)).and_then(|all| all.get(number as usize))
        {
            times.reports[*index as usize][1] = now();
        }
    }

    /// Notes that at some moment between `asked` and now the translator had executed everything sent, except what it holds
    /// for a while.
    pub fn note_idle(&mut self, asked: u64) {
        if let Some(times) = &mut self.times {
            times.idle.push([asked, now()]);
        }
    }

    /// Notes that the translator has executed everything sent, and holds nothing.
    pub fn note_settled(&mut self) {
        if let Some(times) = &mut self.times {
            times.settled.push(now());
        }
    }

    /// From when to when the report at `place` was under way: made, sent, and executed by the translator, which may
    /// hold it for `held` milliseconds. All of time if times are not kept.
    pub fn under_way(&self, place: usize, held: u64) -> RangeInclusive<u64> {
        let Some(times) = &self.times else { return 0..=u64::MAX };
        let [made, sent] = times.reports[place];
        // Sent in the same millisecond, it may have come after the question.
        let idle_after = |moment: u64| {
            let idle = times.idle.partition_point(|[asked, _]| *asked <= moment);
            times.idle.get(idle).map(|[_, answered]| *answered)
        };
        // It is held from when it was taken, of which only the latest possible time is known.
        let idle = idle_after(sent).and_then(|taken| match held {
            0 => Some(taken),
            held => idle_after(taken.saturating_add(held)),
        });
        let settled = times.settled.partition_point(|settled| *settled <= sent);
        let ends = idle.into_iter().chain(times.settled.get(settled).copied());
        made..=ends.min().unwrap_or(u64::MAX)
    }

    /// Sets when reports were made and last sent, by place, and when the translator was idle.
    #[cfg(test)]
    pub fn set_times(&mut self, reports: Vec<[u64; 2]>, idle: Vec<[u64; 2]>) {
        assert_eq!(reports.len(), self.entries.len());
        self.times = Some(ReportTimes { reports, idle, settled: Vec::new() });
    }

    /// All reports in order.
    pub fn entries(&self) -> &[JournalEntry] {
        &self.entries
    }

    /// The fate of report `number` of `switch`, for update; `None` if there was no such report.
    pub fn fate_mut(&mut self, switch: u16, number: u32) -> Option<&mut ReportFate> {
        let index = *self.by_switch.get(usize::from(switch))?.get(number as usize)?;
        Some(&mut self.entries[index as usize].fate)
    }

    /// Report `number` of `switch`, for update.
    #[cfg(test)]
    pub fn report_mut(&mut self, switch: u16, number: u32) -> Option<&mut SwitchReport> {
        let index = *self.by_switch.get(usize::from(switch))?.get(number as usize)?;
        Some(&mut self.entries[index as usize].report)
    }

    /// Notes that none of the reports from place `first` on reached the translator.
    pub fn lost_since(&mut self, first: usize) {
        for entry in &mut self.entries[first..] {
            entry.fate.lost = entry.fate.sent;
        }
    }

    /// Reports of a primitive, with their place in the overall order.
    pub fn reports_of_primitive(&self, primitive: Primitive) -> impl Iterator<Item = (usize, &JournalEntry)> {
        self.entries.iter().enumerate().filter(move |(_, e)| e.report.body.primitive() == primitive)
    }

    /// How many reports of a primitive there are.
    pub fn count_reports(&self, primitive: Primitive) -> u64 {
        self.reports_of_primitive(primitive).count() as u64
    }

    /// Reports that, by the records, did not reach the translator.
    pub fn not_arrived(&self) -> u64 {
        self.entries.iter().filter(|e| !e.fate.has_arrived()).count() as u64
    }
}

/// Notes the fate of every report copy in the ledger.
pub fn read_ledger(path: &Path, journal: &mut Journal) -> anyhow::Result<()> {
    let bytes = std::fs::read(path)
        .with_context(|| format!("cannot read the translator's ledger {}", path.display()))?;
    for record in bytes.chunks_exact(RECORD) {
        let reporter = u16::from_be_bytes([record[0], record[1]]);
        let number = u32::from_be_bytes([record[2], record[3], record[4], record[5]]);
        let bit = 1u8.checked_shl(record[6].into()).unwrap_or(0);
        let Some(fate) = journal.fate_mut(reporter.wrapping_sub(1), number) else {
            bail!(
                "the translator's ledger {} names report {number} of reporter {reporter}, which was never made",
                path.display()
            );
        };
        match record[7] {
            r if r == LedgerFate::Dropped as u8 => fate.copies_lost |= bit,
            r if r == LedgerFate::LostByQueuePair as u8 => fate.copies_given_up |= bit,
            r if r == LedgerFate::Corrupted as u8 => {
                fate.copies_lost |= bit;
                fate.copies_damaged |= bit;
            }
            r if r == LedgerFate::Reordered as u8 => fate.copies_moved |= bit,
            // A duplicate changes nothing: a WRITE writes the same again, an atomic is executed once.
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::ReportBody;

    #[test]
    fn a_report_is_under_way_until_the_translator_is_known_to_have_executed_it() {
        let mut journal = Journal::with_times();
        let body = ReportBody::Postcard { flow: 0, hop: 0 };
        assert_eq!(journal.add(SwitchReport { switch: 0, body: body.clone() }), 0);
        journal.set_times(vec![[100, 130]], vec![]);
        assert_eq!(journal.under_way(0, 0), 100..=u64::MAX);
        // Asked before it was last sent, in the same millisecond, and after it.
        journal.set_times(vec![[100, 130]], vec![[120, 125], [130, 135], [150, 155], [160, 165], [300, 310]]);
        assert_eq!(journal.under_way(0, 0), 100..=155);
        // Taken at 155 at the latest, and held from then on.
        assert_eq!(journal.under_way(0, 4), 100..=165);
        assert_eq!(journal.under_way(0, 5), 100..=310);
        // However long it may be held.
        let before = now();
        journal.note_settled();
        assert_eq!(journal.under_way(0, 0), 100..=155);
        assert!((before..=now()).contains(journal.under_way(0, 200).end()));

        let mut untimed = Journal::default();
        untimed.add(SwitchReport { switch: 0, body });
        assert_eq!(untimed.under_way(0, 0), 0..=u64::MAX);
    }

    #[test]
    fn a_report_that_is_sent_again_is_under_way_again() {
        let mut journal = Journal::with_times();
        journal.add(SwitchReport { switch: 3, body: ReportBody::Postcard { flow: 0, hop: 0 } });
        journal.set_times(vec![[100, 100]], vec![[110, 110]]);
        assert_eq!(journal.under_way(0, 0), 100..=110);
        journal.note_sent(3, 1);
        assert_eq!(journal.under_way(0, 0), 100..=110);
        journal.note_sent(3, 0);
        assert_eq!(*journal.under_way(0, 0).end(), u64::MAX);
    }
}
