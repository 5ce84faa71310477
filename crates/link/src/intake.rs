//! Sources of datagrams to a port: a UDP socket, or AF_XDP with a socket behind it.
//!
//! A program at an interface takes plain UDP datagrams to the port before the kernel's network stack sees them
//! ([`crate::xdp`]). It leaves everything else to the kernel: ARP, other ports, and datagrams to this port that are
//! fragmented, have IP options or a tag, or go to an address that the interface got later. A socket at the same port
//! receives these, so nothing is lost that a socket would have received. The socket also sends, so that the kernel's routes
//! and neighbours are used.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dta_proto::batch::PacketBatch;

use crate::link::recv_or_wait;
use crate::udp::Instruction;
use crate::xdp::{EventLimits, EventTables, Mode, ReportForm, Watch, XdpIntake, XdpReceiver};
use crate::{Link, LinkCounters, Result, Scope, UdpConfig, UdpLink};

/// Most batches from AF_XDP before the socket is read.
const BEFORE_THE_SOCKET: u32 = 64;

/// Receives datagrams to one port, and sends from it.
pub struct IntakeLink {
    socket: UdpLink,
    xdp: Option<XdpPart>,
}

struct XdpPart {
    receiver: XdpReceiver,
    interface: String,
    /// Readable when a socket of AF_XDP or the UDP socket is.
    ready: Watch,
    /// Batches since the UDP socket was last read.
    since_socket: u32,
    /// The listener's number in the program, if the program drops unchanged reports for it.
    events: Option<u32>,
    /// Whether the last batch came through the program.
    is_last_by_xdp: bool,
}

/// Opens links at interfaces. Those of one interface share its program and memory, and must be read by one thread.
#[derive(Default)]
pub struct IntakeOpener {
    interfaces: Vec<XdpIntake>,
    mode: Option<Mode>,
    /// The interface whose program drops unchanged reports.
    events: Option<(String, EventLimits)>,
}

impl IntakeOpener {
    /// Opens with XDP programs in this mode; [`IntakeOpener::default`] uses the first possible mode.
    pub fn with_mode(mode: Mode) -> Self {
        Self { mode: Some(mode), ..Self::default() }
    }

    /// Has the program at an interface drop unchanged reports for listeners opened with [`IntakeOpener::open_for_events`].
    /// Must be called before the first link of this interface is opened.
    pub fn drop_unchanged_at(&mut self, interface: &str, limits: EventLimits) {
        self.events = Some((interface.to_owned(), limits));
    }

    /// The tables of the interface that drops unchanged reports, if a link is open there; only the first call returns them.
    pub fn take_event_tables(&mut self) -> Option<EventTables> {
        self.interfaces.iter_mut().find_map(XdpIntake::take_event_tables)
    }

    /// Opens a link for `port` of an interface; 0 lets the kernel choose. `corrupt` is as in [`UdpConfig::for_reports`].
    ///
    /// # Errors
    /// There is no such interface, or it has no IPv4 address; the port is in use; privileges are missing; the
    /// interface has an XDP program, or one of its queues an AF_XDP socket; or the kernel or the driver cannot do it.
    /// Each error says what to do.
    pub fn open(&mut self, interface: &str, port: u16, corrupt: bool) -> Result<IntakeLink> {
        self.open_for_events(interface, port, corrupt, None)
    }

    /// The same; with a `form`, the program at the interface drops unchanged Telemetry Reports of that form.
    ///
    /// # Errors
    /// As [`IntakeOpener::open`].
    pub fn open_for_events(
        &mut self,
        interface: &str,
        port: u16,
        corrupt: bool,
        form: Option<ReportForm>,
    ) -> Result<IntakeLink> {
        let socket = UdpLink::open(&config(interface, port, corrupt))?;
        let intake = self.intake(interface)?;
        let mut receivers = intake.add_listener(socket.local_addr().port(), 1, form)?;
        // Exactly one was asked for.
        let receiver = receivers.remove(0);
        let events = form.map(|_| intake.last_listener());
        IntakeLink::with_xdp(socket, receiver, interface, events)
    }

    /// Opens links for several threads, each with its part of the interface's queues. Datagrams that come through the
    /// sockets behind them are distributed as in [`UdpLink::open_group`].
    ///
    /// # Errors
    /// As [`IntakeOpener::open`] and [`UdpLink::open_group`], and if there are fewer queues than links.
    pub fn open_group(
        &mut self,
        interface: &str,
        port: u16,
        corrupt: bool,
        count: usize,
        choose: &[Instruction],
    ) -> Result<Vec<IntakeLink>> {
        let sockets = UdpLink::open_group(&config(interface, port, corrupt), count, choose)?;
        let port = sockets.first().map_or(port, |socket| socket.local_addr().port());
        let receivers = self.intake(interface)?.add_listener(port, count, None)?;
        let both = sockets.into_iter().zip(receivers);
        both.map(|(socket, receiver)| IntakeLink::with_xdp(socket, receiver, interface, None)).collect()
    }

