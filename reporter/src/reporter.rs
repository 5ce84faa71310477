//! The reporter: numbers reports, sends them in batches and retransmits them.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dta_link::fault::{FaultInjector, FaultOutcome};
use dta_link::{Link, LinkError, RunUse, UdpConfig, UdpLink};
use dta_proto::batch::{Addresses, PacketBatch};
use dta_proto::wire;
use dta_proto::wire::datagram;
use dta_proto::wire::dta::{DtaBody, DtaReport, MAX_REPORT_LEN, Nack, ReportFields, Version};

use crate::backup::{Backup, BackupLookup};
use crate::gather::Gather;
use crate::pace::Pacer;
use crate::{Config, ReportOptions, ReporterCounters};

/// Offset of the flags in a report.
pub(crate) const FLAGS: usize = 2;
/// Bit 5: the reporter has restarted.
const RESTARTED: u8 = 0x20;
/// Bit 6: the report is kept and can be retransmitted.
pub(crate) const RETRANSMITTABLE: u8 = 0x40;

/// Number of initial reports with the restart bit in version 1. The first one to arrive counts, so that a loss does
/// no harm. In version 0 only one has it, because each of them restarts the sequence.
const RESTARTED_V1: u8 = 8;

/// Bit of a cookie above the 32 of the sequence: a retransmission.
pub(crate) const AGAIN: u64 = 1 << 32;

/// Size of the NACK receive queue in bytes.
const NACK_QUEUE: usize = 256 << 10;

/// NACKs read from the socket at a time.
const NACKS: usize = 64;
/// Most reads per poll, and most sequences looked up per poll: the rest waits for the next.
const NACK_ROUNDS: usize = 4;
const LOOKUPS: u32 = 4096;
/// Most retransmissions at once: twice as many as a translator's NACK requests.
const RESENDS_AT_ONCE: u64 = 2048;

/// Number of sequences in version 0.
const SEQUENCES_V0: usize = 256;

/// Why a reporter could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The socket for sending reports.
    #[error("cannot open the reporter's socket: {0}")]
    Socket(#[from] LinkError),
    /// The socket for version-0 NACKs.
    #[error(
        "cannot receive version-0 NACKs: {0}. One reporter per address can have them; use version 1, another address to bind, or a backup of 0"
    )]
    NackSocket(LinkError),
    /// No route to the translator.
    #[error("no route to the translator at {translator}: {source}")]
    NoRoute {
        /// Its configured address.
        translator: SocketAddrV4,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// A datagram whose fate the injector decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentDatagram {
    /// The report's sequence, as [`Reporter::report`] gave it.
    pub sequence: u32,
    /// Whether it is a retransmission.
    pub again: bool,
}

/// Receives the fate of each datagram that a reporter sends.
pub type Observer = Box<dyn FnMut(FaultOutcome, SentDatagram) + Send>;

/// Sends reports to one translator. Single-threaded; several reporters need different ids.
pub struct Reporter {
    config: Config,
    source: SocketAddrV4,
    link: UdpLink,
    nack_link: Option<UdpLink>,
    batch: PacketBatch,
    gather: Option<Gather>,
    nacks: PacketBatch,
    backup: Backup,
    resends: Pacer,
    /// Sequences that may still be looked up in this poll.
    lookups: u32,
    injector: FaultInjector,
    observer: Option<Observer>,
    next: u32,
    /// Remaining reports to be marked as restarted.
    restarted: u8,
    /// Whether a retransmittable report was sent, so that NACKs are possible.
    keeps: bool,
    /// The error from sending a full batch, until it can be returned.
    trouble: Option<LinkError>,
    counters: ReporterCounters,
}

