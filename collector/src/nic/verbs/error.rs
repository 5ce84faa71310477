//! Why an RDMA device cannot be used, and what to do about it.

use super::gid::GidError;

/// Why an RDMA device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// This program was built without libibverbs.
    #[error(
        "this program was built without libibverbs and cannot use RDMA devices; build it with `make`, or with `cargo build --release --features dta-collector/verbs` after `scripts/install-deps build`, or use `--device soft`"
    )]
    NotBuilt,
    /// The kernel has no RDMA at all.
    #[error("the kernel has no RDMA support ({source}); load its module: `modprobe ib_uverbs`")]
    NoKernelSupport {
        /// The library's reason.
        source: std::io::Error,
    },
    /// No device of that name.
    #[error(
        "there is no RDMA device `{device}`; there are: {present}. `dta-collector devices` lists them; soft-RoCE on a network interface: `rdma link add rxe0 type rxe netdev eth0`"
    )]
    NoDevice {
        /// The requested name.
        device: String,
        /// The names that exist.
        present: String,
    },
    /// It cannot be opened.
    #[error(
        "cannot open the RDMA device `{device}`: {source}; make sure that this user may read and write /dev/infiniband/uverbs*"
    )]
    Open {
        /// Device.
        device: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No such port.
    #[error("the RDMA device `{device}` has ports 1 to {ports}, not {port}")]
    NoPort {
        /// Device.
        device: String,
        /// The requested port.
        port: u8,
        /// Its last port.
        ports: u8,
    },
    /// The port is not usable now.
    #[error("port {port} of the RDMA device `{device}` is {state}; {cure}")]
    PortState {
        /// Device.
        device: String,
        /// Port.
        port: u8,
        /// Its state.
        state: String,
        /// What to do.
        cure: &'static str,
    },
    /// No usable GID.
    #[error("the RDMA device `{device}` cannot be used: {source}")]
    Gid {
        /// Device.
        device: String,
        /// Why.
        source: GidError,
    },
    /// More memory than this process may pin.
    #[error(
        "cannot pin {len} bytes for the RDMA device `{device}` on top of {pinned} already pinned: this process may lock {limit} (RLIMIT_MEMLOCK); raise it with `ulimit -l`, or LimitMEMLOCK=infinity in its systemd unit, or run it with CAP_IPC_LOCK"
    )]
    Memlock {
        /// Device.
        device: String,
        /// Bytes of the region.
        len: u64,
        /// Bytes that are registered already.
        pinned: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A region larger than the device supports.
    #[error(
        "the RDMA device `{device}` takes regions of at most {limit} bytes (max_mr_size), not {len}; make the store smaller"
    )]
    RegionTooLarge {
        /// Device.
        device: String,
        /// Bytes of the region.
        len: u64,
        /// The device's limit.
        limit: u64,
    },
    /// A region for atomics on a device that has none.
    #[error(
        "the RDMA device `{device}` executes no atomics (its capability is {capability}), which stores of kind key-increment need; leave those out, or use another device"
    )]
    NoAtomics {
        /// Device.
        device: String,
        /// What it reports.
        capability: String,
    },
    /// The kernel could not resolve the peer's Ethernet address.
    #[error(
        "the peer {peer} cannot be reached: nobody answered for its Ethernet address; make sure that it is up, or add an entry: `ip neigh replace {peer} lladdr MAC nud permanent dev {interface}`"
    )]
    NoNeighbour {
        /// The peer's address.
        peer: std::net::IpAddr,
        /// The device's network interface.
        interface: String,
    },
    /// The device went away while it was in use.
    #[error("the RDMA device `{device}` is gone ({source})")]
    Gone {
        /// Device.
        device: String,
        /// The library's reason.
        source: std::io::Error,
    },
}

impl VerbsError {
    /// Whether waiting may help: the device, its port or the peer may come back.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            VerbsError::NoDevice { .. }
                | VerbsError::Open { .. }
                | VerbsError::PortState { .. }
                | VerbsError::Gid { .. }
                | VerbsError::NoNeighbour { .. }
                | VerbsError::Gone { .. }
        )
    }
}
