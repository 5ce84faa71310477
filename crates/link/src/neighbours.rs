//! ARP (RFC 826), or neighbour discovery (RFC 4861), for an address that the kernel need not know.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use dta_proto::batch::ETHERNET_LEN;
use dta_proto::wire::AddressPair;
use dta_proto::wire::arp::{self, ArpOperation, TYPE_ARP};
use dta_proto::wire::ethernet::{self, Mac, TYPE_IPV4, TYPE_IPV6};
use dta_proto::wire::ndp::{self, NeighbourMessage};

/// Interval between requests for the same address.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Time after which a neighbour is no longer waited for; requests continue.
const GIVE_UP: Duration = Duration::from_secs(3);

const BROADCAST: Mac = Mac([0xff; 6]);

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Length of the longest message, without its Ethernet header.
pub(crate) const MESSAGE_MAX: usize = ndp::LEN;

#[derive(Debug)]
pub(crate) struct Neighbours {
    mac: Mac,
    ip: IpAddr,
    all: Vec<Neighbour>,
}

#[derive(Debug)]
struct Neighbour {
    ip: IpAddr,
    mac: Option<Mac>,
    since: Instant,
    asked: Option<Instant>,
}

impl Neighbours {
    pub(crate) fn new(mac: Mac, ip: IpAddr) -> Self {
        Self { mac, ip, all: Vec::new() }
    }

    /// Makes `ip` a neighbour, with its Ethernet address if known. The other IP version cannot be reached.
    pub(crate) fn add_neighbour(&mut self, ip: IpAddr, mac: Option<Mac>, now: Instant) {
        let fresh = Neighbour { ip, mac, since: now, asked: None };
        match self.all.iter_mut().find(|n| n.ip == ip) {
            // An address learned by ARP stays unless a better one is given.
            Some(known) if mac.is_some() || known.mac.is_none() => *known = fresh,
            Some(_) => {}
            None => self.all.push(fresh),
        }
    }

    /// Whether every neighbour is known, or has not answered for long enough.
    pub(crate) fn is_settled(&self, now: Instant) -> bool {
        self.all.iter().all(|n| n.mac.is_some() || now.duration_since(n.since) >= GIVE_UP)
    }

    pub(crate) fn silent_neighbours(&self) -> impl Iterator<Item = IpAddr> {
        self.all.iter().filter(|n| n.mac.is_none()).map(|n| n.ip)
    }

    /// The Ethernet header of a packet to `ip`.
    pub(crate) fn ethernet_header(&self, ip: IpAddr) -> Option<[u8; ETHERNET_LEN]> {
        let mac = self.all.iter().find(|n| n.ip == ip)?.mac?;
        let ethertype = if ip.is_ipv4() { TYPE_IPV4 } else { TYPE_IPV6 };
        Some(build_ethernet_header(mac, self.mac, ethertype))
    }

    fn learn_address(&mut self, ip: IpAddr, mac: Mac) {
        if let Some(known) = self.all.iter_mut().find(|n| n.ip == ip) {
            known.mac = Some(mac);
        }
    }

    /// Processes a neighbour discovery packet in a frame from `frame_source`; returns the answer if it asks for us.
    pub(crate) fn handle_discovery(&mut self, frame_source: Mac, packet: &[u8]) -> Option<Vec<u8>> {
        let message = NeighbourMessage::parse_packet(packet).ok()?;
        let sender = if message.is_advertisement { message.target } else { message.source };
        if let Some(mac) = message.mac {
            self.learn_address(sender.into(), mac);
        }
        if message.is_advertisement || IpAddr::V6(message.target) != self.ip {
            return None;
        }
        // RFC 4861, 7.2.4. A sender without an address asks whether anybody has this one: the answer goes to all nodes.
        // Others are on this link, so without an Ethernet address of theirs, the answer goes where the frame came from.
        let (destination, mac) = match message.source.is_unspecified() {
            true => (ALL_NODES, ndp::multicast_mac(ALL_NODES)),
            false => (message.source, message.mac.unwrap_or(frame_source)),
        };
        let answer = NeighbourMessage {
            is_advertisement: true,
            source: message.target,
            destination,
            target: message.target,
            mac: Some(self.mac),
        };
        Some(build_discovery_frame(mac, self.mac, &answer))
    }

    /// Processes an ARP message; returns the reply if it is a request for our address.
    pub(crate) fn handle_arp_message(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let message = arp::ArpRepr::parse_bytes(message).ok()?;
        self.learn_address(message.sender_ip.into(), message.sender_mac);
        let asked = message.operation == ArpOperation::Request && message.target_ip == self.ip;
        asked.then(|| build_arp_frame(message.sender_mac, &message.reply_with_mac(self.mac)))
    }