impl Reporter {
    /// Opens the sockets and allocates everything.
    ///
    /// # Errors
    /// The address is not of this host, a port is in use, there is no route, or a privilege is
    /// missing (for corrupt faults).
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let from = match *config.bind.ip() {
            Ipv4Addr::UNSPECIFIED => route_source(config.translator)?,
            given => given,
        };
        let bind = SocketAddrV4::new(from, config.bind.port());
        let reports = UdpConfig {
            receive_buffer: NACK_QUEUE,
            // NACKs are few, and the kernel must count each one that it drops.
            runs: RunUse { send: config.runs, receive: false },
            ..UdpConfig::for_reports(bind.into(), config.faults.can_corrupt())
        };
        let link = UdpLink::open(&reports)?.without_waiting();
        let nack_link = match config.nack_bind_v0(from) {
            Some(bind) => {
                let nacks = UdpConfig {
                    receive_buffer: NACK_QUEUE,
                    runs: RunUse::NONE,
                    ..UdpConfig::for_reports(bind, false)
                };
                Some(UdpLink::open(&nacks).map_err(OpenError::NackSocket)?)
            }
            None => None,
        };
        let backup = match config.version {
            Version::V0 => config.backup.min(SEQUENCES_V0),
            Version::V1 => config.backup,
        };
        Ok(Reporter {
            source: link.local_addr(),
            batch: PacketBatch::with_packet_capacity(
                config.batch.max(1),
                datagram::HEADER_LEN + MAX_REPORT_LEN,
            ),
            gather: config.gather.then(|| Gather::new(config.version, config.batch.max(1))),
            nacks: PacketBatch::with_packet_capacity(NACKS, datagram::HEADER_LEN + 64),
            backup: Backup::new(backup),
            resends: Pacer::with_burst(config.resends_per_second.into(), RESENDS_AT_ONCE, Instant::now()),
            lookups: 0,
            injector: FaultInjector::new(config.faults, config.seed, link.corruption_scope()),
            observer: None,
            next: config.first_sequence.unwrap_or_else(sequence_of_now),
            restarted: match config.version {
                Version::V0 => 1,
                Version::V1 => RESTARTED_V1,
            },
            keeps: false,
            trouble: None,
            counters: ReporterCounters::default(),
            config,
            link,
            nack_link,
        })
    }

    /// From now on reports the fate of each datagram to `observer` once the injector has decided it.
    pub fn set_observer(&mut self, observer: impl FnMut(FaultOutcome, SentDatagram) + Send + 'static) {
        self.observer = Some(Box::new(observer));
    }

    /// Source of reports and destination of version-1 NACKs.
    pub fn local_addr(&self) -> SocketAddrV4 {
        self.source
    }

    /// Accepts a report for `store` (version 0 names none: the translator's configuration does), with the
    /// configured options. Returns its sequence. It is sent with its batch, once that is full or by
    /// [`Reporter::flush`].
    ///
    /// # Errors
    /// The format cannot express it: the error names the field. No sequence is used.
    #[inline]
    pub fn report(&mut self, store: u16, body: DtaBody<'_>) -> wire::Result<u32> {
        self.report_with(store, body, self.config.options)
    }

    /// As [`Reporter::report`], with specific options.
    ///
    /// # Errors
    /// As [`Reporter::report`].
    #[inline]
    pub fn report_with(
        &mut self,
        store: u16,
        body: DtaBody<'_>,
        options: ReportOptions,
    ) -> wire::Result<u32> {
        let sequence = self.next;
        let (store, reporter) = match self.config.version {
            Version::V0 => (0, 0),
            Version::V1 => (store, self.config.reporter),
        };
        let report = DtaReport {
            version: self.config.version,
            immediate: options.immediate,
            retransmittable: options.retransmittable,
            restarted: self.restarted > 0,
            sequence,
            reporter,
            store,
            body,
        };
        let slot = self.batch.next_slot().expect("a full batch is sent at once");
        let (head, payload) = slot.split_at_mut(datagram::HEADER_LEN);
        let len = match report.encode_into(payload) {
            Ok(len) => len,
            Err(error) => {
                self.counters.refused += 1;
                return Err(error);
            }
        };
        head.copy_from_slice(&datagram::encode_header(self.source, self.config.translator, len));
        if options.retransmittable {
            // If reports are renumbered, they are kept when they are sent.
            if self.gather.is_none() {
                self.backup.retain_report(sequence, &payload[..len]);
            }
            self.keeps = true;
        }
        self.commit_report(len);
        Ok(sequence)
    }

    /// Adds the report of `len` bytes in the batch's next slot, and sends the batch if it is full.
    #[inline]
    fn commit_report(&mut self, len: usize) {
        let addresses = Addresses::new(self.source, self.config.translator);
        self.batch.commit_datagram(datagram::HEADER_LEN + len, addresses, self.next.into());
        self.next = self.next.wrapping_add(1);
        self.restarted = self.restarted.saturating_sub(1);
        self.counters.reports += 1;
        if self.batch.is_full() {
            self.send_batch();
            if self.keeps {
                self.take_nacks();
            }
        }
    }

    /// Accepts `count` reports for `store` that equal `first` except for what `fill` writes: it receives each
    /// report's index, from 0, and its [`ReportFields`], which contain `first`'s values and lie in the send buffer.
    /// So nothing is copied, and since all reports have one length, they are sent as runs
    /// ([`Config::runs`](crate::Config::runs)), with the configured options. Returns the sequence of the first.
    ///
    /// # Errors
    /// The format cannot express `first`: the error names the field. No sequence is used.
    #[inline]
    pub fn report_many(
        &mut self,
        store: u16,
        first: DtaBody<'_>,
        count: usize,
        mut fill: impl FnMut(usize, ReportFields<'_>),
    ) -> wire::Result<u32> {
        let version = self.config.version;
        let (store, reporter) = match version {
            Version::V0 => (0, 0),
            Version::V1 => (store, self.config.reporter),
        };
        let ReportOptions { immediate, retransmittable } = self.config.options;
        let report = DtaReport {
            version,
            immediate,
            retransmittable,
            restarted: false,
            sequence: 0,
            reporter,
            store,
            body: first,
        };
        let mut like = [0; datagram::HEADER_LEN + MAX_REPORT_LEN];
        let (head, payload) = like.split_at_mut(datagram::HEADER_LEN);
        let len = report.encode_into(payload).inspect_err(|_| self.counters.refused += count as u64)?;
        head.copy_from_slice(&datagram::encode_header(self.source, self.config.translator, len));
        let like = &like[..datagram::HEADER_LEN + len];
        let begin = self.next;
        self.keeps |= retransmittable && count > 0;
        for number in 0..count {
            let slot = self.batch.next_slot().expect("a full batch is sent at once");
            slot[..like.len()].copy_from_slice(like);
            let payload = &mut slot[datagram::HEADER_LEN..like.len()];
            number_report(version, payload, self.next);
            payload[FLAGS] |= if self.restarted > 0 { RESTARTED } else { 0 };
            if let Some(fields) = ReportFields::from_report(version, first.primitive(), payload) {
                fill(number, fields);
            }
            if retransmittable && self.gather.is_none() {
                self.backup.retain_report(self.next, payload);
            }
            self.commit_report(len);
        }
        Ok(begin)
    }

    /// Sends the current batch, then does the same as [`Reporter::poll`]. Does not wait.
    ///
    /// # Errors
    /// As [`Reporter::poll`].
    pub fn flush(&mut self) -> Result<(), LinkError> {
        self.send_batch();
        self.poll()
    }

    /// Reads NACKs that have arrived, retransmits what they request, and sends frames that the injector has held
    /// long enough. Does not wait. Call it now and then while there is nothing to report.
    ///
    /// # Errors
    /// A socket error, possibly from sending a full batch since the last call. It is permanent, such as a missing
    /// privilege. Unsent reports are counted by reason.
    pub fn poll(&mut self) -> Result<(), LinkError> {
        // Without retransmittable reports there are no NACKs; this saves a system call per batch.
        if self.keeps {
            self.take_nacks();
        }
        if self.batch.is_empty() && self.injector.fault_counts().held > 0 {
            self.send_batch();
        }
        self.trouble.take().map_or(Ok(()), Err)
    }

    /// Waits for NACKs for the given time, and answers them.
    ///
    /// # Errors
    /// As [`Reporter::poll`].
    pub fn answer_nacks_for(&mut self, time: Duration) -> Result<(), LinkError> {
        let end = Instant::now() + time;
        loop {
            self.flush()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            // Frames held by the injector must still be sent during the wait.
            let step =
                if self.injector.fault_counts().held > 0 { left.min(dta_link::fault::HOLD) } else { left };
            dta_link::wait_readable(&[self.nack_fd()], Some(step))?;
        }
    }

    /// Sends everything, including what the injector holds. Returns the final counters.
    ///
    /// # Errors
    /// As [`Reporter::poll`].
    pub fn close(mut self) -> Result<ReporterCounters, LinkError> {
        let flushed = self.flush();
        let Reporter { injector, observer, link, .. } = &mut self;
        link.send(injector.flush_held_frames(observer_callback(observer)))?;
        flushed.map(|()| self.counters())
    }

    /// The counters.
    pub fn counters(&self) -> ReporterCounters {
        ReporterCounters {
            pending: self.batch.len() as u64,
            fault: self.injector.fault_counts(),
            link: self.link.link_counters(),
            ..self.counters
        }
    }

    /// Becomes readable when a NACK arrives: for an event loop.
    pub fn nack_fd(&self) -> BorrowedFd<'_> {
        self.nack_link.as_ref().unwrap_or(&self.link).as_fd()
    }

    fn send_batch(&mut self) {
        let Reporter { injector, observer, link, batch, gather, backup, trouble, .. } = self;
        let batch = match gather {
            Some(gather) => gather.put_in_order(batch, backup),
            None => batch,
        };
        let leaving = injector.apply_to_batch(batch, Instant::now(), observer_callback(observer));
        if !leaving.is_empty()
            && let Err(error) = link.send(leaving)
        {
            *trouble = Some(error);
        }
    }

    fn take_nacks(&mut self) {
        self.lookups = LOOKUPS;
        for _ in 0..NACK_ROUNDS {
            if self.lookups == 0 {
                break;
            }
            let link = self.nack_link.as_mut().unwrap_or(&mut self.link);
            let received = match link.recv(&mut self.nacks, Some(Duration::ZERO)) {
                Ok(received) => received,
                Err(error) => {
                    self.trouble = Some(error);
                    return;
                }
            };
            for index in 0..received {
                self.take_nack(index);
            }
            if received < self.nacks.slot_count() {
                break;
            }
        }
        // Requested reports are sent now, not with the next report.
        if !self.batch.is_empty() {
            self.send_batch();
        }
    }

    fn take_nack(&mut self, index: usize) {
        let Some(datagram) = self.nacks.udp_datagram(index) else {
            self.counters.nack_malformed += 1;
            return;
        };
        let from = datagram.source();
        let (first, count) = match (Nack::parse_payload(datagram.payload()), self.config.version) {
            (Ok(Nack::V0 { sequence }), Version::V0) => (self.latest_with(sequence), 1),
            (Ok(Nack::V1 { reporter, first, count }), Version::V1) => {
                if reporter != self.config.reporter {
                    self.counters.nack_foreign += 1;
                    return;
                }
                (first, count)
            }
            _ => {
                self.counters.nack_malformed += 1;
                return;
            }
        };
        if from != self.config.translator {
            self.counters.nack_foreign += 1;
            return;
        }
        self.counters.nacks += 1;
        self.counters.nacked += u64::from(count);
        let (first, kept) = self.backup.retained_range(first, count, self.next);
        self.counters.nack_unavailable += u64::from(u32::from(count) - kept);
        let looked_for = kept.min(self.lookups);
        self.lookups -= looked_for;
        self.counters.nack_refused += u64::from(kept - looked_for);
        let now = Instant::now();
        for n in 0..looked_for {
            self.send_again(first.wrapping_add(n), now);
        }
    }

    /// The last sequence sent whose low 8 bits are these.
    fn latest_with(&self, low: u8) -> u32 {
        let last = self.next.wrapping_sub(1);
        last.wrapping_sub(u32::from((last as u8).wrapping_sub(low)))
    }

    fn send_again(&mut self, sequence: u32, now: Instant) {
        let report = match self.backup.take(sequence) {
            BackupLookup::Report(report) => report,
            BackupLookup::Nothing => {
                self.counters.nack_unavailable += 1;
                return;
            }
            BackupLookup::Enough => {
                self.counters.nack_refused += 1;
                return;
            }
        };
        if self.resends.grant_reports(1, now) == 0 {
            self.counters.nack_refused += 1;
            return;
        }
        // A full batch was sent at once, so there is room.
        if self
            .batch
            .push_datagram(self.source, self.config.translator, report, u64::from(sequence) | AGAIN)
            .is_ok()
        {
            // A retransmission does not restart the sequence: the translator has later reports.
            let at = self.batch.len() - 1;
            self.batch.packet_mut(at)[datagram::HEADER_LEN + FLAGS] &= !RESTARTED;
            self.counters.retransmitted += 1;
        }
        if self.batch.is_full() {
            self.send_batch();
        }
    }
}

