//! What receives for INT and flows: a UDP socket of either family, or an interface by AF_XDP.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dta_link::udp::Instruction;
use dta_link::xdp::ReportForm;
use dta_link::{IntakeLink, IntakeOpener, Link, LinkCounters, LinkError, UdpListener};
use dta_proto::batch::PacketBatch;

use crate::config::{ListenAddress, XdpAddress};

/// Longest datagram received: a jumbo frame's. The link counts longer ones.
pub(super) const RECEIVED: usize = 9216;

pub(super) enum TelemetryListener {
    Udp(Box<UdpListener>),
    Xdp(Box<IntakeLink>),
}

impl TelemetryListener {
    /// Opens a listener whose datagrams `steering` deals out to this many workers. `interfaces` has the
    /// interfaces that are open. At an interface, each worker has its share of the queues; with a `form`,
    /// which is only for a single worker, unchanged reports are dropped there.
    ///
    /// # Errors
    /// A port in use, an address that is not of this host, or as [`IntakeOpener::open`].
    pub(super) fn open_for_workers(
        address: &ListenAddress,
        form: Option<ReportForm>,
        workers: usize,
        steering: &[Instruction],
        interfaces: &mut IntakeOpener,
    ) -> Result<Vec<TelemetryListener>, LinkError> {
        match address {
            ListenAddress::Udp(address) => {
                let group = UdpListener::open_group(*address, workers, steering)?;
                Ok(group.into_iter().map(|listener| TelemetryListener::Udp(Box::new(listener))).collect())
            }
            ListenAddress::Xdp(XdpAddress { interface, port }) => {
                let links = match workers {
                    1 => vec![interfaces.open_for_events(interface, *port, false, form)?],
                    _ => interfaces.open_group(interface, *port, false, workers, steering)?,
                };
                Ok(links.into_iter().map(|link| TelemetryListener::Xdp(Box::new(link))).collect())
            }
        }
    }

    /// Where it receives, as people write it.
    pub(super) fn describe_address(&self) -> String {
        match self {
            TelemetryListener::Udp(listener) => listener.local_addr().to_string(),
            TelemetryListener::Xdp(link) => link.describe_address(),
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        match self {
            TelemetryListener::Udp(listener) => listener.as_fd(),
            TelemetryListener::Xdp(link) => link.as_fd(),
        }
    }

    pub(super) fn is_at_interface(&self) -> bool {
        matches!(self, TelemetryListener::Xdp(_))
    }

    /// Whether the last batch was dealt out by the interface's queues.
    pub(super) fn is_last_by_queue(&self) -> bool {
        match self {
            TelemetryListener::Udp(_) => false,
            TelemetryListener::Xdp(link) => link.is_last_by_xdp(),
        }
    }

    /// The program's number of events of the last batch, where one drops unchanged reports.
    pub(super) fn events_of_last_batch(&self) -> Option<u32> {
        match self {
            TelemetryListener::Udp(_) => None,
            TelemetryListener::Xdp(link) => link.events_of_last_batch(),
        }
    }

    /// Tells a program that drops unchanged reports to judge again, since those of the last batch are processed.
    pub(super) fn confirm_processed(&mut self) {
        if let TelemetryListener::Xdp(link) = self {
            link.confirm_processed();
        }
    }

    /// Replaces the contents of `batch` by what has arrived, without waiting; returns the number of datagrams.
    pub(super) fn recv(&mut self, batch: &mut PacketBatch) -> Result<usize, LinkError> {
        match self {
            TelemetryListener::Udp(listener) => listener.recv(batch, Some(Duration::ZERO)),
            TelemetryListener::Xdp(link) => link.recv(batch, Some(Duration::ZERO)),
        }
    }

    /// Deals out datagrams by another program from now on.
    pub(super) fn replace_steering(&self, steering: &[Instruction]) -> Result<(), LinkError> {
        match self {
            TelemetryListener::Udp(listener) => listener.replace_choice(steering),
            TelemetryListener::Xdp(link) => link.replace_choice(steering),
        }
    }

    fn link_counters(&self) -> LinkCounters {
        match self {
            TelemetryListener::Udp(listener) => listener.link_counters(),
            TelemetryListener::Xdp(link) => link.link_counters(),
        }
    }
}

/// Counters of listeners, summed.
pub(super) fn sum_link_counters<'a>(listeners: impl Iterator<Item = &'a TelemetryListener>) -> LinkCounters {
    listeners.fold(LinkCounters::default(), |mut sum, listener| {
        sum.add(&listener.link_counters());
        sum
    })
}
