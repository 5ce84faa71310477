//! Configuration of a reporter.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use dta_link::fault::Faults;
use dta_proto::wire::dta::{NACK_PORT_V0, Version};

/// Configuration of a reporter. [`Config::new`] gives the usual one; change only the fields that differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The translator's service address; its port is 40040 unless configured otherwise.
    pub translator: SocketAddrV4,
    /// Source address of reports and destination of version-1 NACKs. An unspecified address is replaced, when
    /// the reporter is opened, by the one that the host's routes choose towards the translator; with port 0,
    /// the kernel chooses a port.
    pub bind: SocketAddrV4,
    /// Version of the report format.
    pub version: Version,
    /// This reporter's id (version 1). It must be unique at the translator.
    pub reporter: u16,
    /// Sequence of the first report; `None` derives one from the clock. A reporter restarted on the same port
    /// must start elsewhere, or the translator takes its reports for repeats.
    pub first_sequence: Option<u32>,
    /// Options for reports that [`Reporter::report`](crate::Reporter::report) sends.
    pub options: ReportOptions,
    /// Number of retransmittable reports to keep, rounded up to a power of two; in version 0 at most 256,
    /// because its sequences distinguish no more. With 0, none is kept and no NACK can be answered.
    pub backup: usize,
    /// Most retransmissions per second; 0 = unlimited. Twice as many as one NACK can request may be sent at
    /// once. NACKs are not authenticated: this bounds what they can cost.
    pub resends_per_second: u32,
    /// Reports per batch, at least 1: a full batch is sent at once, a partial one by
    /// [`Reporter::flush`](crate::Reporter::flush).
    pub batch: usize,
    /// Whether consecutive reports of one length are sent as one message that the kernel cuts, if it can:
    /// several times as many per second.
    pub runs: bool,
    /// Whether to group reports of one length within their batch, for longer runs when lengths are mixed.
    /// Reports for one store keep their order. Reports are numbered in sending order:
    /// [`Reporter::report`](crate::Reporter::report) then returns one of the sequences of its batch, which
    /// need not be the report's own.
    pub gather: bool,
    /// UDP port for version-0 NACKs, at the address of `bind`. Opened in version 0 when `backup` is not 0.
    pub nack_port_v0: u16,
    /// Faults on outgoing reports, for tests.
    pub faults: Faults,
    /// Seed for the faults.
    pub seed: u64,
}

impl Config {
    /// Version 1, reporter 0, batches of 64, no faults, a backup of 4,096 reports, any free port as source.
    pub fn new(translator: SocketAddrV4) -> Self {
        Config {
            translator,
            bind: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
            version: Version::V1,
            reporter: 0,
            first_sequence: None,
            options: ReportOptions::default(),
            backup: 4096,
            resends_per_second: 20_000,
            batch: dta_proto::batch::SLOTS,
            runs: true,
            gather: false,
            nack_port_v0: NACK_PORT_V0,
            faults: Faults::NONE,
            seed: 0,
        }
    }

    /// The same with a source address.
    pub fn bind(self, bind: SocketAddrV4) -> Self {
        Config { bind, ..self }
    }

    pub(crate) fn nack_bind_v0(&self, source: Ipv4Addr) -> Option<SocketAddr> {
        (self.version == Version::V0 && self.backup > 0)
            .then(|| SocketAddrV4::new(source, self.nack_port_v0).into())
    }
}

/// Options of one report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportOptions {
    /// Keep the report and retransmit it if the translator misses it.
    pub retransmittable: bool,
    /// Wake a reader now: the translator writes the report with an immediate. Only lists marked `notify` do
    /// that; for other stores the report is written as usual, and the translator counts the request.
    pub immediate: bool,
}
