//! How a reporter is set up.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use dta_link::fault::Faults;
use dta_proto::wire::dta::{NACK_PORT_V0, Version};

/// How a reporter is set up. [`Config::new`] gives what is usual; change the fields that differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The translator's service address; its port is 40040 unless it was set up otherwise.
    pub translator: SocketAddrV4,
    /// Where reports leave from and version-1 NACKs come to. For the unspecified address, the one
    /// that the host's routes choose towards the translator is taken when the reporter is opened;
    /// port 0 lets the kernel choose.
    pub bind: SocketAddrV4,
    /// Version of the report format.
    pub version: Version,
    /// This reporter's id (version 1). The translator tells reporters apart by it: no two of one
    /// translator may have the same.
    pub reporter: u16,
    /// Sequence of the first report; `None` takes one from the clock. A reporter that starts again
    /// from the same port has to begin elsewhere than it was, or the translator takes its reports
    /// for repeats.
    pub first_sequence: Option<u32>,
    /// What holds for reports that [`Reporter::report`](crate::Reporter::report) sends.
    pub options: Options,
    /// Retransmittable reports kept for retransmission, rounded up to a power of two; in version 0
    /// at most 256, as many as its sequences tell apart. With 0 no report is kept and every NACK
    /// finds nothing.
    pub backup: usize,
    /// Reports sent again in a second at most, 0 for as many as are asked for. Twice as many as one
    /// NACK can ask for may leave at once. NACKs are not authenticated: this bounds what they can
    /// cost.
    pub resends_per_second: u32,
    /// Reports per batch, at least 1: a full batch is sent at once, an unfilled one at
    /// [`Reporter::flush`](crate::Reporter::flush).
    pub batch: usize,
    /// Whether reports that follow each other and have one length leave as one message, which the kernel
    /// cuts, where it can: several times as many a second.
    pub runs: bool,
    /// Whether reports of one length are put behind each other in their batch, so that runs are long
    /// where lengths are mixed. Reports of one store keep their order. They are numbered as they
    /// leave: what [`Reporter::report`](crate::Reporter::report) gives is one of the sequences of its batch then, and not
    /// always the report's own.
    pub gather: bool,
    /// UDP port for version-0 NACKs, at the address of `bind`. Opened in version 0 when `backup` is not 0.
    pub nack_port_v0: u16,
    /// Faults that reports suffer on their way out, for tests.
    pub faults: Faults,
    /// Seed of the faults.
    pub seed: u64,
}

impl Config {
    /// Version 1, reporter 0, batches of 64, no faults, a backup of 4,096 reports, from any free port.
    pub fn new(translator: SocketAddrV4) -> Self {
        Config {
            translator,
            bind: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
            version: Version::V1,
            reporter: 0,
            first_sequence: None,
            options: Options::default(),
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

    /// The same with an address to send from.
    pub fn bind(self, bind: SocketAddrV4) -> Self {
        Config { bind, ..self }
    }

    pub(crate) fn nack_bind_v0(&self, source: Ipv4Addr) -> Option<SocketAddr> {
        (self.version == Version::V0 && self.backup > 0)
            .then(|| SocketAddrV4::new(source, self.nack_port_v0).into())
    }
}

/// What holds for one report beside its contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Keep the report and send it again when the translator misses it.
    pub retransmittable: bool,
    /// Wake a reader now: the translator writes it with an immediate. Lists marked `notify` alone do
    /// that; elsewhere the report is written all the same, and the translator counts the wish.
    pub immediate: bool,
}