    pub(crate) fn next_due_request(&mut self, now: Instant) -> Option<Vec<u8>> {
        let own = self.ip;
        let due = |n: &&mut Neighbour| {
            n.mac.is_none()
                && n.ip.is_ipv4() == own.is_ipv4()
                && n.asked.is_none_or(|at| now.duration_since(at) >= ASK_AGAIN)
        };
        let neighbour = self.all.iter_mut().find(due)?;
        neighbour.asked = Some(now);
        match AddressPair::from_addresses(own, neighbour.ip)? {
            AddressPair::V4 { source, destination } => {
                let question = arp::ArpRepr {
                    operation: ArpOperation::Request,
                    sender_mac: self.mac,
                    sender_ip: source,
                    target_mac: Mac([0; 6]),
                    target_ip: destination,
                };
                Some(build_arp_frame(BROADCAST, &question))
            }
            AddressPair::V6 { source, destination: target } => {
                let group = ndp::solicited_node_group(target);
                let mac = Some(self.mac);
                let question =
                    NeighbourMessage { is_advertisement: false, source, destination: group, target, mac };
                Some(build_discovery_frame(ndp::multicast_mac(group), self.mac, &question))
            }
        }
    }
}

fn build_ethernet_header(dst: Mac, src: Mac, ethertype: u16) -> [u8; ETHERNET_LEN] {
    let mut header = [0; ETHERNET_LEN];
    ethernet::EthernetRepr { dst, src, ethertype }.encode_into(&mut header);
    header
}

fn build_arp_frame(to: Mac, message: &arp::ArpRepr) -> Vec<u8> {
    let mut body = [0; arp::LEN];
    message.encode_into(&mut body);
    [&build_ethernet_header(to, message.sender_mac, TYPE_ARP)[..], &body].concat()
}

