//! Samples of sFlow as records, notices of drops, and counters of interfaces.

use std::net::{IpAddr, Ipv4Addr};

use dta_proto::counter::FlowReason;
use dta_proto::drop_reason;
use dta_proto::wire::{Error, WireErrorKind};

use crate::flow_record::{Exported, FlowRecord, InterfaceReading, PacketDrop};
use crate::flows::{FlowExportFormat, FlowExportSource};
use crate::sflow::{SflowDatagram, SflowInterface, SflowSample};

/// Why a datagram or a sample cannot be read.
pub(crate) fn reason_of_error(error: &Error) -> FlowReason {
    match error.kind {
        WireErrorKind::UnknownVersion(_) => FlowReason::Version,
        _ => FlowReason::Malformed,
    }
}

/// Who numbers a datagram. An agent without an IPv4 address is known by the datagram's.
pub(crate) fn datagram_source(from: Ipv4Addr, datagram: &SflowDatagram<'_>) -> FlowExportSource {
    let exporter = match datagram.agent {
        Some(IpAddr::V4(agent)) if !agent.is_unspecified() => agent,
        _ => from,
    };
    FlowExportSource { exporter, format: FlowExportFormat::Sflow, domain: datagram.sub_agent }
}

/// What a sample says; `None` if nothing that is used.
pub(crate) fn export_from_sample(
    exporter: Ipv4Addr,
    sample: &SflowSample<'_>,
) -> Result<Option<Exported>, FlowReason> {
    Ok(match sample {
        SflowSample::Packet { sampled, rate, at_egress } => {
            let packet = sampled.packet.as_ref().map_err(|_| FlowReason::NoFlow)?;
            Some(Exported::Flow(FlowRecord {
                flow: *packet.inner_flow(),
                exporter,
                at_egress: *at_egress,
                egress: sampled.egress,
                start: None,
                packets: 1,
                bytes: packet.length.into(),
                sampling: *rate,
            }))
        }
        SflowSample::Dropped(sampled, reason) => Some(Exported::Drop(PacketDrop {
            flow: sampled.packet.as_ref().ok().map(|packet| *packet.inner_flow()),
            exporter,
            ingress: sampled.ingress,
            egress: sampled.egress,
            reason: drop_reason::from_sflow_reason(*reason),
        })),
        SflowSample::Interface(SflowInterface { index, speed, counts }) => {
            let reading = InterfaceReading { exporter, interface: *index, speed: *speed, counts: *counts };
            counts.iter().any(Option::is_some).then_some(Exported::Interface(reading))
        }
        SflowSample::Other => None,
    })
}
