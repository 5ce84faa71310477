//! Filters compiled to the kernel's table, checked against a plain evaluator of the same filters over frames
//! of all kinds.

mod twin;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dta_reporter::packet_trace::filter::{FilterError, compile_filter};
use dta_reporter::packet_trace::matching::{FilterTable, TERMS, TESTS, TooLong};
use proptest::prelude::*;

use twin::packet::{self, Start};

/// An IP packet. Source and destination are of one family.
#[derive(Clone, Debug)]
struct Ip {
    src: IpAddr,
    dst: IpAddr,
    proto: u8,
    sport: u16,
    dport: u16,
    tcp_flags: u8,
    /// A fragment but the first (of IPv4 alone here).
    later: bool,
}

#[derive(Clone, Debug)]
struct Packet {
    vlan: Option<u16>,
    inner: Ip,
    /// Of VXLAN around it.
    outer: Option<Ip>,
}

impl Ip {
    fn has_ports(&self) -> bool {
        matches!(self.proto, 6 | 17 | 132) && !self.later
    }

    fn transport(&self, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let ports = [self.sport.to_be_bytes(), self.dport.to_be_bytes()].concat();
        match self.proto {
            _ if self.later => bytes.resize(40, 0xee),
            6 => {
                bytes = ports;
                bytes.extend([0; 8]);
                bytes.extend([5 << 4, self.tcp_flags, 0, 0, 0, 0, 0, 0]);
            }
            17 => {
                bytes = ports;
                bytes.extend((8 + payload.len() as u16).to_be_bytes());
                bytes.extend([0; 2]);
            }
            132 => {
                bytes = ports;
                bytes.extend([0; 8]);
            }
            // Where others have ports is something else.
            _ => bytes.extend([8, 0, 0x1f, 0x90, 0, 80, 0, 80]),
        }
        bytes.extend(payload);
        bytes
    }

    fn bytes(&self, payload: &[u8]) -> Vec<u8> {
        let transport = self.transport(payload);
        let mut bytes = Vec::new();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes.extend([0x45, 0]);
                bytes.extend((20 + transport.len() as u16).to_be_bytes());
                bytes.extend([1, 2, 0, if self.later { 9 } else { 0 }, 64, self.proto, 0, 0]);
                bytes.extend(src.octets());
                bytes.extend(dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                bytes.extend([0x60, 0, 0, 0]);
                bytes.extend((transport.len() as u16).to_be_bytes());
                bytes.extend([self.proto, 64]);
                bytes.extend(src.octets());
                bytes.extend(dst.octets());
            }
            _ => panic!("{self:?}"),
        }
        bytes.extend(transport);
        bytes
    }
}

fn ethernet(vlan: Option<u16>, ip: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    if let Some(vlan) = vlan {
        bytes.extend([0x81, 0]);
        bytes.extend(vlan.to_be_bytes());
    }
    bytes.extend(if ip[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] });
    bytes.extend(ip);
    bytes
}

impl Packet {
    fn frame(&self) -> Vec<u8> {
        let mut ip = self.inner.bytes(&[0xab; 24]);
        if let Some(outer) = &self.outer {
            let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &ethernet(None, &ip)].concat();
            ip = outer.bytes(&vxlan);
        }
        ethernet(self.vlan, &ip)
    }

    fn of(&self, outer: bool) -> &Ip {
        self.outer.as_ref().filter(|_| outer).unwrap_or(&self.inner)
    }
}

#[derive(Clone, Copy, Debug)]
enum Ends {
    Source,
    Destination,
    Either,
    Both,
}

#[derive(Clone, Debug)]
enum What {
    Host(IpAddr),
    Net(IpAddr, u8),
    Ports(u16, u16),
}