    /// The open interfaces, and what carries the datagrams of each.
    pub fn descriptions(&self) -> impl Iterator<Item = (&str, String)> {
        self.interfaces.iter().map(|open| (open.interface_name(), open.describe()))
    }

    fn intake(&mut self, interface: &str) -> Result<&mut XdpIntake> {
        let found = self.interfaces.iter().position(|open| open.interface_name() == interface);
        let index = match found {
            Some(index) => index,
            None => {
                let events =
                    self.events.as_ref().filter(|(name, _)| name == interface).map(|(_, limits)| *limits);
                self.interfaces.push(XdpIntake::open(interface, self.mode, events)?);
                self.interfaces.len() - 1
            }
        };
        Ok(&mut self.interfaces[index])
    }
}

/// The configuration of a socket for the datagrams of an interface.
fn config(interface: &str, port: u16, corrupt: bool) -> UdpConfig {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    UdpConfig { interface: Some(interface.into()), ..UdpConfig::for_reports(any, corrupt) }
}

impl From<UdpLink> for IntakeLink {
    fn from(socket: UdpLink) -> Self {
        Self { socket, xdp: None }
    }
}

impl IntakeLink {
    fn with_xdp(
        socket: UdpLink,
        receiver: XdpReceiver,
        interface: &str,
        events: Option<u32>,
    ) -> Result<Self> {
        let ready = Watch::new()?;
        ready.add(socket.as_fd())?;
        receiver.watch_with(&ready)?;
        let interface = interface.into();
        let xdp = XdpPart { receiver, interface, ready, since_socket: 0, events, is_last_by_xdp: false };
        Ok(Self { socket, xdp: Some(xdp) })
    }

    /// Whether the last batch came through the program at an interface, so that its queue chose this link.
    pub fn is_last_by_xdp(&self) -> bool {
        self.xdp.as_ref().is_some_and(|xdp| xdp.is_last_by_xdp)
    }

    /// From now on, another program chooses among the sockets of a [group](IntakeOpener::open_group).
    ///
    /// # Errors
    /// The kernel rejects the program.
    pub fn replace_choice(&self, choose: &[Instruction]) -> Result<()> {
        self.socket.replace_choice(choose)
    }

    /// The listener's number in the program at the interface, if that drops unchanged reports and the last batch came
    /// through it.
    pub fn events_of_last_batch(&self) -> Option<u32> {
        self.xdp.as_ref().filter(|xdp| xdp.is_last_by_xdp).and_then(|xdp| xdp.events)
    }

    /// Confirms to that program that all reports received so far have been processed.
    pub fn confirm_processed(&mut self) {
        if let Some(xdp) = &mut self.xdp {
            xdp.receiver.confirm_processed();
        }
    }

    /// Where it receives, in the form that people write: `ADDRESS:PORT` or `xdp:INTERFACE:PORT`.
    pub fn describe_address(&self) -> String {
        let local = self.socket.local_addr();
        match &self.xdp {
            None => local.to_string(),
            Some(xdp) => format!("xdp:{}:{}", xdp.interface, local.port()),
        }
    }

    /// The socket's address and port.
    pub fn local_addr(&self) -> SocketAddrV4 {
        self.socket.local_addr()
    }

    /// The socket: the only one, or the one behind AF_XDP, which sends.
    pub fn udp_link(&self) -> &UdpLink {
        &self.socket
    }

    /// As [`IntakeLink::udp_link`], for sending.
    pub fn udp_link_mut(&mut self) -> &mut UdpLink {
        &mut self.socket
    }

    fn recv_nonblocking(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        let Self { socket, xdp: Some(xdp) } = self else {
            return self.socket.recv(batch, Some(Duration::ZERO));
        };
        if xdp.since_socket < BEFORE_THE_SOCKET {
            xdp.receiver.take(batch);
            xdp.is_last_by_xdp = true;
            if !batch.is_empty() {
                xdp.since_socket += 1;
                return Ok(batch.len());
            }
            xdp.receiver.check_interface()?;
        }
        let was_due = std::mem::take(&mut xdp.since_socket) == BEFORE_THE_SOCKET;
        xdp.is_last_by_xdp = false;
        if socket.recv(batch, Some(Duration::ZERO))? == 0 && was_due {
            xdp.receiver.take(batch);
            xdp.is_last_by_xdp = true;
        }
        Ok(batch.len())
    }
}

impl AsFd for IntakeLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.xdp.as_ref().map_or_else(|| self.socket.as_fd(), |xdp| xdp.ready.as_fd())
    }
}

impl Link for IntakeLink {
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        recv_or_wait(self, batch, timeout, Self::recv_nonblocking)
    }

    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        self.socket.send(batch)
    }

    fn link_counters(&self) -> LinkCounters {
        let mut counters = self.socket.link_counters();
        if let Some(xdp) = &self.xdp {
            counters.add(&xdp.receiver.receive_counters());
        }
        counters
    }

    fn corruption_scope(&self) -> Scope {
        self.socket.corruption_scope()
    }
}
