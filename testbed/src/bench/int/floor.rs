//! The floor of reports: reading them, plus a load for each value, or as many key-writes as they make primitives.

use std::hint::black_box;
use std::net::IpAddr;

use dta_proto::batch::PacketBatch;
use dta_proto::key::Key;
use dta_proto::telemetry::VALUE_LEN;
use dta_proto::wire::dta::DtaBody;
use dta_telemetry::int::{IntReport, IntSettings, Time, parse_reports};

use super::world::{VALUES, World};

/// Bytes that the translator keeps per key.
const KEY_STATE_LEN: usize = 32;

/// What the floor works on.
pub(super) struct Floor {
    /// As large as the translator's table; empty if values are written.
    table: Vec<[u64; KEY_STATE_LEN / 8]>,
    /// Keys of values and of events, grouped because those of one kind become frames together.
    writes: [Vec<(Key, [u8; VALUE_LEN])>; 2],
    /// Whether each value is also an event.
    events: bool,
}

impl Floor {
    /// For reports that produce nothing.
    pub(super) fn with_loads(keys: usize) -> Floor {
        Floor {
            table: vec![[1; KEY_STATE_LEN / 8]; keys.next_power_of_two()],
            writes: Default::default(),
            events: false,
        }
    }

    /// For reports whose values are all written. If each is also an event, its entry counts as a second key-write, with
    /// one copy.
    pub(super) fn of_writes(events: bool) -> Floor {
        Floor { table: Vec::new(), writes: Default::default(), events }
    }

    /// Reads a batch of reports, every field of every hop, and loads or writes once per value.
    pub(super) fn take(&mut self, batch: &PacketBatch, settings: &IntSettings, world: &mut World) {
        let Floor { table, writes, events } = self;
        let [of_values, of_events] = writes;
        let mask = table.len().wrapping_sub(1);
        let mut sum = 0u64;
        for index in 0..batch.len() {
            let Some(datagram) = batch.udp_datagram(index) else { continue };
            let Ok(reports) = parse_reports(datagram.payload(), settings) else { continue };
            sum += u64::from(reports.datagram_source().sequence);
            for report in reports.flatten() {
                if table.is_empty() {
                    sum += read(&report, |name, value| {
                        let mut key = Key([0; 16]);
                        key.0[..8].copy_from_slice(&name.to_be_bytes());
                        let mut bytes = [0; VALUE_LEN];
                        bytes[..8].copy_from_slice(&value.to_be_bytes());
                        of_values.push((key, bytes));
                        if *events {
                            key.0[15] = 1;
                            of_events.push((key, bytes));
                        }
                    });
                } else {
                    let mut loaded = 0u64;
                    sum += read(&report, |name, value| {
                        let place = (name >> 20) as usize & mask;
                        loaded = loaded.wrapping_add(table[place][0] ^ value);
                    });
                    sum = sum.wrapping_add(loaded);
                }
            }
        }
        black_box(sum);
        if table.is_empty() {
            for (redundancy, writes) in [(0, of_values), (1, of_events)] {
                world.execute_writes(
                    writes
                        .iter()
                        .map(|(key, value)| (VALUES, DtaBody::KeyWrite { redundancy, key: *key, value })),
                );
                writes.clear();
            }
        }
    }
}

/// Reads everything in a report. Calls `value` for each value with 64 mixed bits that name its key.
#[inline]
fn read(report: &IntReport<'_>, mut value: impl FnMut(u64, u64)) -> u64 {
    let Ok(packet) = &report.packet else { return 0 };
    let flow = packet.inner_flow();
    let address = |address: IpAddr| match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits() as u64,
    };
    let ports = u64::from(flow.sport) << 24 | u64::from(flow.dport) << 8 | u64::from(flow.proto);
    let flow = mix_name_bits(address(flow.src) << 32 ^ address(flow.dst) ^ ports << 20);
    let time = |time: Option<Time>| time.map_or(0, Time::raw_number);
    let (mut path, mut latencies, mut rest) = (0u64, 0u64, 0u64);
    for (switch, hop) in report.hops_with_switches() {
        let switch = u64::from(switch.unwrap_or(u32::MAX));
        let latency = hop.node_latency().unwrap_or(0);
        let (queue, port) = (hop.queue_fill(), hop.egress_port().map_or(0, u64::from));
        path = path << 8 ^ switch;
        latencies += latency;
        rest ^= time(hop.ingress_time()) ^ time(hop.egress_time()) ^ hop.ingress_port().map_or(0, u64::from);
        value(mix_name_bits(flow ^ switch), latency);
        let of_port = switch << 40 | port << 8;
        value(
            mix_name_bits(of_port ^ queue.id.map_or(0, u64::from) ^ 1 << 63),
            queue.value.map_or(0, u64::from),
        );
        value(mix_name_bits(of_port), hop.utilization().map_or(0, u64::from));
    }
    value(flow, path);
    value(mix_name_bits(flow), latencies);
    rest
}

/// Spreads the bits of a name over all 64.
#[inline]
fn mix_name_bits(name: u64) -> u64 {
    let mixed = name.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}
