//! What goes wrong in the network, from when to when, and where.

use std::net::Ipv4Addr;
use std::time::Duration;

use dta_proto::random::SplitMix64;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::network::{BORDER, HOSTS, SPINES, agent_name, rack_host, spine_switch, switch_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EpisodeKind {
    /// 2,000 connections a second are opened at one port, each from an address of its own, and none is completed.
    SynFlood,
    /// 150 name servers answer what a victim has not asked, 600 Mbit/s together.
    Amplification,
    /// One address tries 100 ports of a host each second.
    PortScan,
    /// One host tries a port of 100 others each second.
    HostScan,
    /// One flow takes 920 Mbit/s.
    Elephant,
    /// The queue of a link is nearly full for 300 ms of each second.
    Microburst,
    /// A switch takes 400 µs longer than usual for each packet.
    SlowHop,
    /// A spine has no route to a rack.
    Blackhole,
    /// A spine sends what is for a rack to another leaf first, which sends it back.
    RoutingLoop,
    /// A link between a leaf and a spine goes down for one second, and comes back for one.
    FlappingPath,
    /// The spine at the end of a link finds packets damaged, and drops them.
    LossyLink,
    /// A leaf drops five packets a second of one flow: a policy is wrong.
    DroppedFlow,
    /// A host sends 100 packets a second to where an access list of its leaf has them discarded.
    DeniedTraffic,
    /// The exporter of a leaf sends no flow records.
    DeadExporter,
    /// The archive gets 240 Mbit/s more than is usual for it.
    UnusualLoad,
    /// A leaf discards 100 packets a second where they would leave to a spine.
    FullInterface,
    /// Ten packets a second that a spine gets of a leaf have errors.
    BadCable,
}

impl EpisodeKind {
    pub const ALL: [EpisodeKind; 17] = [
        EpisodeKind::Elephant,
        EpisodeKind::Blackhole,
        EpisodeKind::FlappingPath,
        EpisodeKind::SynFlood,
        EpisodeKind::SlowHop,
        EpisodeKind::Amplification,
        EpisodeKind::Microburst,
        EpisodeKind::PortScan,
        EpisodeKind::RoutingLoop,
        EpisodeKind::HostScan,
        EpisodeKind::LossyLink,
        EpisodeKind::DroppedFlow,
        EpisodeKind::DeniedTraffic,
        EpisodeKind::DeadExporter,
        EpisodeKind::UnusualLoad,
        EpisodeKind::FullInterface,
        EpisodeKind::BadCable,
    ];

    /// Whether seconds of it are enough to be seen.
    pub fn is_brief(self) -> bool {
        !matches!(self, EpisodeKind::UnusualLoad | EpisodeKind::FullInterface | EpisodeKind::BadCable)
    }

    pub fn name(self) -> &'static str {
        match self {
            EpisodeKind::SynFlood => "SYN flood",
            EpisodeKind::Amplification => "DNS amplification",
            EpisodeKind::PortScan => "port scan",
            EpisodeKind::HostScan => "host scan",
            EpisodeKind::Elephant => "elephant",
            EpisodeKind::Microburst => "microburst",
            EpisodeKind::SlowHop => "slow hop",
            EpisodeKind::Blackhole => "blackhole",
            EpisodeKind::RoutingLoop => "routing loop",
            EpisodeKind::FlappingPath => "flapping path",
            EpisodeKind::LossyLink => "lossy link",
            EpisodeKind::DroppedFlow => "dropped flow",
            EpisodeKind::DeniedTraffic => "denied traffic",
            EpisodeKind::DeadExporter => "dead exporter",
            EpisodeKind::UnusualLoad => "unusual load",
            EpisodeKind::FullInterface => "full interface",
            EpisodeKind::BadCable => "bad cable",
        }
    }
}

/// Times are since the scenario began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Episode {
    pub kind: EpisodeKind,
    pub start: Duration,
    pub end: Duration,
    /// The leaf where it is.
    pub leaf: u32,
    /// The spine where it is, from 0.
    pub spine: u32,
    /// Who is attacked, or receives.
    pub victim: Ipv4Addr,
    /// Who attacks, or sends; for a flood or an amplification, one of many.
    pub source: Ipv4Addr,
    /// Its size, in percent of what its kind says, where that is packets, bytes or ports.
    pub size: f64,
}

impl Episode {
    /// At a place that the seed chooses.
    pub fn new(kind: EpisodeKind, start: Duration, length: Duration, seed: u64) -> Episode {
        let mut random = SplitMix64(seed);
        let mut below = |limit: u32| (random.next_u64() % u64::from(limit)) as u32;
        let leaf = 1 + below(BORDER - 1);
        let other = 1 + (leaf + below(BORDER - 2)) % (BORDER - 1);
        let mut host = |leaf| rack_host(leaf, 1 + below(HOSTS.into()) as u8);
        let (victim, inside) = match kind {
            EpisodeKind::UnusualLoad => (super::archive_host(), host(other)),
            _ => (host(leaf), host(other)),
        };
        let source = match kind {
            EpisodeKind::HostScan | EpisodeKind::Elephant | EpisodeKind::DeniedTraffic => inside,
            _ => Ipv4Addr::new(198, 51, 100, 1 + below(250) as u8),
        };
        let spine = match kind {
            EpisodeKind::FlappingPath => super::tracked_spine(),
            _ => below(SPINES),
        };
        let leaf = match kind {
            EpisodeKind::FlappingPath | EpisodeKind::DroppedFlow => super::TRACKED_LEAF,
            EpisodeKind::DeniedTraffic => other,
            _ => leaf,
        };
        Episode { kind, start, end: start + length, leaf, spine, victim, source, size: 100.0 }
    }

