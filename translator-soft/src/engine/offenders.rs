//! Who sent the reports that are dropped: the first of each reason, for somebody to be told.
//!
//! What is kept is plain data of a fixed size. A report that is dropped for a reason of which one is
//! kept already costs a look at one word.

use crate::counters::Reason;

/// Bytes of a packet that are kept: the longest report has fewer, from the IPv4 header on.
const KEPT: usize = 192;

/// One report that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offender {
    len: u8,
    packet: [u8; KEPT],
    admitted: Option<(u16, u16)>,
}

impl Offender {
    /// Its packet, from the IPv4 header on, cut off behind the longest report; empty if it came
    /// parsed.
    pub fn packet(&self) -> &[u8] {
        &self.packet[..usize::from(self.len)]
    }

    /// Reporter and store of one that came parsed ([`Engine::execute`](super::Engine::execute)).
    pub fn admitted(&self) -> Option<(u16, u16)> {
        self.admitted
    }
}

/// The first report that was dropped for each reason since they were last taken.
pub(super) struct Offenders {
    first: [Option<Offender>; Reason::ALL.len()],
}

impl Offenders {
    pub(super) fn new() -> Offenders {
        Offenders { first: [None; Reason::ALL.len()] }
    }

    /// Notes a packet, if it is the first of its reason.
    #[inline]
    pub(super) fn note(&mut self, reason: Reason, packet: &[u8]) {
        let first = &mut self.first[reason as usize];
        if first.is_none() {
            let len = packet.len().min(KEPT);
            let mut offender = Offender { len: len as u8, packet: [0; KEPT], admitted: None };
            offender.packet[..len].copy_from_slice(&packet[..len]);
            *first = Some(offender);
        }
    }

    /// Notes a report that came parsed, if it is the first of its reason.
    #[inline]
    pub(super) fn note_admitted(&mut self, reason: Reason, reporter: u16, store: u16) {
        let admitted = Some((reporter, store));
        self.first[reason as usize].get_or_insert(Offender { len: 0, packet: [0; KEPT], admitted });
    }

    /// Gives them, and forgets them.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (Reason, Offender)> + '_ {
        let reasons = Reason::ALL.iter().zip(&mut self.first);
        reasons.filter_map(|(reason, first)| Some((*reason, first.take()?)))
    }
}
