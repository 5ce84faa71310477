//! Templates of reports: what another report must have in common with one to be read in the same way, and
//! where its values are. `crates/link/ebpf/events.bpf.c` compares reports with them.
//!
//! Only v0.5 and v1.0 reports about a TCP or UDP packet over plain IPv4, with INT v0.5 or v1.0 and no tunnel, have one.

use dta_proto::wire::{ethernet, ipv4, udp};

use super::metadata::{Item, LatencyWords};
use super::packet::{TCP, TCP_HEADER_LEN, get_be_u16, get_be_u32};
use super::{Dialect, IntReport, IntSettings, Metadata, ReportVersion, tunnel};

/// All of these match `events.bpf.c`.
const MOST_OPERATIONS: usize = 64;
const REACH: usize = 1023;
const NO_SLOT: u32 = u32::MAX;
const INT_HEADERS_LEN: usize = 12;
const PROBE_LEN: usize = 8;
const TAIL_LEN: usize = 4;

/// Length of a template in words of 8 bytes.
pub(crate) const TEMPLATE_WORDS: usize = 1 + 2 * MOST_OPERATIONS;

#[derive(Clone, Copy)]
enum OperationKind {
    Equal = 0,
    Pair = 1,
    Value = 2,
    Latency = 3,
    AtLeast = 4,
    Difference = 5,
    Sum = 6,
    State = 7,
}

/// Where a value's interval is, and what is stored there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotName {
    pub(crate) index: u32,
    pub(crate) tag: u32,
}

/// What a template says, word by word.
pub(crate) struct Template<'a> {
    payload: &'a [u8],
    words: [u64; TEMPLATE_WORDS],
    count: usize,
    /// Least length of a report.
    length: usize,
    /// Where the reported packet's IP header is.
    ip: usize,
    /// The number of the sending switch, if it is in the report, else 0.
    numbered: u32,
}