/// Writes the sequence into a report.
#[inline]
pub(crate) fn number_report(version: Version, report: &mut [u8], sequence: u32) {
    report[1] = sequence as u8;
    if version == Version::V1 {
        report[8..12].copy_from_slice(&sequence.to_be_bytes());
    }
}

/// Calls the observer with what the injector reports.
fn observer_callback(observer: &mut Option<Observer>) -> impl FnMut(FaultOutcome, u64, &[u8]) {
    move |fate, cookie, _| {
        if let Some(observer) = observer {
            observer(fate, SentDatagram { sequence: cookie as u32, again: cookie & AGAIN != 0 });
        }
    }
}

/// An initial sequence from the time in microseconds. A restarted reporter starts beyond its old position unless it
/// sent more than a million reports per second, and avoids the same numbers for 71 minutes.
fn sequence_of_now() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u32
}

/// The address that the host's routes choose towards the translator. Connecting a UDP socket sends nothing.
fn route_source(translator: SocketAddrV4) -> Result<Ipv4Addr, OpenError> {
    let route = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(translator)?;
        socket.local_addr()
    };
    match route().map_err(|source| OpenError::NoRoute { translator, source })? {
        std::net::SocketAddr::V4(address) => Ok(*address.ip()),
        // Does not occur: an IPv4 socket has an IPv4 address.
        std::net::SocketAddr::V6(_) => Ok(Ipv4Addr::UNSPECIFIED),
    }
}
