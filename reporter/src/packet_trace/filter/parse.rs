//! Parses a filter.

use std::net::IpAddr;

use super::FilterError;
use super::net::Net;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// The IP version, 4 or 6.
    Version(u8),
    Protocol(u8),
    Address(End, Net),
    /// A range of ports, both ends included.
    Port(End, u16, u16),
    /// A fragment other than the first.
    LaterFragment,
    /// TCP's flags, under a mask, equal this value.
    TcpFlags {
        mask: u8,
        equal: u8,
    },
    /// Any VLAN tag, or one with this number.
    Vlan(Option<u16>),
}

/// A filter over tests of the innermost or the outermost packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    Test { outer: bool, test: Test },
    Not(Box<Tree>),
    All(Vec<Tree>),
    Any(Vec<Tree>),
}

/// Deepest nesting of parentheses and of alternating `and` and `or`: the tree is walked by recursion.
pub(super) const DEEPEST: usize = 64;
/// Longest filter in bytes: several times what fits into the kernel's table.
pub(super) const LONGEST: usize = 8 << 10;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// Protocols that are words of the language, with their IP version and number.
const PROTOCOLS: [(&str, Option<u8>, u8); 10] = [
    ("icmp", Some(4), ICMP),
    ("igmp", Some(4), 2),
    ("tcp", None, TCP),
    ("udp", None, UDP),
    ("esp", None, 50),
    ("ah", None, 51),
    ("icmp6", Some(6), 58),
    ("pim", None, 103),
    ("vrrp", Some(4), 112),
    ("sctp", None, SCTP),
];

const FLAGS: [(&str, u8); 8] = [
    ("tcp-fin", 1),
    ("tcp-syn", 2),
    ("tcp-rst", 4),
    ("tcp-push", 8),
    ("tcp-ack", 16),
    ("tcp-urg", 32),
    ("tcp-ece", 64),
    ("tcp-cwr", 128),
];

const ETHERNET: &str = "points see packets from the IP header, not Ethernet addresses";
const ONLY_IP: &str = "only IP packets are traced";
const WLAN: &str = "points see packets from the IP header, not those of a wireless link";
const PLACE: &str = "choose points with --at instead";
const LENGTH: &str = "lengths differ from point to point, with the headers and with GSO";

/// Words of pcap's language that are rejected, and why.
const UNSUPPORTED: [(&str, &str); 46] = [
    ("ether", ETHERNET),
    ("broadcast", ETHERNET),
    ("multicast", "write a network, as in net 224.0.0.0/4"),
    ("gateway", ETHERNET),
    ("arp", ONLY_IP),
    ("rarp", ONLY_IP),
    ("decnet", ONLY_IP),
    ("atalk", ONLY_IP),
    ("aarp", ONLY_IP),
    ("lat", ONLY_IP),
    ("moprc", ONLY_IP),
    ("mopdl", ONLY_IP),
    ("iso", ONLY_IP),
    ("clnp", ONLY_IP),
    ("esis", ONLY_IP),
    ("isis", ONLY_IP),
    ("stp", ONLY_IP),
    ("ipx", ONLY_IP),
    ("netbeui", ONLY_IP),
    ("fddi", WLAN),
    ("tr", WLAN),
    ("wlan", WLAN),
    ("link", ETHERNET),
    ("llc", ETHERNET),
    ("ppp", ONLY_IP),
    ("slip", ONLY_IP),
    ("type", WLAN),
    ("subtype", WLAN),
    ("dir", WLAN),
    ("ra", WLAN),
    ("ta", WLAN),
    ("addr1", WLAN),
    ("addr2", WLAN),
    ("mpls", "the kernel's programs do not look under MPLS labels"),
    ("pppoed", ONLY_IP),
    ("pppoes", "the kernel's programs do not look into PPPoE"),
    ("geneve", "tests apply to the innermost packet anyway; leave it out"),
    ("vxlan", "tests apply to the innermost packet anyway; leave it out"),
    ("ifname", PLACE),
    ("on", PLACE),
    ("inbound", PLACE),
    ("outbound", PLACE),
    ("less", LENGTH),
    ("greater", LENGTH),
    ("len", LENGTH),
    ("protochain", "tests apply to the last header's protocol anyway: write proto"),
];

pub(super) fn parse_filter(text: &str) -> Result<Option<Tree>, FilterError> {
    if text.len() > LONGEST {
        return Err(FilterError::Long(text.len()));
    }
    let words = split_words(text);
    if words.is_empty() {
        return Ok(None);
    }
    let mut parser = Parser { words: &words, at: 0, last: None, outer: false, depth: 0 };
    let (tree, _) = parser.parse_expression()?;
    match parser.peek() {
        None => Ok(Some(tree)),
        Some(_) => Err(parser.syntax_error("write `and` or `or` between tests")),
    }
}

