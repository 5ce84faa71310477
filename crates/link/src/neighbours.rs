//! ARP (RFC 826) for an address that the kernel need not know.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use dta_proto::batch::ETHERNET_LEN;
use dta_proto::wire::arp::{self, ArpOperation, TYPE_ARP};
use dta_proto::wire::ethernet::{self, Mac, TYPE_IPV4};

/// Interval between requests for the same address.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Time after which a neighbour is no longer waited for; requests continue.
const GIVE_UP: Duration = Duration::from_secs(3);

const BROADCAST: Mac = Mac([0xff; 6]);

/// Length of an ARP message with its Ethernet header.
pub(crate) const ARP_FRAME: usize = ETHERNET_LEN + arp::LEN;

#[derive(Debug)]
pub(crate) struct Neighbours {
    mac: Mac,
    ip: Ipv4Addr,
    all: Vec<Neighbour>,
}

#[derive(Debug)]
struct Neighbour {
    ip: Ipv4Addr,
    mac: Option<Mac>,
    since: Instant,
    asked: Option<Instant>,
}

impl Neighbours {
    pub(crate) fn new(mac: Mac, ip: Ipv4Addr) -> Self {
        Self { mac, ip, all: Vec::new() }
    }

    /// Makes `ip` a neighbour, with its Ethernet address if known.
    pub(crate) fn add_neighbour(&mut self, ip: Ipv4Addr, mac: Option<Mac>, now: Instant) {
        let fresh = Neighbour { ip, mac, since: now, asked: None };
        match self.all.iter_mut().find(|n| n.ip == ip) {
            // An address learned by ARP stays unless a better one is given.
            Some(known) if mac.is_some() || known.mac.is_none() => *known = fresh,
            Some(_) => {}
            None => self.all.push(fresh),
        }
    }

    /// Whether every neighbour is known, or was requested in vain for long enough.
    pub(crate) fn is_settled(&self, now: Instant) -> bool {
        self.all.iter().all(|n| n.mac.is_some() || now.duration_since(n.since) >= GIVE_UP)
    }

    pub(crate) fn silent_neighbours(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.all.iter().filter(|n| n.mac.is_none()).map(|n| n.ip)
    }

    /// The Ethernet header of an IPv4 packet to `ip`.
    pub(crate) fn ethernet_header(&self, ip: Ipv4Addr) -> Option<[u8; ETHERNET_LEN]> {
        let mac = self.all.iter().find(|n| n.ip == ip)?.mac?;
        Some(build_ethernet_header(mac, self.mac, TYPE_IPV4))
    }

    /// Processes an ARP message; returns the reply if it is a request for us.
    pub(crate) fn handle_arp_message(&mut self, message: &[u8]) -> Option<[u8; ARP_FRAME]> {
        let message = arp::ArpRepr::parse_bytes(message).ok()?;
        if let Some(known) = self.all.iter_mut().find(|n| n.ip == message.sender_ip) {
            known.mac = Some(message.sender_mac);
        }
        let asked = message.operation == ArpOperation::Request && message.target_ip == self.ip;
        asked.then(|| build_arp_frame(message.sender_mac, &message.reply_with_mac(self.mac)))
    }

    /// The next request that is due, if any.
    pub(crate) fn next_due_request(&mut self, now: Instant) -> Option<[u8; ARP_FRAME]> {
        let due = |n: &&mut Neighbour| {
            n.mac.is_none() && n.asked.is_none_or(|at| now.duration_since(at) >= ASK_AGAIN)
        };
        let neighbour = self.all.iter_mut().find(due)?;
        neighbour.asked = Some(now);
        let question = arp::ArpRepr {
            operation: ArpOperation::Request,
            sender_mac: self.mac,
            sender_ip: self.ip,
            target_mac: Mac([0; 6]),
            target_ip: neighbour.ip,
        };
        Some(build_arp_frame(BROADCAST, &question))
    }
}

fn build_ethernet_header(dst: Mac, src: Mac, ethertype: u16) -> [u8; ETHERNET_LEN] {
    let mut header = [0; ETHERNET_LEN];
    ethernet::EthernetRepr { dst, src, ethertype }.encode_into(&mut header);
    header
}

fn build_arp_frame(to: Mac, message: &arp::ArpRepr) -> [u8; ARP_FRAME] {
    let mut body = [0; arp::LEN];
    message.encode_into(&mut body);
    let mut frame = [0; ARP_FRAME];
    frame[..ETHERNET_LEN].copy_from_slice(&build_ethernet_header(to, message.sender_mac, TYPE_ARP));
    frame[ETHERNET_LEN..].copy_from_slice(&body);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: (Mac, Ipv4Addr) = (Mac([2, 0, 0, 0, 0, 2]), Ipv4Addr::new(10, 9, 0, 2));
    const PEER: (Mac, Ipv4Addr) = (Mac([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 9, 0, 1));

    fn asks(sender: (Mac, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
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
        assert_eq!(us.handle_arp_message(&asks(PEER, Ipv4Addr::new(10, 9, 0, 3))), None, "for somebody else");
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
    fn what_is_told_and_what_is_heard() {
        let start = Instant::now();
        let mut us = Neighbours::new(US.0, US.1);
        us.add_neighbour(PEER.1, Some(PEER.0), start);
        assert!(us.is_settled(start) && us.next_due_request(start).is_none());
        // It returns with another Ethernet address and asks for us.
        us.handle_arp_message(&asks((Mac([2, 0, 0, 0, 0, 9]), PEER.1), US.1));
        assert_eq!(us.ethernet_header(PEER.1).map(|h| h[5]), Some(9));
        us.add_neighbour(PEER.1, None, start);
        assert_eq!(us.ethernet_header(PEER.1).map(|h| h[5]), Some(9), "knowing nothing is no news");
        us.add_neighbour(PEER.1, Some(PEER.0), start);
        assert_eq!(us.ethernet_header(PEER.1).map(|h| h[5]), Some(1));
        // Strangers are not recorded.
        us.handle_arp_message(&asks((Mac([2, 0, 0, 0, 0, 7]), Ipv4Addr::new(10, 9, 0, 7)), US.1));
        assert_eq!(us.ethernet_header(Ipv4Addr::new(10, 9, 0, 7)), None);
    }
}
