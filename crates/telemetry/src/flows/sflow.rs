//! Samples of sFlow as records, notices of drops, and counters of interfaces.

use std::net::IpAddr;

use dta_proto::counter::FlowReason;
use dta_proto::drop_reason::DropReason;
use dta_proto::flow_record::{DIRECTION_EGRESS, DIRECTION_INGRESS, FlowRecord, to_mapped_address};
use dta_proto::wire::{Error, WireErrorKind};

use crate::exported::{Exported, InterfaceReading, PacketDrop};
use crate::flows::{FlowExportFormat, FlowExportSource};
use crate::sflow::{SflowDatagram, SflowInterface, SflowSample};

/// Why a datagram or a sample cannot be read.
pub(crate) fn reason_of_error(error: &Error) -> FlowReason {
    match error.kind {
        WireErrorKind::UnknownVersion(_) => FlowReason::Version,
        _ => FlowReason::Malformed,
    }
}

/// Who numbers a datagram. An agent without an address is known by the datagram's.
pub(crate) fn datagram_source(from: IpAddr, datagram: &SflowDatagram<'_>) -> FlowExportSource {
    let exporter = datagram.agent.filter(|agent| !agent.is_unspecified()).unwrap_or(from).to_canonical();
    FlowExportSource { exporter, format: FlowExportFormat::Sflow, domain: datagram.sub_agent }
}

/// What a sample says; `None` if nothing that is used.
pub(crate) fn export_from_sample(
    source: &FlowExportSource,
    received: u64,
    sample: &SflowSample<'_>,
) -> Result<Option<Exported>, FlowReason> {
    let exporter = source.exporter;
    Ok(match sample {
        SflowSample::Packet { sampled, rate, at_egress } => {
            let packet = sampled.packet.as_ref().map_err(|_| FlowReason::NoFlow)?;
            let flow = packet.inner_flow();
            Some(Exported::Flow(FlowRecord {
                received,
                bytes: packet.length.into(),
                packets: 1,
                exporter: to_mapped_address(exporter),
                src: to_mapped_address(flow.src),
                dst: to_mapped_address(flow.dst),
                domain: source.domain,
                in_if: sampled.ingress.unwrap_or(0),
                out_if: sampled.egress.unwrap_or(0),
                sampling_rate: *rate,
                src_port: flow.sport,
                dst_port: flow.dport,
                protocol: flow.proto,
                direction: if *at_egress { DIRECTION_EGRESS } else { DIRECTION_INGRESS },
                ..FlowRecord::EMPTY
            }))
        }
        SflowSample::Dropped(sampled, reason) => Some(Exported::Drop(PacketDrop {
            flow: sampled.packet.as_ref().ok().map(|packet| *packet.inner_flow()),
            exporter,
            ingress: sampled.ingress,
            egress: sampled.egress,
            reason: DropReason::from_sflow(*reason),
        })),
        SflowSample::Interface(SflowInterface { index, speed, counts }) => {
            let reading = InterfaceReading { exporter, interface: *index, speed: *speed, counts: *counts };
            counts.iter().any(Option::is_some).then_some(Exported::Interface(reading))
        }
        SflowSample::Other => None,
    })
}