/// The kind of a name, such as `host` or `port`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Host,
    Net,
    Port,
    PortRange,
}

/// The qualifiers of a name, which also apply to later names that have none.
#[derive(Clone, Copy)]
struct Qualifiers {
    version: Option<u8>,
    protocol: Option<u8>,
    ends: FlowEnds,
    of: Option<Type>,
}

#[derive(Clone, Copy)]
enum FlowEnds {
    Either,
    Both,
    One(End),
}

/// The start of a word, for a message.
fn shorten_word(word: &str) -> String {
    word.chars().take(64).collect()
}

struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
    last: Option<Qualifiers>,
    outer: bool,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.peek();
        self.at += 1;
        word
    }

    /// Takes the word if it is one of these.
    fn take(&mut self, these: &[&str]) -> bool {
        let is = self.peek().is_some_and(|word| these.contains(&word));
        self.at += usize::from(is);
        is
    }

    fn syntax_error(&self, wanted: &'static str) -> FilterError {
        FilterError::Syntax { found: self.peek().map(shorten_word), wanted }
    }

    /// An error at the last word taken.
    fn wrong_last(&self, wanted: &'static str) -> FilterError {
        let found = self.at.checked_sub(1).and_then(|at| self.words.get(at));
        FilterError::Syntax { found: found.map(|word| shorten_word(word)), wanted }
    }

    /// Tests joined by `and` and `or`, left-associative with equal precedence; and the depth of the tree. A
    /// row of one operator is one level.
    fn parse_expression(&mut self) -> Result<(Tree, usize), FilterError> {
        let (mut tree, mut depth) = self.parse_negation()?;
        loop {
            let is_all = self.take(&["and", "&&"]);
            if !is_all && !self.take(&["or", "||"]) {
                return Ok((tree, depth));
            }
            let mut all = vec![tree];
            let mut deepest = depth;
            loop {
                let (next, depth) = self.parse_negation()?;
                all.push(next);
                deepest = deepest.max(depth);
                if !self.take(if is_all { &["and", "&&"] } else { &["or", "||"] }) {
                    break;
                }
            }
            depth = deepest + 1;
            if depth > DEEPEST {
                return Err(FilterError::Deep);
            }
            tree = if is_all { Tree::All(all) } else { Tree::Any(all) };
        }
    }

    fn parse_negation(&mut self) -> Result<(Tree, usize), FilterError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(FilterError::Deep);
        }
        let outer = self.outer;
        let tree = if self.take(&["not", "!"]) {
            let (tree, depth) = self.parse_negation()?;
            (Tree::Not(Box::new(tree)), depth + 1)
        } else if self.take(&["outer"]) {
            self.outer = true;
            self.parse_negation()?
        } else if self.take(&["inner"]) {
            self.outer = false;
            self.parse_negation()?
        } else if self.take(&["("]) {
            let tree = self.parse_expression()?;
            if !self.take(&[")"]) {
                return Err(self.syntax_error("a parenthesis is not closed"));
            }
            tree
        } else {
            (self.primitive()?, 0)
        };
        self.outer = outer;
        self.depth -= 1;
        Ok(tree)
    }

    fn test_node(&self, test: Test) -> Tree {
        Tree::Test { outer: self.outer, test }
    }

    /// One test, with its qualifiers.
    fn primitive(&mut self) -> Result<Tree, FilterError> {
        let Some(word) = self.peek() else { return Err(self.syntax_error("a test is missing")) };
        if let Some((word, why)) = UNSUPPORTED.iter().find(|(unsupported, _)| *unsupported == word) {
            return Err(FilterError::Unsupported { word: (*word).to_owned(), why });
        }
        if word == "vlan" {
            self.at += 1;
            let number = self.peek().and_then(|word| word.parse::<u16>().ok());
            self.at += usize::from(number.is_some());
            return match number {
                Some(0 | 4095..) => Err(self.wrong_last("VLANs are 1 to 4094")),
                number => Ok(self.test_node(Test::Vlan(number))),
            };
        }
        let (version, protocol) = match word {
            "ip" => (Some(4), None),
            "ip6" => (Some(6), None),
            _ => match PROTOCOLS.iter().find(|(name, ..)| *name == word) {
                Some((_, version, protocol)) => (*version, Some(*protocol)),
                None => (None, None),
            },
        };
        let has_protocol = version.is_some() || protocol.is_some();
        self.at += usize::from(has_protocol);
        if has_protocol && self.peek() == Some("[") {
            return self.parse_byte_test(word);
        }
        if self.take(&["proto"]) {
            if protocol.is_some() {
                return Err(self.wrong_last("write ip proto, ip6 proto or proto"));
            }
            return self.parse_protocol(version);
        }
        let ends = self.parse_ends()?;
        let of = self.parse_type();
        let is_plain = ends.is_none() && of.is_none();
        if has_protocol && is_plain && !self.is_at_name() {
            let all = version.map(Test::Version).into_iter().chain(protocol.map(Test::Protocol));
            return Ok(Tree::All(all.map(|test| self.test_node(test)).collect()));
        }
        let qualifiers = match (self.last, is_plain && !has_protocol) {
            (Some(last), true) => last,
            _ => Qualifiers { version, protocol, ends: ends.unwrap_or(FlowEnds::Either), of },
        };
        let tree = self.parse_named(qualifiers)?;
        self.last = Some(qualifiers);
        Ok(tree)
    }

    /// `src`, `dst`, `src or dst`, `src and dst`.
    fn parse_ends(&mut self) -> Result<Option<FlowEnds>, FilterError> {
        let end = if self.take(&["src"]) {
            End::Source
        } else if self.take(&["dst"]) {
            End::Destination
        } else {
            return Ok(None);
        };
        let other = if end == End::Source { "dst" } else { "src" };
        let then = |words: &[&str]| {
            let next = self.words.get(self.at..self.at + 2);
            next.is_some_and(|next| words.contains(&next[0]) && next[1] == other)
        };
        let both = if then(&["or", "||"]) {
            FlowEnds::Either
        } else if then(&["and", "&&"]) {
            FlowEnds::Both
        } else {
            return Ok(Some(FlowEnds::One(end)));
        };
        self.at += 2;
        Ok(Some(both))
    }

    fn parse_type(&mut self) -> Option<Type> {
        let of = match self.peek()? {
            "host" => Type::Host,
            "net" => Type::Net,
            "port" => Type::Port,
            "portrange" => Type::PortRange,
            _ => return None,
        };
        self.at += 1;
        Some(of)
    }

    /// Whether the next word is a name or number rather than a sign or an operator.
    fn is_at_name(&self) -> bool {
        self.peek().is_some_and(|word| !matches!(word, "and" | "or" | "&&" | "||" | ")"))
    }

    fn parse_named(&mut self, qualifiers: Qualifiers) -> Result<Tree, FilterError> {
        let Qualifiers { version, protocol, ends, of } = qualifiers;
        let unknown = of.is_none();
        let Some(name) = self.next() else { return Err(self.syntax_error("a name or number is missing")) };
        let guess = if name.contains('/') { Type::Net } else { Type::Host };
        let (versions, protocols, test): (_, _, Box<dyn Fn(End) -> Test>) = match of.unwrap_or(guess) {
            Type::Host => {
                let address: Result<IpAddr, _> = name.parse();
                let address = address.map_err(|_| match unknown {
                    true => self.wrong_last("neither a word of the language nor an address"),
                    false => self.wrong_last("a host is written as an address; names are not looked up"),
                })?;
                (Some(address), None, Box::new(move |end| Test::Address(end, Net::single_host(address))))
            }
            Type::Net => {
                let net = if self.take(&["mask"]) {
                    let Some(mask) = self.next() else { return Err(self.syntax_error("a mask is missing")) };
                    Net::with_mask(name, mask)
                } else {
                    Net::parse(name)
                };
                let net = net.map_err(|wrong| self.wrong_last(wrong))?;
                (Some(net.address), None, Box::new(move |end| Test::Address(end, net)))
            }
            of @ (Type::Port | Type::PortRange) => {
                let (low, high) = match of {
                    Type::Port => (name, name),
                    _ => name.split_once('-').or_else(|| name.split_once(':')).unwrap_or((name, name)),
                };
                let port = |text: &str| text.parse::<u16>();
                let (Ok(low), Ok(high)) = (port(low), port(high)) else {
                    return Err(
                        self.wrong_last("a port is a number up to 65535, a range two of them: 1000-2000")
                    );
                };
                let (low, high) = (low.min(high), low.max(high));
                (None, Some([TCP, UDP, SCTP]), Box::new(move |end| Test::Port(end, low, high)))
            }
        };
        let mut all = Vec::new();
        if let Some(address) = versions {
            let of_address = if address.is_ipv4() { 4 } else { 6 };
            if version.is_some_and(|version| version != of_address) {
                return Err(self.wrong_last("an address of the other IP version"));
            }
            all.push(self.test_node(Test::Version(of_address)));
        } else {
            all.extend(version.map(|version| self.test_node(Test::Version(version))));
        }
        match (protocol, protocols) {
            (Some(protocol), Some(with_ports)) if !with_ports.contains(&protocol) => {
                return Err(self.wrong_last("that protocol has no ports"));
            }
            (Some(protocol), _) => all.push(self.test_node(Test::Protocol(protocol))),
            (None, Some(protocols)) => {
                all.push(Tree::Any(
                    protocols.map(|protocol| self.test_node(Test::Protocol(protocol))).into(),
                ));
            }
            (None, None) => {}
        }
        if protocols.is_some() {
            // Later fragments have no ports, rather than ports 0.
            all.push(Tree::Not(Box::new(self.test_node(Test::LaterFragment))));
        }
        let of = |end| self.test_node(test(end));
        all.push(match ends {
            FlowEnds::One(end) => of(end),
            FlowEnds::Either => Tree::Any(vec![of(End::Source), of(End::Destination)]),
            FlowEnds::Both => Tree::All(vec![of(End::Source), of(End::Destination)]),
        });
        Ok(Tree::All(all))
    }

    fn parse_protocol(&mut self, version: Option<u8>) -> Result<Tree, FilterError> {
        // If the shell leaves it, a backslash turns a word into a name.
        let Some(name) = self.next().map(|name| name.trim_start_matches('\\')) else {
            return Err(self.syntax_error("a protocol is missing"));
        };
        let of_name = PROTOCOLS.iter().find(|(known, ..)| *known == name).map(|(.., number)| *number);
        let Some(number) = of_name.or_else(|| name.parse().ok()) else {
            return Err(self.wrong_last("a protocol is a number up to 255, or a name such as tcp"));
        };
        let mut all: Vec<Tree> =
            version.map(|version| self.test_node(Test::Version(version))).into_iter().collect();
        all.push(self.test_node(Test::Protocol(number)));
        Ok(Tree::All(all))
    }

    /// `tcp[tcpflags] & tcp-syn != 0` and the like.
    fn parse_byte_test(&mut self, protocol: &str) -> Result<Tree, FilterError> {
        let unsupported = || FilterError::Unsupported {
            word: format!("{protocol}[...]"),
            why: "of a packet's bytes, the kernel only knows tcp[tcpflags]",
        };
        self.at += 1;
        if protocol != "tcp" || !self.take(&["tcpflags", "13"]) || !self.take(&["]"]) {
            return Err(unsupported());
        }
        let mask = if self.take(&["&"]) { self.parse_tcp_flags()? } else { 0xff };
        let is_equal = if self.take(&["=", "=="]) {
            true
        } else if self.take(&["!="]) {
            false
        } else {
            return Err(self.syntax_error("compare TCP's flags with = or !="));
        };
        let equal = self.parse_tcp_flags()?;
        let mut test = self.test_node(Test::TcpFlags { mask, equal });
        if !is_equal {
            test = Tree::Not(Box::new(test));
        }
        let has_flags = Tree::Not(Box::new(self.test_node(Test::LaterFragment)));
        Ok(Tree::All(vec![self.test_node(Test::Protocol(TCP)), has_flags, test]))
    }

    /// Flags by name or number, joined by `|`, in parentheses or not.
    fn parse_tcp_flags(&mut self) -> Result<u8, FilterError> {
        let in_parentheses = self.take(&["("]);
        let mut flags = 0;
        loop {
            let Some(word) = self.next() else { return Err(self.syntax_error("TCP's flags are missing")) };
            let number = match word.strip_prefix("0x") {
                Some(hex) => u8::from_str_radix(hex, 16).ok(),
                None => word.parse().ok(),
            };
            let of_name = FLAGS.iter().find(|(name, _)| *name == word).map(|(_, flag)| *flag);
            flags |= of_name.or(number).ok_or_else(|| {
                self.wrong_last("TCP's flags are numbers up to 255, or names such as tcp-syn")
            })?;
            if !self.take(&["|"]) {
                break;
            }
        }
        if in_parentheses && !self.take(&[")"]) {
            return Err(self.syntax_error("a parenthesis is not closed"));
        }
        Ok(flags)
    }
}

/// Signs of two characters come before their prefixes.
const SIGNS: [&str; 15] = ["&&", "||", "!=", "==", "<=", ">=", "(", ")", "!", "=", "&", "|", "[", "]", "<"];

/// Splits a text into words and signs.
fn split_words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
        let end = match sign {
            Some(sign) => sign.len(),
            None => {
                let is_end = |c: char| c.is_whitespace() || "()!=&|[]<>".contains(c);
                // Any other sign is its own word.
                rest.char_indices().skip(1).find(|(_, c)| is_end(*c)).map_or(rest.len(), |(at, _)| at)
            }
        };
        words.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_signs_need_no_blanks_between_them() {
        assert_eq!(
            split_words(" !(tcp[tcpflags]&tcp-syn!=0)||net 2001:db8::/32 "),
            [
                "!",
                "(",
                "tcp",
                "[",
                "tcpflags",
                "]",
                "&",
                "tcp-syn",
                "!=",
                "0",
                ")",
                "||",
                "net",
                "2001:db8::/32"
            ]
        );
        assert_eq!(split_words("a>é<"), ["a", ">é", "<"]);
        assert!(split_words("  ").is_empty());
    }
}