/// A filter by its meaning.
#[derive(Clone, Debug)]
enum Filter {
    Named { before: &'static str, ends: Ends, what: What },
    Protocol(&'static str),
    Number(&'static str, u8),
    Flags { mask: u8, equal: u8, not: bool },
    Vlan(Option<u16>),
    Not(Box<Filter>),
    And(Box<Filter>, Box<Filter>),
    Or(Box<Filter>, Box<Filter>),
    Outer(Box<Filter>),
}

fn is_protocol(word: &str, ip: &Ip) -> bool {
    match word {
        "ip" => ip.src.is_ipv4(),
        "ip6" => ip.src.is_ipv6(),
        "tcp" => ip.proto == 6,
        "udp" => ip.proto == 17,
        "sctp" => ip.proto == 132,
        "icmp" => ip.src.is_ipv4() && ip.proto == 1,
        "icmp6" => ip.src.is_ipv6() && ip.proto == 58,
        "" | "proto" => true,
        _ => panic!("{word}"),
    }
}

fn is_in(address: IpAddr, net: IpAddr, length: u8) -> bool {
    match (address, net) {
        (IpAddr::V4(a), IpAddr::V4(n)) => {
            (0..length).all(|i| (a.to_bits() ^ n.to_bits()) >> (31 - i) & 1 == 0)
        }
        (IpAddr::V6(a), IpAddr::V6(n)) => {
            (0..length).all(|i| (a.to_bits() ^ n.to_bits()) >> (127 - i) & 1 == 0)
        }
        _ => false,
    }
}

impl Filter {
    fn text(&self) -> String {
        match self {
            Filter::Named { before, ends, what } => {
                let ends = match ends {
                    Ends::Source => "src ",
                    Ends::Destination => "dst ",
                    Ends::Either => "",
                    Ends::Both => "src and dst ",
                };
                let what = match what {
                    What::Host(address) => format!("host {address}"),
                    What::Net(address, length) => format!("net {address}/{length}"),
                    What::Ports(low, high) if low == high => format!("port {low}"),
                    What::Ports(low, high) => format!("portrange {low}-{high}"),
                };
                format!("{before} {ends}{what}")
            }
            Filter::Protocol(word) => (*word).to_owned(),
            Filter::Number("proto", number) => format!("proto {number}"),
            Filter::Number(word, number) => format!("{word} proto {number}"),
            Filter::Flags { mask, equal, not } => {
                format!("tcp[tcpflags] & {mask:#x} {} {equal}", if *not { "!=" } else { "==" })
            }
            Filter::Vlan(None) => "vlan".to_owned(),
            Filter::Vlan(Some(number)) => format!("vlan {number}"),
            Filter::Not(filter) => format!("not ({})", filter.text()),
            Filter::And(a, b) => format!("({}) && ({})", a.text(), b.text()),
            Filter::Or(a, b) => format!("({}) or ({})", a.text(), b.text()),
            Filter::Outer(filter) => format!("outer ({})", filter.text()),
        }
    }

    fn chooses(&self, packet: &Packet, outer: bool) -> bool {
        let ip = packet.of(outer);
        match self {
            Filter::Named { before, ends, what } => {
                let of = |source: bool| match what {
                    What::Host(address) => *address == if source { ip.src } else { ip.dst },
                    What::Net(net, length) => is_in(if source { ip.src } else { ip.dst }, *net, *length),
                    What::Ports(low, high) => {
                        ip.has_ports() && (*low..=*high).contains(if source { &ip.sport } else { &ip.dport })
                    }
                };
                let is = match ends {
                    Ends::Source => of(true),
                    Ends::Destination => of(false),
                    Ends::Either => of(true) || of(false),
                    Ends::Both => of(true) && of(false),
                };
                is && is_protocol(before, ip)
            }
            Filter::Protocol(word) => is_protocol(word, ip),
            Filter::Number(word, number) => is_protocol(word, ip) && ip.proto == *number,
            Filter::Flags { mask, equal, not } => {
                ip.proto == 6 && !ip.later && (ip.tcp_flags & mask == *equal) != *not
            }
            // VLANs are around the packet, and neither inside nor outside of it.
            Filter::Vlan(None) => packet.vlan.is_some(),
            Filter::Vlan(number) => packet.vlan == *number,
            Filter::Not(filter) => !filter.chooses(packet, outer),
            Filter::And(a, b) => a.chooses(packet, outer) && b.chooses(packet, outer),
            Filter::Or(a, b) => a.chooses(packet, outer) || b.chooses(packet, outer),
            Filter::Outer(filter) => filter.chooses(packet, true),
        }
    }
}

const V4: [&str; 6] = ["10.0.0.1", "10.0.0.2", "10.255.0.1", "11.0.0.1", "0.0.0.0", "255.255.255.255"];
const V6: [&str; 6] =
    ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "fe80::1", "1::ffff:10.0.0.1", "::ffff:0:10.0.0.1"];
const PORTS: [u16; 7] = [0, 79, 80, 81, 443, 8080, 65535];

fn address(v6: bool) -> impl Strategy<Value = IpAddr> {
    prop::sample::select(if v6 { &V6[..] } else { &V4[..] }).prop_map(|text| text.parse().unwrap())
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    any::<bool>().prop_flat_map(address)
}

fn port() -> impl Strategy<Value = u16> {
    prop::sample::select(&PORTS[..])
}

fn ip(tunnel: bool) -> impl Strategy<Value = Ip> {
    let protocols = if tunnel { &[17][..] } else { &[6, 17, 132, 1, 58, 50, 6, 17][..] };
    (any::<bool>(), prop::sample::select(protocols), any::<u8>(), prop::bool::weighted(0.1)).prop_flat_map(
        move |(v6, proto, tcp_flags, later)| {
            (address(v6), address(v6), port(), port()).prop_map(move |(src, dst, sport, dport)| {
                let dport = if tunnel { 4789 } else { dport };
                let later = later && !v6 && !tunnel;
                Ip { src, dst, proto, sport, dport, tcp_flags, later }
            })
        },
    )
}

fn packet() -> impl Strategy<Value = Packet> {
    let vlan = prop::option::weighted(0.3, prop::sample::select(vec![1u16, 2, 100, 4094]));
    (vlan, ip(false), prop::option::weighted(0.4, ip(true))).prop_map(|(vlan, inner, outer)| Packet {
        vlan,
        inner,
        outer,
    })
}

fn leaf() -> impl Strategy<Value = Filter> {
    let ends =
        prop::sample::select(vec![Ends::Source, Ends::Destination, Ends::Either, Ends::Either, Ends::Both]);
    let net = (any_address(), 0u8..=128).prop_map(|(address, length)| match address {
        IpAddr::V4(a) => {
            let length = length % 33;
            let kept = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            What::Net(Ipv4Addr::from_bits(a.to_bits() & kept).into(), length)
        }
        IpAddr::V6(a) => {
            let kept = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            What::Net(Ipv6Addr::from_bits(a.to_bits() & kept).into(), length)
        }
    });
    let with_address = prop_oneof![any_address().prop_map(What::Host), net];
    let named = (prop::sample::select(vec!["", "", "tcp", "udp"]), ends.clone(), with_address)
        .prop_map(|(before, ends, what)| Filter::Named { before, ends, what });
    let ports =
        (prop::sample::select(vec!["", "tcp", "udp", "sctp", "ip", "ip6"]), ends, port(), port()).prop_map(
            |(before, ends, a, b)| Filter::Named { before, ends, what: What::Ports(a.min(b), a.max(b)) },
        );
    prop_oneof![
        3 => named,
        3 => ports,
        1 => prop::sample::select(vec!["ip", "ip6", "tcp", "udp", "sctp", "icmp", "icmp6"]).prop_map(Filter::Protocol),
        1 => (prop::sample::select(vec!["ip", "ip6", "proto"]), prop::sample::select(vec![1u8, 6, 17, 58]))
            .prop_map(|(word, number)| Filter::Number(word, number)),
        1 => (any::<u8>(), any::<u8>(), any::<bool>())
            .prop_map(|(mask, equal, not)| Filter::Flags { mask, equal: equal & mask, not }),
        1 => prop::option::of(prop::sample::select(vec![1u16, 2, 100])).prop_map(Filter::Vlan),
    ]
}

fn filter() -> impl Strategy<Value = Filter> {
    leaf().prop_recursive(4, 12, 2, |inner| {
        let two = (inner.clone(), inner.clone());
        prop_oneof![
            two.clone().prop_map(|(a, b)| Filter::And(a.into(), b.into())),
            two.prop_map(|(a, b)| Filter::Or(a.into(), b.into())),
            inner.clone().prop_map(|filter| Filter::Not(filter.into())),
            inner.prop_map(|filter| Filter::Outer(filter.into())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The table selects what the filter means; a filter that does not fit is refused.
    #[test]
    fn the_table_chooses_what_the_filter_means(filter in filter(), packets in prop::collection::vec(packet(), 16)) {
        let text = filter.text();
        let table = match compile_filter(&text) {
            Ok(table) => table,
            Err(FilterError::TooLong(_)) => return Ok(()),
            Err(FilterError::Syntax { wanted, .. }) if wanted.contains("other IP version") => return Ok(()),
            Err(error) => panic!("{text}: {error}"),
        };
        prop_assert!(tests_of(&table) <= TESTS && table.terms().len() <= TERMS);
        for packet in packets {
            let frame = packet.frame();
            let read = packet::read(&frame, Start::Ethernet).unwrap();
            prop_assert_eq!(
                table.matches_packet(&read.words()), filter.chooses(&packet, false),
                "{} on {:?}: {:?}", text, packet, table
            );
        }
    }

    #[test]
    fn any_text_is_a_filter_or_an_error(text in "[a-z0-9:./()!&|=\\[\\] -]{0,40}") {
        let _ = compile_filter(&text);
    }

    #[test]
    fn any_words_are_a_filter_or_an_error(
        words in prop::collection::vec(prop::sample::select(vec![
            "and", "or", "not", "(", ")", "tcp", "port", "80", "src", "dst", "host", "10.0.0.1", "net", "10", "mask", "ip6",
            "proto", "[", "tcpflags", "]", "&", "=", "vlan", "outer", "portrange", "1-2", "icmp",
        ]), 0..12)
    ) {
        let _ = compile_filter(&words.join(" "));
    }
}

/// Whether two filters have the same table.
fn same(a: &str, b: &str) {
    assert_eq!(compile_filter(a).unwrap(), compile_filter(b).unwrap(), "{a} and {b}");
}

#[test]
fn what_pcap_users_write_means_what_they_mean() {
    same("", "   ");
    same("tcp port 80", "tcp and port 80");
    same("host 10.0.0.1 or 10.0.0.2", "host 10.0.0.1 or host 10.0.0.2");
    same("tcp dst port 80 or 443", "tcp dst port 80 or tcp dst port 443");
    same("not host 10.0.0.1 and 10.0.0.2", "(not host 10.0.0.1) and host 10.0.0.2");
    same("! tcp && udp", "(not tcp) and udp");
    // `and` and `or` bind alike, from the left.
    same("tcp or udp and port 80", "(tcp or udp) and port 80");
    same("src 10.0.0.1", "src host 10.0.0.1");
    same("src 10.0.0.0/8", "src net 10.0.0.0/8");
    same("10.0.0.1", "host 10.0.0.1");
    same("net 10", "net 10.0.0.0/8");
    same("net 10.1.0.0 mask 255.255.0.0", "net 10.1.0.0/16");
    same("ip host 10.0.0.1", "host 10.0.0.1");
    same("src or dst port 53", "port 53");
    same("ip proto \\tcp", "ip and tcp");
    same("ip proto 6", "ip and tcp");
    same("portrange 2000-1000", "portrange 1000-2000");
    same("tcp[13] & 2 != 0", "tcp[tcpflags] & tcp-syn != 0");
    same("tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn", "tcp[13] & 0x12 == 2");
    same("outer inner tcp", "tcp");
    same("outer (udp port 4789) and tcp port 80", "(outer udp port 4789) and (tcp port 80)");
    same("not not tcp", "tcp");
    // Nothing is chosen.
    assert!(compile_filter("tcp and udp").unwrap().terms().is_empty());
}

/// The number of a table's tests, as the kernel reads it.
fn tests_of(table: &FilterTable) -> usize {
    u32::from_ne_bytes(*table.to_bytes().first_chunk().unwrap()) as usize
}

#[test]
fn a_usual_filter_takes_few_tests_and_terms() {
    for (text, tests, terms) in [
        ("tcp port 80", 4, 2),
        ("tcp port 80 and net 10.0.0.0/8", 7, 4),
        ("port 53", 6, 6),
        ("host 2001:db8::1", 5, 2),
        ("not net 10.0.0.0/8", 3, 2),
        ("ip6", 1, 1),
    ] {
        let table = compile_filter(text).unwrap();
        assert_eq!((tests_of(&table), table.terms().len()), (tests, terms), "{text}: {table:?}");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (text, expected) in [
        ("ether host 2:2:2:2:2:2", "`ether` is not supported"),
        ("tcp and less 100", "`less` is not supported"),
        ("not arp", "`arp` is not supported: only IP packets are traced"),
        ("ip multicast", "multicast"),
        ("inbound", "`inbound` is not supported: choose points with --at instead"),
        ("ip[6:2] & 0x1fff != 0", "`ip[...]` is not supported"),
        ("tcp[0:2] = 80", "`tcp[...]` is not supported"),
        ("geneve", "leave it out"),
    ] {
        let error = compile_filter(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn what_is_wrong_is_shown_where_it_stands() {
    for (text, expected) in [
        ("tcp port", "at the end: a name or number is missing"),
        ("tcp port http", "at `http`: a port is a number"),
        ("host example.org", "at `example.org`: a host is written as an address"),
        ("foo", "at `foo`: neither a word of the language"),
        ("tcp udp", "at `udp`: neither a word"),
        ("tcp )", "at `)`: write `and` or `or`"),
        ("(tcp", "at the end: a parenthesis is not closed"),
        ("tcp and", "at the end: a test is missing"),
        ("net 10.0.0.1/8", "at `10.0.0.1/8`: bits beyond"),
        ("ip6 host 10.0.0.1", "at `10.0.0.1`: an address of the other"),
        ("icmp port 80", "at `80`: that protocol has no ports"),
        ("port 65536", "at `65536`"),
        ("vlan 4095", "at `4095`: VLANs are 1 to 4094"),
        ("tcp proto 6", "at `proto`"),
        ("proto 256", "at `256`"),
        ("tcp[tcpflags] 3", "at `3`: compare"),
    ] {
        let error = compile_filter(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    assert_eq!(compile_filter(&"not ".repeat(1000)), Err(FilterError::Deep));
    assert_eq!(compile_filter(&"(".repeat(8_000)), Err(FilterError::Deep));
    assert_eq!(compile_filter(&"(".repeat(100_000)), Err(FilterError::Long(100_000)));
}

#[test]
fn a_filter_that_does_not_fit_says_what_there_is_room_for() {
    let ports = |n: u16| (1..=n).map(|port| format!("tcp dst port {port}")).collect::<Vec<_>>().join(" or ");
    assert_eq!(compile_filter(&ports(30)).unwrap().terms().len(), 30);
    assert_eq!(compile_filter(&ports(31)), Err(TooLong::Tests(33).into()));
    let hosts: Vec<String> = (1..=8).map(|n| format!("10.0.0.{n}")).collect();
    let both = format!("(src host {}) and (dst host {})", hosts.join(" or "), hosts.join(" or "));
    assert_eq!(compile_filter(&both).unwrap().terms().len(), 64);
    let more = format!("({both}) or icmp");
    assert_eq!(compile_filter(&more), Err(TooLong::Terms(65).into()));
    let far = (1..=70).map(|n| format!("tcp dst port {n}")).collect::<Vec<_>>().join(" or ");
    assert!(compile_filter(&far).unwrap_err().to_string().contains("room for 32"));
}
