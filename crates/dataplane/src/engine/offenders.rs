//! Samples of dropped reports: the first for each reason, for the log.
//!
//! The samples are plain data of a fixed size. Once a reason has one, dropping another report costs one
//! comparison.

use crate::counters::Reason;

/// Length of the stored packet prefix: the longest report fits, from the IPv4 header.
const KEPT: usize = 192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offender {
    len: u8,
    packet: [u8; KEPT],
    admitted: Option<(u16, u16)>,
}

impl Offender {
    /// The packet from its IPv4 header on, cut off at the length of the longest report; empty if the report
    /// arrived parsed.
    pub fn offending_packet(&self) -> &[u8] {
        &self.packet[..usize::from(self.len)]
    }

    /// Reporter and store of a report that arrived parsed ([`Engine::execute_unnumbered`](super::Engine::execute_unnumbered)).
    pub fn reporter_and_store(&self) -> Option<(u16, u16)> {
        self.admitted
    }
}

/// The first report dropped for each reason since the samples were last taken.
pub(super) struct Offenders {
    first: [Option<Offender>; Reason::ALL.len()],
}

impl Offenders {
    pub(super) fn new() -> Offenders {
        Offenders { first: [None; Reason::ALL.len()] }
    }

    /// Stores a packet if it is the first for its reason.
    #[inline]
    pub(super) fn note_packet(&mut self, reason: Reason, packet: &[u8]) {
        let first = &mut self.first[reason as usize];
        if first.is_none() {
            let len = packet.len().min(KEPT);
            let mut offender = Offender { len: len as u8, packet: [0; KEPT], admitted: None };
            offender.packet[..len].copy_from_slice(&packet[..len]);
            *first = Some(offender);
        }
    }

    /// Stores a report that arrived parsed if it is the first for its reason.
    #[inline]
    pub(super) fn note_admitted(&mut self, reason: Reason, reporter: u16, store: u16) {
        let admitted = Some((reporter, store));
        self.first[reason as usize].get_or_insert(Offender { len: 0, packet: [0; KEPT], admitted });
    }

    pub(super) fn take(&mut self) -> impl Iterator<Item = (Reason, Offender)> + '_ {
        let reasons = Reason::ALL.iter().zip(&mut self.first);
        reasons.filter_map(|(reason, first)| Some((*reason, first.take()?)))
    }
}
