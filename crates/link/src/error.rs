//! Errors of a link, and what to do about them.

use std::io;
use std::net::SocketAddr;

pub type Result<T> = std::result::Result<T, LinkError>;

/// Why a link could not be opened or used. Losses of single datagrams are not errors; they are counted
/// ([`crate::LinkCounters`]).
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Another socket has this address and port.
    #[error(
        "UDP port {} of {} is in use by another program; stop it (`ss -ulpn 'sport = :{}'` names it) or choose \
         another port or address",
        .0.port(), .0.ip(), .0.port()
    )]
    PortInUse(SocketAddr),
    /// No interface of this host, or of this network namespace, has the address.
    #[error("{} is not an address of this host; `ip address` lists its addresses", .0.ip())]
    NotLocal(SocketAddr),
    /// A port below `net.ipv4.ip_unprivileged_port_start` without CAP_NET_BIND_SERVICE.
    #[error("UDP port {} needs CAP_NET_BIND_SERVICE; run as root or choose a port from 1024 on", .0.port())]
    PrivilegedPort(SocketAddr),
    /// Sockets for reports and their NACKs use IPv4.
    #[error("{0} is an IPv6 address; reports and NACKs go over IPv4 only: use an IPv4 address")]
    Ipv6(SocketAddr),
    /// The program lacks CAP_NET_RAW.
    #[error("{0} need CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep` the program")]
    NeedsNetRaw(&'static str),
    /// No such interface in this network namespace.
    #[error("there is no interface {0}; `ip link` lists the existing ones")]
    NoInterface(String),
    /// More ports than the packet filter supports.
    #[error("{0} UDP ports are more than the {max} that a raw-frame link can listen to", max = crate::packet::PORTS_MAX)]
    TooManyPorts(usize),
    /// A missing privilege that AF_XDP needs.
    #[error(
        "{what} on {interface} needs {capability}; run as root, or \
         `setcap cap_net_raw,cap_net_admin,cap_bpf+ep` the program"
    )]
    NeedsXdp { what: &'static str, interface: String, capability: &'static str },
    /// Another program has an XDP program on the interface.
    #[error(
        "interface {0} already has an XDP program; stop its owner (`bpftool net list dev {0}` names the \
        program), remove it with `ip link set dev {0} xdp off`, or do without AF_XDP: \"packet:{0}\" for \
        frames, a UDP address for a listener"
    )]
    XdpInUse(String),
    /// Another AF_XDP socket uses a queue of the interface.
    #[error(
        "queue {queue} of {interface} already has an AF_XDP socket; stop its program (`ss --xdp -p` names \
        it), or do without AF_XDP: \"packet:{interface}\" for frames, a UDP address for a listener"
    )]
    QueueInUse {
        interface: String,
        /// Its receive queue, from 0.
        queue: u32,
    },
    /// The interface's MTU is too large for AF_XDP.
    #[error(
        "{interface} has an MTU of {mtu} bytes, and AF_XDP supports at most {most}; set a lower MTU \
         (`ip link set dev {interface} mtu {most}`), or do without it: \"packet:{interface}\" for frames, a UDP \
         address for a listener"
    )]
    XdpMtu {
        interface: String,
        mtu: u32,
        /// The largest MTU that AF_XDP supports.
        most: u32,
    },
    /// An interface of a listener has no IPv4 address.
    #[error(
        "interface {0} has no IPv4 address, so no datagram is for it; give it one (`ip address add ADDRESS/LENGTH dev {0}`)"
    )]
    NoAddress(String),
    /// An interface has fewer receive queues than there are threads to read them.
    #[error(
        "{interface} has {queues} receive queue(s) for {threads} threads, each of which needs one; give it more \
         (`ethtool -L {interface} combined {threads}`), or start fewer workers"
    )]
    TooFewQueues { interface: String, queues: usize, threads: usize },
    /// More listeners than a program supports.
    #[error("{interface} has {most} listeners by AF_XDP, and can have no more")]
    TooManyListeners { interface: String, most: u32 },
    /// The process may not lock enough memory for the frames.
    #[error(
        "AF_XDP needs {0} bytes of locked memory, more than this process may lock; raise the limit \
         (`ulimit -l`, `LimitMEMLOCK=` of a systemd service), or give the program CAP_IPC_LOCK"
    )]
    XdpMemory(usize),
    /// The kernel or the driver does not support it.
    #[error(
        "{interface} does not support AF_XDP ({reason}); use \"packet:{interface}\" for frames, a UDP address for \
         a listener"
    )]
    NoXdp { interface: String, reason: String },
    /// The operating system refused something else.
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl LinkError {
    pub(crate) fn io_with_context(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The meaning of a failed bind of a UDP socket to `address`.
    pub(crate) fn bind(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::PortInUse(address),
            io::ErrorKind::AddrNotAvailable => Self::NotLocal(address),
            io::ErrorKind::PermissionDenied => Self::PrivilegedPort(address),
            _ => Self::Io { what: format!("cannot open a UDP socket on {address}"), source },
        }
    }
}