impl<'a> Template<'a> {
    /// A template of a report, without its hops; `None` if it has none.
    pub(crate) fn from_report(
        payload: &'a [u8],
        report: &IntReport<'_>,
        settings: &IntSettings,
    ) -> Option<Template<'a>> {
        let (Ok(packet), Some(stack)) = (&report.packet, report.packet_stack()) else { return None };
        let (headers, stack_at) = (report.local.len(), offset_in(payload, stack.bytes)?);
        let first = get_be_u32(payload, 0)?;
        let (is_v05, ethernet) = match report.version {
            ReportVersion::V05 => (true, true),
            ReportVersion::V10 => (false, first >> 21 & 7 == 0),
            ReportVersion::V20 => return None,
        };
        let ip = headers + if ethernet { ethernet::HEADER_LEN } else { 0 };
        let transport = ip + ipv4::HEADER_LEN;
        let is_plain = !ethernet || get_be_u16(payload, ip - 2)? == ethernet::TYPE_IPV4;
        let (version, protocol) = (*payload.get(ip)?, *payload.get(ip + 9)?);
        let behind = match protocol {
            ipv4::PROTOCOL_UDP => transport + udp::HEADER_LEN,
            TCP => {
                let options_end = transport + usize::from(payload.get(transport + 12)? >> 4) * 4;
                let before_options = settings.dialect == Dialect::NoviFlow;
                if before_options {
                    transport + TCP_HEADER_LEN
                } else {
                    options_end.max(transport + TCP_HEADER_LEN)
                }
            }
            _ => return None,
        };
        let gap = stack_at.checked_sub(behind)?;
        let is_tunnel = packet.tunnel.is_some() || tunnel::is_udp_tunnel(packet.flow.dport);
        if !is_plain
            || version != 0x45
            || is_tunnel
            || packet.has_unread_int
            || report.flags.dropped
            || report.flags.congested
            || report.local.drop_reason().is_some()
            || stack.is_mx
            || stack.is_empty()
            || ![INT_HEADERS_LEN, INT_HEADERS_LEN + PROBE_LEN].contains(&gap)
        {
            return None;
        }
        let mut end = stack_at + stack.bytes.len();
        let numbered = match (is_v05, first >> 24 & 0xf) {
            (true, 0) => 0,
            (true, _) => get_be_u32(payload, 12)?,
            (false, _) => get_be_u32(payload, 4)?,
        };
        let words = [0; TEMPLATE_WORDS];
        let mut template = Template { payload, words, count: 0, length: 0, ip, numbered };
        template.expect_equal(0, 0)?;
        // From the EtherType, or the IP header, to the type of service.
        if ethernet {
            template.expect_equal(ip - 2, 0)?
        } else {
            template.expect_equal(ip, 16)?
        }
        // Fragments, protocol, addresses and ports.
        for (at, shift) in [(ip + 6, 16), (ip + 9, 24), (ip + 12, 0), (ip + 16, 0), (transport, 0)] {
            template.expect_equal(at, shift)?;
        }
        if protocol == TCP {
            template.expect_equal(transport + 12, 24)?;
        }
        for at in (behind..stack_at).step_by(4) {
            template.expect_equal(at, 0)?;
        }
        // INT v0.5 counts its instructions where v1.0 has reserved bits, and has a tail.
        if payload[stack_at - 7] & 0x1f != 0 {
            template.expect_equal(end, 0)?;
            end += TAIL_LEN;
        }
        template.length = template.length.max(end);
        template.push(OperationKind::AtLeast, ip + 2, 0, (end - ip) as u32, None)?;
        Some(template)
    }

    /// The hash by which the program finds it, for reports of this listener.
    pub(crate) fn hash_for(&self, listener: u32) -> Option<u64> {
        let word = |at: usize| get_be_u32(self.payload, at).map(u64::from);
        let protocol = u64::from(*self.payload.get(self.ip + 9)?);
        let mut hash = mix(u64::from(listener), word(0)?);
        hash = mix(hash, u64::from(self.numbered) << 32 | protocol);
        hash = mix(hash, word(self.ip + 12)? << 32 | word(self.ip + 16)?);
        Some(mix(hash, word(self.ip + 20)?))
    }

    /// Words that name a hop and its ports.
    pub(crate) fn add_hop_names(&mut self, hop: &Metadata<'_>) -> Option<()> {
        for (item, len) in [(Item::Switch, 4), (Item::Ports, 4), (Item::Level2Ports, 8)] {
            if let Some(at) = hop.item_offset(self.payload, item) {
                (0..len).step_by(4).try_for_each(|more| self.expect_equal(at + more, 0))?;
            }
        }
        Some(())
    }

    /// A hop's latency, which is known or not in reports of this kind; `None` for the slot if no rule follows it.
    pub(crate) fn add_latency(&mut self, hop: &Metadata<'_>, slot: Option<SlotName>) -> Option<()> {
        match hop.latency_words(self.payload)? {
            LatencyWords::Sent(at) => self.push(OperationKind::Latency, at, 0, 0, slot),
            LatencyWords::Computed { egress, ingress } => {
                self.reach(ingress)?;
                self.push(OperationKind::Difference, egress, 0, ingress as u32, slot)
            }
            LatencyWords::Unknown(None) => Some(()),
            LatencyWords::Unknown(Some(at)) => self.expect_equal(at, 0),
        }
    }

    /// The fill of a queue, and its number.
    pub(crate) fn add_queue(&mut self, hop: &Metadata<'_>, slot: Option<SlotName>) -> Option<()> {
        self.add_value(hop.item_offset(self.payload, Item::Queue), hop.fill_bits(), slot)
    }

    pub(crate) fn add_congestion(&mut self, hop: &Metadata<'_>, slot: Option<SlotName>) -> Option<()> {
        self.add_value(hop.item_offset(self.payload, Item::Congestion), hop.fill_bits(), slot)
    }

    pub(crate) fn add_utilization(&mut self, hop: &Metadata<'_>, slot: Option<SlotName>) -> Option<()> {
        self.add_value(hop.item_offset(self.payload, Item::Utilization), 0, slot)
    }

    /// The sum of all hops' latencies.
    pub(crate) fn add_flow_latency(&mut self, slot: SlotName) -> Option<()> {
        self.push(OperationKind::Sum, 0, 0, 0, Some(slot))
    }

    /// Checks the state in the slot.
    pub(crate) fn add_state(&mut self, slot: SlotName) -> Option<()> {
        self.push(OperationKind::State, 0, 0, 0, Some(slot))
    }

    /// As the program reads it, for reports of this listener.
    pub(crate) fn to_words(&self, listener: u32) -> [u64; TEMPLATE_WORDS] {
        let mut words = self.words;
        words[0] = u64::from(listener) | (self.count as u64) << 32 | (self.length as u64) << 48;
        words
    }

    /// How many words of [`Template::to_words`] are used.
    pub(crate) fn used_words(&self) -> usize {
        1 + 2 * self.count
    }

    /// A value in the lowest bits of a word, 0 = all of them; or an unavailable one, if there is no slot.
    fn add_value(&mut self, at: Option<usize>, bits: u8, slot: Option<SlotName>) -> Option<()> {
        match (at, slot) {
            (None, _) => Some(()),
            (Some(at), None) => self.expect_equal(at, 0),
            (Some(at), Some(_)) => {
                let value = get_be_u32(self.payload, at)?;
                self.push(OperationKind::Value, at, bits, value, slot)
            }
        }
    }

    /// Requires the word at an offset to be the same, except for its lowest bits.
    fn expect_equal(&mut self, at: usize, shift: u8) -> Option<()> {
        let value = get_be_u32(self.payload, at)?;
        if shift == 0 && self.extend_to_pair(at)? {
            return Some(());
        }
        self.push(OperationKind::Equal, at, shift, value, None)
    }

    /// Makes the last operation also compare the word at an offset, if it compares the whole word before it.
    fn extend_to_pair(&mut self, at: usize) -> Option<bool> {
        let Some(last) = self.count.checked_sub(1) else { return Some(false) };
        let first = at.wrapping_sub(4);
        let whole_word = operation_word(OperationKind::Equal, first, 0);
        let word = self.words.get_mut(1 + 2 * last..)?.first_chunk_mut::<2>()?;
        if word[0] & u64::from(u32::MAX) != whole_word {
            return Some(false);
        }
        let bytes = self.payload.get(first..)?.first_chunk()?;
        *word = [operation_word(OperationKind::Pair, first, 0), u64::from_ne_bytes(*bytes)];
        self.reach(at)?;
        Some(true)
    }

    fn push(
        &mut self,
        kind: OperationKind,
        at: usize,
        shift: u8,
        value: u32,
        slot: Option<SlotName>,
    ) -> Option<()> {
        self.reach(at)?;
        let SlotName { index, tag } = slot.unwrap_or(SlotName { index: NO_SLOT, tag: 0 });
        let word = self.words.get_mut(1 + 2 * self.count..)?.first_chunk_mut::<2>()?;
        *word = [
            operation_word(kind, at, shift) | u64::from(value) << 32,
            u64::from(index) | u64::from(tag) << 32,
        ];
        self.count += 1;
        Some(())
    }

    /// Requires reports to be long enough for the word at an offset.
    fn reach(&mut self, at: usize) -> Option<()> {
        self.length = self.length.max(at + 4);
        (at <= REACH).then_some(())
    }
}

