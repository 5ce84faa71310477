//! The packets of a capture, again and again, as records of an exporter's flow cache: real traffic in which nothing goes
//! wrong.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use dta_proto::flow_record::FlowRecord;
use dta_proto::key::Flow;
use dta_telemetry::exported::Exported;
use dta_telemetry::flows::{Decoder, DecoderOptions, emit};
use dta_telemetry::reports::ArrivalTime;

use super::ACTIVE_TIMEOUT;
use crate::capture::{CapturedPacket, LinkType, read};

/// Who exports them.
const EXPORTER: Ipv4Addr = Ipv4Addr::new(127, 0, 10, 100);
/// Longer pauses of the capture are cut to this: captures of one host have hours without a packet.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A flow without packets for this long has ended.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
const ETHERNET_LEN: u32 = 14;
/// First bytes of a packet that are decoded: all of its headers.
const HEADERS: usize = 128;

/// What is known of a capture's traffic after some time.
#[derive(Clone, Debug)]
pub(super) struct CaptureBackground {
    /// Each packet as a record of its own, and when it comes.
    packets: Vec<(Duration, FlowRecord)>,
    /// From the first packet to the first packet of the next turn.
    length: Duration,
    /// Packets since the beginning, over all turns.
    sent: usize,
    cache: HashMap<Flow, CachedFlow>,
}

#[derive(Clone, Debug)]
struct CachedFlow {
    record: FlowRecord,
    first: Duration,
    last: Duration,
}

impl CaptureBackground {
    /// Reads a capture.
    ///
    /// # Errors
    /// It cannot be read, or no packet of it has a flow.
    pub(super) fn read(path: &Path) -> anyhow::Result<CaptureBackground> {
        let mut decoder = Decoder::new(DecoderOptions::default());
        let (mut packets, mut at, mut before) = (Vec::new(), Duration::ZERO, None);
        read(path, |packet| {
            // Captures that were joined go back in time.
            let pause = before.map_or(0, |before| packet.time_ns.saturating_sub(before));
            before = Some(packet.time_ns);
            at += Duration::from_nanos(pause).min(LONGEST_PAUSE);
            packets.extend(decode_record(&mut decoder, &packet).map(|record| (at, record)));
        })?;
        ensure!(!packets.is_empty(), "no packet of {} has a flow", path.display());
        Ok(CaptureBackground { packets, length: at + LONGEST_PAUSE, sent: 0, cache: HashMap::new() })
    }

    /// The records exported since the last call, until `elapsed` has passed since the beginning; `began` is the beginning
    /// in nanoseconds since 1970.
    pub(super) fn records_until(&mut self, elapsed: Duration, began: u64) -> Vec<FlowRecord> {
        loop {
            let (turn, place) = (self.sent / self.packets.len(), self.sent % self.packets.len());
            let (at, packet) = self.packets[place];
            let at = at + self.length * turn as u32;
            if at > elapsed {
                break;
            }
            self.sent += 1;
            self.cache_packet(packet, at);
        }
        let is_due = |cached: &CachedFlow| {
            elapsed - cached.first >= ACTIVE_TIMEOUT || elapsed - cached.last >= IDLE_TIMEOUT
        };
        let due = self.cache.extract_if(|_, cached| is_due(cached));
        let moment = |at: Duration| began + at.as_nanos() as u64;
        let record = |CachedFlow { record, first, last }: CachedFlow| FlowRecord {
            received: moment(elapsed),
            start: moment(first),
            end: moment(last),
            ..record
        };
        let mut records: Vec<FlowRecord> = due.map(|(_, cached)| record(cached)).collect();
        // In the same order in each run.
        records.sort_by_key(FlowRecord::to_entry);
        records
    }

    fn cache_packet(&mut self, packet: FlowRecord, at: Duration) {
        let empty = FlowRecord { packets: 0, bytes: 0, ..packet };
        let new = || CachedFlow { record: empty, first: at, last: at };
        let CachedFlow { record, last, .. } = self.cache.entry(packet.flow_key()).or_insert_with(new);
        *last = at;
        record.packets += packet.packets;
        record.bytes += packet.bytes;
        record.tcp_flags |= packet.tcp_flags;
    }
}

/// A packet as a record: what a decoder of sFlow makes of a sample of it.
fn decode_record(decoder: &mut Decoder, packet: &CapturedPacket<'_>) -> Option<FlowRecord> {
    let header_protocol = match (packet.link, packet.data.first()? >> 4) {
        (LinkType::Ethernet, _) => 1,
        (LinkType::RawIp, 4) => 11,
        (LinkType::RawIp, 6) => 12,
        _ => return None,
    };
    let headers = &packet.data[..packet.data.len().min(HEADERS)];
    let header = emit::sflow_header_record(header_protocol, headers);
    let sample = emit::sflow_sample(1, &[0, 0, 1, 0, 0, 1, 2], &[header]);
    let datagram = emit::sflow_datagram(EXPORTER, 0, 0, &[sample]);
    let mut record = None;
    decoder.decode_datagram(
        ArrivalTime { now: 0, wall: 0 },
        (EXPORTER, 6343).into(),
        &datagram,
        |exported| {
            if let Ok(Exported::Flow(flow)) = exported {
                record = Some(flow);
            }
        },
    );
    // Its full length counts, however little of it was decoded.
    let link_header = if packet.link == LinkType::Ethernet { ETHERNET_LEN } else { 0 };
    let bytes = packet.original_len.saturating_sub(link_header).into();
    record.map(|record| FlowRecord { bytes, ..record })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::capture::{DecodedPacket, write_header, write_packet};

    #[test]
    fn each_turn_of_a_capture_brings_the_same_packets() {
        let flows = ["10.0.0.1:1->10.0.0.2:2/udp", "10.0.0.3:3->10.0.0.2:2/tcp"];
        let flows = flows.map(|flow| flow.parse::<Flow>().unwrap());
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write_header(&mut file).unwrap();
        // Ten packets in 0.9 seconds, then one after an hour.
        for n in 0..11 {
            let packet = DecodedPacket { flow: flows[n % 2], length: 100 };
            let time = if n < 10 { n as u64 * 100_000_000 } else { 3600 * 1_000_000_000 };
            write_packet(&mut file, &packet, time).unwrap();
        }
        file.flush().unwrap();
        let mut background = CaptureBackground::read(file.path()).unwrap();
        assert_eq!(background.length, Duration::from_millis(2900));
        let mut sums = HashMap::<Flow, (u64, u64)>::new();
        for seconds in 1..=290 {
            for record in background.records_until(Duration::from_secs(seconds), 0) {
                let (packets, bytes) = sums.entry(record.flow_key()).or_default();
                (*packets, *bytes) = (*packets + record.packets, *bytes + record.bytes);
            }
        }
        // A hundred turns, except for what was not due before the last second.
        for (flow, packets) in flows.iter().zip([600, 500]) {
            let (found, bytes) = sums[flow];
            assert!((packets - 15..=packets).contains(&found), "{flow}: {found}");
            assert!(bytes >= 28 * found, "{flow}: {bytes}");
        }
    }
}
