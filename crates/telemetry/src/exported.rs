//! What an exporter (NetFlow, IPFIX, sFlow) reports, in one form for all formats: passed from the decoders to the data plane's rules.

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
    /// The interface it arrived on.
    pub ingress: Option<u32>,
    /// The interface it would have left by.
    pub egress: Option<u32>,
    pub reason: DropReason,
}

/// What an exporter measured of a sampled packet passing through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitReading {
    /// The packet's flow.
    pub flow: Flow,
    /// The device that it passed through.
    pub exporter: IpAddr,
    /// The interface it left by.
    pub egress: Option<u32>,
    /// The queue there.
    pub queue: Option<u32>,
    /// Nanoseconds in the device.
    pub latency: Option<u32>,
    /// Bytes in the queue when the packet arrived there.
    pub depth: Option<u32>,
}

/// What an interface has counted since some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceReading {
    pub exporter: IpAddr,
    /// The number of the interface.
    pub interface: u32,
    /// Bits per second, not 0; `None` = unknown.
    pub speed: Option<u64>,
    pub counts: InterfaceCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceName {
    pub exporter: IpAddr,
    /// The number of the interface.
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
