//! What an exporter (NetFlow, IPFIX, sFlow) says of a flow, whatever the format: from the decoders to the rules of the data
//! plane.

use core::net::Ipv4Addr;

use dta_proto::key::Flow;
use dta_proto::telemetry::InterfaceCounts;
use dta_proto::trace::TraceName;

/// When the first packet of a flow came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowStart {
    /// So many nanoseconds before the record was sent.
    Ago(u64),
    /// Nanoseconds since 1970, by the exporter's clock.
    At(u64),
}

/// Packets and bytes of a flow since its last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// The flow. Ports are 0 for protocols without ports, as in the keys of INT.
    pub flow: Flow,
    /// Source address of the datagram.
    pub exporter: Ipv4Addr,
    /// Whether it was counted where the flow leaves the exporter, and not where it enters.
    pub at_egress: bool,
    /// Interface by which the flow leaves; `None` = not reported, or nowhere.
    pub egress: Option<u32>,
    /// When the flow began at this exporter; `None` = not reported.
    pub start: Option<FlowStart>,
    /// Packets that were counted.
    pub packets: u64,
    /// Their bytes, from the IP header on.
    pub bytes: u64,
    /// One packet in so many was counted; 1 = all. Not 0.
    pub sampling: u32,
}

/// A packet that an exporter dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketDrop {
    /// Its flow; `None` if its headers cannot be read.
    pub flow: Option<Flow>,
    /// Who dropped it.
    pub exporter: Ipv4Addr,
    /// Interface by which it came.
    pub ingress: Option<u32>,
    /// Interface by which it would have left.
    pub egress: Option<u32>,
    /// Why, by [`from_sflow_reason`](dta_proto::drop_reason::from_sflow_reason).
    pub reason: u8,
}

/// What an interface has counted since some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceReading {
    /// Whose interface it is.
    pub exporter: Ipv4Addr,
    /// Its number.
    pub interface: u32,
    /// Bits per second, not 0; `None` = unknown.
    pub speed: Option<u64>,
    /// What it counted.
    pub counts: InterfaceCounts,
}

/// The name of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceName {
    /// Whose interface it is.
    pub exporter: Ipv4Addr,
    /// Its number.
    pub interface: u32,
    /// Its name.
    pub name: TraceName,
}

/// What an exporter says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// Packets and bytes of a flow.
    Flow(FlowRecord),
    /// A dropped packet.
    Drop(PacketDrop),
    /// Counters of an interface.
    Interface(InterfaceReading),
    /// What an interface is called.
    Name(InterfaceName),
}

impl FlowRecord {
    /// Packets, scaled by the sampling rate.
    pub fn all_packets(&self) -> u64 {
        self.packets.saturating_mul(self.sampling.into())
    }

    /// Bytes, scaled by the sampling rate.
    pub fn all_bytes(&self) -> u64 {
        self.bytes.saturating_mul(self.sampling.into())
    }
}
