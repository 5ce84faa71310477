//! Samples of sFlow as records, notices of drops, and counters of interfaces.

use std::net::IpAddr;

use dta_proto::counter::FlowReason;
use dta_proto::drop_reason::DropReason;
use dta_proto::flow_record::{FlowRecord, to_mapped_address};
use dta_proto::wire::{Error, WireErrorKind};

use super::counters::DecoderCounters;
use super::{FlowExportFormat, FlowExportSource};
use crate::exported::{Exported, InterfaceReading, PacketDrop, TransitReading};
use crate::sflow::{Sampled, SflowDatagram, SflowInterface, SflowSample, SflowTransit};

/// Why a datagram or a sample cannot be read.
pub(crate) fn reason_of_error(error: &Error) -> FlowReason {
    match error.kind {
        WireErrorKind::UnknownVersion(_) => FlowReason::Version,
        _ => FlowReason::Malformed,
    }
}

/// The source that numbers a datagram. An agent without an address goes by the sender's.
pub(crate) fn datagram_source(from: IpAddr, datagram: &SflowDatagram<'_>) -> FlowExportSource {
    let exporter = datagram.agent.filter(|agent| !agent.is_unspecified()).unwrap_or(from).to_canonical();
    FlowExportSource { exporter, format: FlowExportFormat::Sflow, domain: datagram.sub_agent }
}

/// Reads all samples of a datagram, and passes on what they say. `static_rate` is the rate of samples without one; 0 = 1.
pub(crate) fn decode_samples(
    mut datagram: SflowDatagram<'_>,
    source: &FlowExportSource,
    received: u64,
    static_rate: u32,
    counters: &mut DecoderCounters,
    each: &mut impl FnMut(Result<Exported, FlowReason>),
) {
    let exporter = source.exporter;
    while let Some((len, sample)) = datagram.next_sample() {
        match sample {
            Ok(SflowSample::Packet(sampled, rate)) if sampled.has_flow => {
                let record = FlowRecord {
                    received,
                    exporter: to_mapped_address(exporter),
                    domain: source.domain,
                    sampling_rate: if rate != 0 { rate } else { static_rate.max(1) },
                    ..sampled.record
                };
                counters.note_read(len);
                each(Ok(Exported::Flow(record)));
                if let Some(reading) = transit_reading(exporter, &sampled) {
                    counters.hops += 1;
                    each(Ok(Exported::Transit(reading)));
                }
            }
            Ok(SflowSample::Packet(..)) => counters.refuse(FlowReason::NoFlow, len, each),
            Ok(SflowSample::Dropped(sampled, reason)) => {
                counters.note_read(len);
                each(Ok(Exported::Drop(PacketDrop {
                    flow: sampled.has_flow.then(|| sampled.record.flow_key()),
                    exporter,
                    ingress: non_zero(sampled.record.in_if),
                    egress: non_zero(sampled.record.out_if),
                    reason: DropReason::from_sflow(reason),
                })));
            }
            Ok(SflowSample::Interface(SflowInterface { index, speed, counts }))
                if counts.iter().any(Option::is_some) =>
            {
                counters.note_read(len);
                counters.interfaces += 1;
                each(Ok(Exported::Interface(InterfaceReading { exporter, interface: index, speed, counts })));
            }
            Ok(SflowSample::Interface(_) | SflowSample::Other) => {
                counters.note_read(len);
                counters.unused += 1;
            }
            Err(error) => counters.refuse(reason_of_error(&error), len, each),
        }
    }
    let rest = datagram.bytes_behind_samples();
    if rest.iter().any(|byte| *byte != 0) {
        counters.refuse(FlowReason::Malformed, rest.len(), each);
    } else {
        counters.note_read(rest.len());
    }
}

fn non_zero(number: u32) -> Option<u32> {
    (number != 0).then_some(number)
}

/// Queue and latency of the packet's hop, if the agent measures any.
fn transit_reading(exporter: IpAddr, sampled: &Sampled) -> Option<TransitReading> {
    let SflowTransit { queue, latency, depth } = sampled.transit;
    (latency.is_some() || depth.is_some()).then(|| TransitReading {
        flow: sampled.record.flow_key(),
        exporter,
        egress: non_zero(sampled.record.out_if),
        queue,
        latency,
        depth,
    })
}
