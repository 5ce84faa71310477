//! What an exporter (NetFlow, IPFIX, sFlow) says, whatever the format: from the decoders to the rules of the data plane.

use core::net::IpAddr;

use dta_proto::drop_reason::DropReason;
use dta_proto::flow_record::FlowRecord;
use dta_proto::key::Flow;
use dta_proto::telemetry::InterfaceCounts;
use dta_proto::trace::TraceName;

/// A packet that an exporter dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketDrop {
    /// Its flow; `None` if its headers cannot be read.
    pub flow: Option<Flow>,
    /// Who dropped it.
    pub exporter: IpAddr,
    /// Interface by which it came.
    pub ingress: Option<u32>,
    /// Interface by which it would have left.
    pub egress: Option<u32>,
    pub reason: DropReason,
}

/// What an exporter measured of a sampled packet's way through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitReading {
    /// The packet's flow.
    pub flow: Flow,
    /// Through whom it went.
    pub exporter: IpAddr,
    /// Interface by which it left.
    pub egress: Option<u32>,
    /// The queue there.
    pub queue: Option<u32>,
    /// Nanoseconds in the device.
    pub latency: Option<u32>,
    /// Bytes in the queue when the packet came to it.
    pub depth: Option<u32>,
}

/// What an interface has counted since some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceReading {
    pub exporter: IpAddr,
    /// Its number.
    pub interface: u32,
    /// Bits per second, not 0; `None` = unknown.
    pub speed: Option<u64>,
    pub counts: InterfaceCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceName {
    pub exporter: IpAddr,
    /// Its number.
    pub interface: u32,
    pub name: TraceName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// Packets and bytes of a flow.
    Flow(FlowRecord),
    Drop(PacketDrop),
    /// Queue and latency of a packet's hop.
    Transit(TransitReading),
    Interface(InterfaceReading),
    Name(InterfaceName),
}