    /// The same with another size, in percent.
    pub fn with_size(self, size: f64) -> Episode {
        Episode { size, ..self }
    }

    /// Scales a rate, which is that of an episode of the usual size, to this one's size.
    pub(super) fn scale(&self, per_second: f64) -> f64 {
        per_second * self.size / 100.0
    }

    /// What `dta-manager demo` shows in this time: one of each brief kind after another, again and again.
    pub fn demonstration(seed: u64, length: Duration) -> Vec<Episode> {
        let kinds = EpisodeKind::ALL.into_iter().filter(|kind| kind.is_brief());
        let all = (0u32..).zip(kinds.cycle()).map(|(number, kind)| {
            let start = Duration::from_secs(2) + Duration::from_secs(6) * number;
            Episode::new(kind, start, Duration::from_secs(8), seed ^ u64::from(number) << 32)
        });
        all.take_while(|episode| episode.start < length).collect()
    }

    pub fn is_active(&self, at: Duration) -> bool {
        (self.start..self.end).contains(&at)
    }

    /// What happens, for people.
    pub fn describe(&self) -> String {
        let Episode { kind, victim, source, .. } = self;
        let (leaf, spine) = (switch_name(self.leaf), switch_name(spine_switch(self.spine)));
        let what = match kind {
            EpisodeKind::SynFlood => format!("2,000 half-open connections a second to {victim}:443"),
            EpisodeKind::Amplification => format!("150 name servers send 600 Mbit/s to {victim}"),
            EpisodeKind::PortScan => format!("{source} tries 100 ports of {victim} a second"),
            EpisodeKind::HostScan => format!("{source} tries port 22 of 100 hosts a second"),
            EpisodeKind::Elephant => format!("{source} sends 920 Mbit/s to {victim}"),
            EpisodeKind::Microburst => {
                format!("the queue of {leaf} to {spine} fills for 300 ms of each second")
            }
            EpisodeKind::SlowHop => format!("{spine} takes 400 µs longer for each packet"),
            EpisodeKind::Blackhole => format!("{spine} drops all packets to rack{}", self.leaf),
            EpisodeKind::RoutingLoop => format!("{spine} sends packets to rack{} around a loop", self.leaf),
            EpisodeKind::FlappingPath => {
                format!("the link from {leaf} to {spine} is down every other second")
            }
            EpisodeKind::LossyLink => format!("packets from {leaf} reach {spine} damaged"),
            EpisodeKind::DroppedFlow => {
                format!("{leaf} drops five packets a second of {}", super::tracked_flow())
            }
            EpisodeKind::DeniedTraffic => format!("{leaf} discards 100 packets a second that {source} sends"),
            EpisodeKind::DeadExporter => format!("the exporter of {leaf} sends no flow records"),
            EpisodeKind::UnusualLoad => format!("{victim} gets 240 Mbit/s more than usual"),
            EpisodeKind::FullInterface => {
                format!("{leaf} discards 100 packets a second where they would leave to {spine}")
            }
            EpisodeKind::BadCable => {
                format!("ten packets a second from {leaf} reach {spine} with errors")
            }
        };
        format!("{}: {what}", kind.name())
    }

    /// The view of the collector's page that shows it, with its parameters.
    pub fn page_view(&self) -> String {
        let Episode { kind, victim, source, .. } = self;
        let (leaf, spine) = (switch_name(self.leaf), switch_name(spine_switch(self.spine)));
        let flows = |group: &str, by: &str, condition: String| {
            page_view("flows", &[("span", "5m"), ("group", group), ("by", by), ("where", &condition)])
        };
        let events = |kind: &str, switch: &str| page_view("events", &[("kind", kind), ("switch", switch)]);
        match kind {
            EpisodeKind::SynFlood => {
                flows("dst,dst-port", "flows", format!("dst = {victim} and tcp-flags = 2"))
            }
            EpisodeKind::Amplification => {
                flows("src,dst", "bytes", format!("dst = {victim} and protocol = udp and src-port = 53"))
            }
            EpisodeKind::PortScan => {
                flows("dst,dst-port", "flows", format!("src = {source} and dst = {victim}"))
            }
            EpisodeKind::HostScan => flows("src,dst", "flows", format!("src = {source} and dst-port = 22")),
            EpisodeKind::Elephant => flows("flow", "bytes", format!("dst = {victim}")),
            EpisodeKind::UnusualLoad => flows("src", "bytes", format!("dst = {victim}")),
            EpisodeKind::FullInterface | EpisodeKind::BadCable => page_view("top", &[("by", "packets")]),
            EpisodeKind::DeadExporter => flows("exporter", "flows", String::new()),
            EpisodeKind::Microburst => events("congested-packet", &leaf),
            EpisodeKind::SlowHop => events("hop-latency", &spine),
            EpisodeKind::RoutingLoop => events("loop", ""),
            EpisodeKind::FlappingPath => page_view("flow", &[("flow", &super::tracked_flow().to_string())]),
            EpisodeKind::DeniedTraffic => {
                flows("flow", "packets", format!("src = {source} and forwarding >= 128"))
            }
            EpisodeKind::DroppedFlow => page_view("drops", &[("switch", &leaf)]),
            EpisodeKind::Blackhole => page_view("drops", &[("switch", &spine)]),
            EpisodeKind::LossyLink => {
                page_view("drops", &[("switch", &agent_name(spine_switch(self.spine)))])
            }
        }
    }
}

/// A view of the page and its parameters, to append to the page's address.
pub fn page_view(view: &str, parameters: &[(&str, &str)]) -> String {
    let parameters = parameters.iter().filter(|(_, value)| !value.is_empty());
    let text: Vec<_> = parameters
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)))
        .collect();
    let separator = if text.is_empty() { "" } else { "?" };
    format!("#/{view}{separator}{}", text.join("&"))
}
