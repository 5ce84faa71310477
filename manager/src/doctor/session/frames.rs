//! Frames to the RoCEv2 port, counted by destination and integrity.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dta_proto::wire::datagram::UdpDatagram;
use dta_proto::wire::{AddressPair, ipv4, ipv6, roce, udp};

/// Flows counted separately; all others are counted together.
const FLOWS: usize = 256;

/// What frames counted together have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub queue_pair: u32,
    /// Whether its Ethernet destination is the interface's.
    pub to_us: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub frames: u64,
    pub wrong_icrc: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameCounts {
    flows: BTreeMap<Flow, Tally>,
    pub others: u64,
    /// Frames too short for RoCEv2's headers, or with broken IP or UDP headers.
    pub malformed: u64,
    /// Frames that came faster than they could be counted.
    pub missed: u64,
}

impl FrameCounts {
    /// Counts a packet to the port, from its IP header on. `to_us`: its Ethernet destination is the interface's.
    pub fn count_packet(&mut self, packet: &[u8], to_us: bool) {
        let Some((source, destination, queue_pair, whole)) = read(packet) else {
            self.malformed += 1;
            return;
        };
        let flow = Flow { source, destination, queue_pair, to_us };
        if !self.flows.contains_key(&flow) && self.flows.len() >= FLOWS {
            self.others += 1;
            return;
        }
        let tally = self.flows.entry(flow).or_default();
        tally.frames += 1;
        tally.wrong_icrc += u64::from(!whole);
    }

    pub fn flow_tallies(&self) -> impl Iterator<Item = (&Flow, &Tally)> {
        self.flows.iter()
    }

    pub fn total_frames(&self) -> u64 {
        self.others + self.malformed + self.flows.values().map(|tally| tally.frames).sum::<u64>()
    }

    /// Frames of the selected flows, and those with a wrong iCRC.
    pub fn sum(&self, meant: impl Fn(&Flow) -> bool) -> Tally {
        let mut sum = Tally::default();
        for (_, tally) in self.flows.iter().filter(|(flow, _)| meant(flow)) {
            sum.frames += tally.frames;
            sum.wrong_icrc += tally.wrong_icrc;
        }
        sum
    }
}

/// Source, destination, queue pair, and whether the iCRC is right.
fn read(packet: &[u8]) -> Option<(IpAddr, IpAddr, u32, bool)> {
    let (addresses, payload) = match ipv6::is_ipv6(packet) {
        true => {
            let (header, message) = ipv6::parse_packet(packet, ipv4::PROTOCOL_UDP).ok()?;
            (header.addresses(), udp::UdpPacket::new_checked(message).ok()?.payload())
        }
        false => {
            let read = UdpDatagram::parse_packet(packet).ok()?;
            let (source, destination) = (read.ipv4.source_address(), read.ipv4.destination_address());
            (AddressPair::V4 { source, destination }, read.payload())
        }
    };
    if payload.len() < roce::BTH_LEN + roce::ICRC_LEN {
        return None;
    }
    let qpn = u32::from_be_bytes([0, payload[5], payload[6], payload[7]]);
    let whole =
        packet.get(..addresses.datagram_header_len() + payload.len()).is_some_and(roce::has_valid_icrc);
    Some((addresses.source(), addresses.destination(), qpn, whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::wire::frame::FrameRoute;
    use dta_proto::wire::roce::{BthFields, Psn, RoceRepr, Transport};
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn packet(to: [u8; 4], qpn: u32) -> Vec<u8> {
        frame(FrameRoute::new(Ipv4Addr::new(10, 9, 0, 2), to.into(), qpn), qpn)
    }

    fn frame(route: FrameRoute, qpn: u32) -> Vec<u8> {
        let place = BthFields { dest_qp: qpn, psn: Psn::new(1), ack_req: false };
        let write = RoceRepr::write(Transport::Uc, place, 64, 5, &[7; 16], None);
        let mut bytes = vec![0; 200];
        let len = route.write_frame(&write, &mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn frames_are_distinguished_by_where_they_go_and_whether_they_are_whole() {
        let mut frames = FrameCounts::default();
        let mut damaged = packet([10, 9, 0, 1], 0x11);
        frames.count_packet(&damaged, true);
        // Ethernet padding after the packet does no harm.
        let mut padded = damaged.clone();
        padded.extend([0; 6]);
        frames.count_packet(&padded, true);
        *damaged.last_mut().unwrap() ^= 1;
        frames.count_packet(&damaged, true);
        frames.count_packet(&packet([10, 9, 0, 7], 0x11), true);
        frames.count_packet(&packet([10, 9, 0, 1], 0x11), false);
        frames.count_packet(&damaged[..30], true);
        assert_eq!((frames.total_frames(), frames.malformed), (6, 1));
        let to = |last| move |flow: &Flow| flow.destination == Ipv4Addr::new(10, 9, 0, last) && flow.to_us;
        assert_eq!(frames.sum(to(1)), Tally { frames: 3, wrong_icrc: 1 });
        assert_eq!(frames.sum(to(7)), Tally { frames: 1, wrong_icrc: 0 });
        assert_eq!(frames.sum(|flow| !flow.to_us).frames, 1);
        assert!(frames.flow_tallies().all(|(flow, _)| flow.queue_pair == 0x11));
    }

    #[test]
    fn frames_over_ipv6_are_distinguished_in_the_same_way() {
        let [from, to] = ["fd00::2", "fd00::1"].map(|ip| ip.parse::<Ipv6Addr>().unwrap());
        let addresses = AddressPair::V6 { source: from, destination: to };
        let route =
            FrameRoute { addresses, ..FrameRoute::new(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 0x11) };
        let whole = frame(route, 0x11);
        let mut frames = FrameCounts::default();
        frames.count_packet(&whole, true);
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        frames.count_packet(&damaged, true);
        frames.count_packet(&whole[..50], true);
        assert_eq!(frames.malformed, 1);
        let flow = Flow { source: from.into(), destination: to.into(), queue_pair: 0x11, to_us: true };
        assert_eq!(frames.flow_tallies().collect::<Vec<_>>(), [(&flow, &Tally { frames: 2, wrong_icrc: 1 })]);
    }

    #[test]
    fn a_flood_of_flows_takes_no_more_memory() {
        let mut frames = FrameCounts::default();
        (0..1000).for_each(|qpn| frames.count_packet(&packet([10, 9, 0, 1], qpn), true));
        assert_eq!((frames.flow_tallies().count(), frames.others, frames.total_frames()), (FLOWS, 744, 1000));
    }

    proptest! {
        #[test]
        fn any_bytes_are_counted_once(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut frames = FrameCounts::default();
            frames.count_packet(&bytes, true);
            prop_assert_eq!(frames.total_frames(), 1);
        }
    }
}