fn build_discovery_frame(to: Mac, from: Mac, message: &NeighbourMessage) -> Vec<u8> {
    [&build_ethernet_header(to, from, TYPE_IPV6)[..], &message.to_packet()].concat()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use dta_proto::wire::{checksum, ipv6};

    use super::*;

    const US: (Mac, IpAddr) = (Mac([2, 0, 0, 0, 0, 2]), IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)));
    const PEER: (Mac, IpAddr) = (Mac([2, 0, 0, 0, 0, 1]), IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)));

    fn asks(sender: (Mac, IpAddr), target: IpAddr) -> Vec<u8> {
        let mut others = Neighbours::new(sender.0, sender.1);
        others.add_neighbour(target, None, Instant::now());
        others.next_due_request(Instant::now()).expect("a question")[ETHERNET_LEN..].to_vec()
    }

    #[test]
    fn a_question_for_us_is_answered() {
        let mut us = Neighbours::new(US.0, US.1);
        let answer = us.handle_arp_message(&asks(PEER, US.1)).expect("an answer");
        let expected = [
            2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6, // Ethernet
            0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 2, 10, 9, 0, 2, 2, 0, 0, 0, 0, 1, 10, 9, 0, 1,
        ];
        assert_eq!(answer, expected);
        assert_eq!(us.handle_arp_message(&asks(PEER, [10, 9, 0, 3].into())), None, "for somebody else");
        assert_eq!(us.handle_arp_message(&answer[ETHERNET_LEN..]), None, "an answer is not answered");
        assert_eq!(us.handle_arp_message(b"no ARP"), None);
    }

    #[test]
    fn a_neighbour_is_asked_for_until_it_answers() {
        let start = Instant::now();
        let mut us = Neighbours::new(US.0, US.1);
        assert!(us.is_settled(start), "nobody is wanted");
        us.add_neighbour(PEER.1, None, start);
        assert!(!us.is_settled(start));
        assert_eq!(us.ethernet_header(PEER.1), None);
        let question = us.next_due_request(start).expect("a question");
        assert_eq!(question[..6], [0xff; 6]);
        assert_eq!(us.next_due_request(start), None, "asked already");
        assert!(us.next_due_request(start + ASK_AGAIN).is_some(), "asked again");

        let mut peer = Neighbours::new(PEER.0, PEER.1);
        let answer = peer.handle_arp_message(&question[ETHERNET_LEN..]).expect("it answers");
        assert_eq!(us.handle_arp_message(&answer[ETHERNET_LEN..]), None);
        assert!(us.is_settled(start));
        assert_eq!(us.ethernet_header(PEER.1), Some([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]));
        assert_eq!(us.next_due_request(start + 9 * ASK_AGAIN), None);
    }

    #[test]
    fn who_does_not_answer_is_not_waited_for() {
        let start = Instant::now();
        let mut us = Neighbours::new(US.0, US.1);
        us.add_neighbour(PEER.1, None, start);
        assert!(us.is_settled(start + GIVE_UP));
        assert_eq!(us.silent_neighbours().collect::<Vec<_>>(), [PEER.1]);
        assert!(us.next_due_request(start + GIVE_UP).is_some(), "but still asked");
    }

    #[test]
    fn what_is_configured_and_what_is_heard() {
        let start = Instant::now();
        let mut us = Neighbours::new(US.0, US.1);
        us.add_neighbour(PEER.1, Some(PEER.0), start);
        assert!(us.is_settled(start) && us.next_due_request(start).is_none());
        // The peer comes back with another Ethernet address and asks for us.
        us.handle_arp_message(&asks((Mac([2, 0, 0, 0, 0, 9]), PEER.1), US.1));
        assert_eq!(us.ethernet_header(PEER.1).map(|h| h[5]), Some(9));
        us.add_neighbour(PEER.1, None, start);
        assert_eq!(us.ethernet_header(PEER.1).map(|h| h[5]), Some(9), "knowing nothing is no news");
        us.add_neighbour(PEER.1, Some(PEER.0), start);
        assert_eq!(us.ethernet_header(PEER.1).map(|h| h[5]), Some(1));
        // Strangers are not recorded.
        us.handle_arp_message(&asks((Mac([2, 0, 0, 0, 0, 7]), [10, 9, 0, 7].into()), US.1));
        assert_eq!(us.ethernet_header([10, 9, 0, 7].into()), None);
    }

    #[test]
    fn neighbours_over_ipv6_find_each_other() {
        let start = Instant::now();
        let [us_ip, peer_ip] = ["fd00::12:3456", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let (mut us, mut peer) = (Neighbours::new(US.0, us_ip), Neighbours::new(PEER.0, peer_ip));
        us.add_neighbour(PEER.1, None, start);
        assert_eq!(us.next_due_request(start), None, "IPv4 has nothing to ask with");
        us.add_neighbour(peer_ip, None, start);
        peer.add_neighbour(us_ip, None, start);
        let question = us.next_due_request(start).expect("a question");
        assert_eq!(question[..14], [0x33, 0x33, 0xff, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd]);
        let answer = peer.handle_discovery(US.0, &question[ETHERNET_LEN..]).expect("it answers");
        assert_eq!(answer[..14], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd]);
        assert_eq!(peer.ethernet_header(us_ip).map(|h| h[5]), Some(2), "learned from the question");
        assert_eq!(us.handle_discovery(PEER.0, &answer[ETHERNET_LEN..]), None);
        assert_eq!(us.ethernet_header(peer_ip), Some([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd]));
        let mut stranger = Neighbours::new(PEER.0, "fd00::9".parse().unwrap());
        assert_eq!(stranger.handle_discovery(US.0, &question[ETHERNET_LEN..]), None, "for somebody else");

        // A host that is about to use our address.
        let IpAddr::V6(target) = us_ip else { unreachable!() };
        let probe = NeighbourMessage {
            is_advertisement: false,
            source: Ipv6Addr::UNSPECIFIED,
            destination: ndp::solicited_node_group(target),
            target,
            mac: None,
        };
        let answer = us.handle_discovery(PEER.0, &probe.to_packet()).expect("it is ours");
        assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
    }

    #[test]
    fn who_asks_without_an_ethernet_address_is_answered_where_the_frame_came_from() {
        let [us_ip, peer_ip] = ["fd00::12:3456", "fd00::1"].map(|ip| ip.parse::<Ipv6Addr>().unwrap());
        let mut us = Neighbours::new(US.0, us_ip.into());
        let question = NeighbourMessage {
            is_advertisement: false,
            source: peer_ip,
            destination: us_ip,
            target: us_ip,
            mac: Some(PEER.0),
        };
        // The message ends before the option, and so does its checksum.
        let mut packet = question.to_packet()[..ndp::LEN - 8].to_vec();
        packet[5] -= 8;
        packet[42..44].fill(0);
        let pseudo_header =
            [&peer_ip.octets()[..], &us_ip.octets(), &[0, 0, 0, 24, 0, 0, 0, ipv6::NEXT_ICMPV6]].concat();
        let sum = checksum::fold_checksum(checksum::add(checksum::add(0, &pseudo_header), &packet[40..]));
        packet[42..44].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(NeighbourMessage::parse_packet(&packet), Ok(NeighbourMessage { mac: None, ..question }));
        let answer = us.handle_discovery(PEER.0, &packet).expect("it is ours");
        assert_eq!(answer[..6], PEER.0.0);
        let message = NeighbourMessage::parse_packet(&answer[ETHERNET_LEN..]).unwrap();
        assert_eq!((message.destination, message.mac), (peer_ip, Some(US.0)));
        assert_eq!(answer[ETHERNET_LEN + 44], 0x60, "solicited, override");
    }
}