/// The first half of an operation's first word.
fn operation_word(kind: OperationKind, at: usize, shift: u8) -> u64 {
    at as u64 | (kind as u64) << 16 | u64::from(shift) << 24
}

/// The offset in the payload at which a part of it begins.
pub(super) fn offset_in(payload: &[u8], part: &[u8]) -> Option<usize> {
    (part.as_ptr() as usize)
        .checked_sub(payload.as_ptr() as usize)
        .filter(|at| at + part.len() <= payload.len())
}

/// Mixes as `events.bpf.c` does.
fn mix(hash: u64, more: u64) -> u64 {
    let hash = (hash ^ more).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_the_same_numbers() {
        let source = include_str!("../../../link/ebpf/events.bpf.c");
        for (name, number) in [("OPERATIONS", MOST_OPERATIONS), ("REACH", REACH)] {
            assert!(source.contains(&format!("#define {name} {number}\n")), "{name}");
        }
        let (_, kinds) = source.split_once("/* What must hold").unwrap();
        let kinds: Vec<_> = kinds.lines().take_while(|line| *line != "};").collect();
        let order: Vec<_> =
            kinds.iter().filter(|line| line.ends_with(',') && line.starts_with("    ")).collect();
        let all = ["EQUAL", "PAIR", "VALUE", "LATENCY", "AT_LEAST", "DIFFERENCE", "SUM", "STATE"];
        assert_eq!(order.iter().map(|line| line.trim().trim_end_matches(',')).collect::<Vec<_>>(), all);
    }
}
