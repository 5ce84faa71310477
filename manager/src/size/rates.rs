//! How many reports per second can be taken: arithmetic from parts that were measured one by one. Assumes that parts
//! running side by side do not disturb one another, and that N cores do N times the work of one.

use std::net::Ipv4Addr;

use dta_cli::number::parse_short;
use dta_proto::queue_pair::{Purpose, Transport};
use dta_proto::store::StoreSpec;
use dta_proto::wire::frame::FrameRoute;
use dta_proto::wire::roce::{BthFields, Psn, RoceRepr};
use dta_proto::wire::{datagram, ethernet};
use serde::{Deserialize, Serialize};

use super::StoreSize;

/// Bytes that a packet takes on Ethernet besides its own: header, checksum, preamble and gap.
const ETHERNET: usize = ethernet::HEADER_LEN + 4 + 8 + 12;

/// What one core does per second.
#[derive(Clone, Debug)]
pub struct CoreRates {
    /// Datagrams sent or taken by a socket in runs, each alone on the wire.
    pub runs: f64,
    /// Datagrams sent or taken one by one.
    pub reports_plain: f64,
    pub translator: f64,
    /// Frames executed by the software NIC.
    pub nic: f64,
    /// Frames put into the shared ring, or taken out of it.
    pub ring: f64,
    /// Frames sent by AF_XDP.
    pub xdp_send: f64,
    /// Frames taken by AF_XDP.
    pub xdp_take: f64,
}

/// From docs/speed.md; runs and the ring from docs/decisions/speed.md; AF_XDP from docs/decisions/af-xdp.md: 1.6 and up
/// to 2.5 µs.
impl Default for CoreRates {
    fn default() -> Self {
        CoreRates {
            runs: 1e6 / 0.43,
            reports_plain: 0.42e6,
            translator: 22.2e6,
            nic: 17.6e6,
            ring: 15.8e6,
            xdp_send: 1e6 / 1.6,
            xdp_take: 1e6 / 2.5,
        }
    }
}

/// A figure of `dta-manager bench -o json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Figure {
    pub name: String,
    /// Operations per second.
    pub value: f64,
}

impl CoreRates {
    /// The parts that `dta-manager bench` measures, by its names.
    pub fn benchmarks(&mut self) -> [(&'static str, &mut f64); 3] {
        [
            ("reports-plain", &mut self.reports_plain),
            ("translator", &mut self.translator),
            ("nic", &mut self.nic),
        ]
    }

    /// Replaces these rates by measured figures. Returns whether there was one for each.
    pub fn take(&mut self, figures: &[Figure]) -> bool {
        self.benchmarks().into_iter().all(|(name, part)| {
            let figure = figures.iter().find(|figure| figure.name == name && figure.value > 0.0);
            figure.map(|figure| *part = figure.value).is_some()
        })
    }
}

#[derive(Clone, Debug, clap::Args)]
pub struct Machines {
    /// Cores of the collector's machine, and of the translator's
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Machines")]
    pub cores: u32,
    /// Reporters; the first 32 merge sketches
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Machines")]
    pub reporters: u32,
    /// Bits per second of each link
    #[arg(long, value_name = "RATE", default_value = "10G", value_parser = parse_short, help_heading = "Machines")]
    pub link: u64,
    /// Reports come one by one, as from switches, and not in runs
    #[arg(long, help_heading = "Machines")]
    pub plain: bool,
}

dta_proto::named! {
    /// How reports get into memory: what costs least first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum ReportPath {
        /// Translator and collector on one machine, frames through the shared ring.
        Ring: "shared ring",
        /// Frames by UDP sockets to the software NIC.
        Udp: "UDP sockets",
        /// Frames by AF_XDP to the software NIC.
        Xdp: "AF_XDP",
        Rdma: "RDMA NIC",
        /// A P4 switch makes the frames, for an RDMA NIC.
        SwitchRdma: "P4 switch, RDMA NIC",
    }
}

dta_proto::named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Bottleneck {
        ReportLink: "report link",
        /// Taking reports from sockets: one worker takes all that come from one reporter.
        Reporters: "reporters",
        Translator: "translator",
        /// The link between translator and collector.
        FrameLink: "frame link",
        Collector: "collector",
        /// The cores of the one machine that has both.
        Cores: "cores",
    }
}

/// The most reports per second that a part lets through.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    pub part: Bottleneck,
    pub reports_per_second: f64,
}

/// How many reports for a store can be taken along a path.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    pub way: ReportPath,
    pub limit: Bound,
    /// Every part that a report passes.
    pub bounds: Vec<Bound>,
}

/// Reports for this store alone.
pub fn store_rate(size: &StoreSize, way: ReportPath, parts: &CoreRates, machines: &Machines) -> Rate {
    let StoreSize { store, frames_per_report: frames, .. } = size;
    let cores = f64::from(machines.cores);
    let workers = if way == ReportPath::Xdp { 1.0 } else { cores };
    // Seconds of a core, per report or frame.
    let take_report = 1.0 / if machines.plain { parts.reports_plain } else { parts.runs };
    let (send, take) = match way {
        ReportPath::Ring => (1.0 / parts.ring, 1.0 / parts.ring),
        ReportPath::Udp | ReportPath::Rdma | ReportPath::SwitchRdma => (1.0 / parts.runs, 1.0 / parts.runs),
        ReportPath::Xdp => (1.0 / parts.xdp_send, 1.0 / parts.xdp_take),
    };
    // A report that makes less than a frame has its cost, too.
    let translator = take_report + frames.max(1.0) / parts.translator + frames * send;
    let collector = frames * (take + 1.0 / parts.nic);
    let link = |bytes: usize| machines.link as f64 / 8.0 / (bytes + ETHERNET) as f64;
    let reporters = f64::from(machines.reporters);
    // A switch has a port for each reporter.
    let ports = if way == ReportPath::SwitchRdma { reporters } else { 1.0 };
    let mut bounds = Vec::new();
    let mut bound = |part, reports_per_second| bounds.push(Bound { part, reports_per_second });
    bound(Bottleneck::ReportLink, ports * link(datagram::HEADER_LEN + store.report_len()));
    if way != ReportPath::SwitchRdma {
        bound(Bottleneck::Reporters, reporters.min(workers) / take_report);
    }
    match way {
        ReportPath::Ring => bound(Bottleneck::Cores, cores / (translator + collector)),
        ReportPath::Udp | ReportPath::Xdp | ReportPath::Rdma => {
            bound(Bottleneck::Translator, workers / translator)
        }
        ReportPath::SwitchRdma => {}
    }
    if way != ReportPath::Ring {
        bound(Bottleneck::FrameLink, link(frame_len(store)) / frames);
    }
    if matches!(way, ReportPath::Udp | ReportPath::Xdp) {
        bound(Bottleneck::Collector, workers / collector);
    }
    let least = |a: Bound, b: &Bound| if b.reports_per_second < a.reports_per_second { *b } else { a };
    let limit = bounds.iter().fold(bounds[0], least);
    Rate { way, limit, bounds }
}

/// The path that needs the fewest collectors for `reports` per second, each with its own translator (the first path, if
/// several are equal); and how many collectors.
pub fn choose_report_path(rates: &[Rate; ReportPath::ALL.len()], reports: u64) -> (ReportPath, u64) {
    let of = |rate: &Rate| (rate.way, (reports as f64 / rate.limit.reports_per_second).ceil() as u64);
    rates.iter().map(of).fold(of(&rates[0]), |best, other| if other.1 < best.1 { other } else { best })
}

/// Bytes of an IP packet with a frame that writes an element.
fn frame_len(store: &StoreSpec) -> usize {
    let at = BthFields { dest_qp: 0, psn: Psn::default(), ack_req: false };
    let element = vec![0; store.element_len() as usize];
    let packet = match store.kind.primitive().queue_pair_purpose() {
        Purpose::Write => RoceRepr::write(Transport::Uc, at, 0, 0, &element, None),
        Purpose::Atomic => RoceRepr::fetch_add(at, 0, 0, 0),
    };
    FrameRoute::new(Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED, 0).buffer_len(&packet)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dta_collector::config::default_stores;
    use dta_proto::wire::dta::Primitive;

    use super::*;
    use crate::size::SizingTraffic;

    const MACHINES: Machines = Machines { cores: 2, reporters: 2, link: 10_000_000_000, plain: false };

    fn size(primitive: Primitive, copies: u8) -> StoreSize {
        let traffic = SizingTraffic {
            flows: 1000,
            reports: 5_000_000,
            retention: Duration::from_secs(1),
            survival: 0.9,
            copies: Some(copies),
            epoch: None,
        };
        let shape = default_stores().into_iter().find(|store| store.kind.primitive() == primitive);
        StoreSize::for_traffic(shape.unwrap(), Duration::from_secs(1), &traffic).unwrap()
    }

    fn bound(rate: &Rate, part: Bottleneck) -> f64 {
        rate.bounds.iter().find(|bound| bound.part == part).expect("such a part").reports_per_second
    }

    #[test]
    fn parts_are_those_that_were_measured() {
        let speed = include_str!("../../../docs/speed.md");
        let mut parts = CoreRates::default();
        for (name, part) in parts.benchmarks() {
            let row = speed.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).expect(name);
            let expected = format!(" {} M/s |", *part / 1e6);
            assert!(row.ends_with(&expected), "{name}: {expected} is not in {row}");
        }
        let decisions = include_str!("../../../docs/decisions/speed.md").replace('\n', " ");
        let ring = format!("{} to 16.7 M frames/s", parts.ring / 1e6);
        assert!(decisions.contains(&ring), "{ring}");
        let runs = format!("{:.2} µs at each end", 1e6 / parts.runs);
        assert!(decisions.contains(&runs), "{runs}");
        let xdp = format!("{} µs of CPU time by AF_XDP", 1e6 / parts.xdp_send);
        let page = include_str!("../../../docs/decisions/af-xdp.md").replace('\n', " ");
        assert!(page.contains(&xdp), "{xdp}");
        let xdp = format!("a write cost the NIC 1.7 to {} µs", 1e6 / parts.xdp_take);
        assert!(page.contains(&xdp), "{xdp}");
    }

    #[test]
    fn the_page_names_each_part() {
        let page = include_str!("../../../docs/sizing.md");
        let parts = CoreRates::default();
        for part in [parts.reports_plain, parts.translator, parts.nic, parts.ring] {
            assert!(page.contains(&format!("| {} M/s |", part / 1e6)), "{part}");
        }
        for part in [parts.runs, parts.xdp_send, parts.xdp_take] {
            let micros = (1e8 / part).round() / 100.0;
            assert!(page.contains(&format!("| {micros} µs |")), "{micros}");
        }
        for way in ReportPath::ALL {
            assert!(page.contains(&format!("| {way} |")), "{way}");
        }
    }

    /// They were also measured together, with the sender, on two cores: the row `wire-cut` of docs/speed.md.
    #[test]
    fn the_sum_of_the_parts_is_near_what_was_measured_of_the_whole() {
        let (parts, one) = (CoreRates::default(), size(Primitive::KeyWrite, 1));
        let udp = store_rate(&one, ReportPath::Udp, &parts, &MACHINES);
        let cores = f64::from(MACHINES.cores);
        let seconds = [Bottleneck::Translator, Bottleneck::Collector].map(|part| cores / bound(&udp, part));
        let whole = cores / (1.0 / parts.runs + seconds.iter().sum::<f64>());
        let row =
            include_str!("../../../docs/speed.md").lines().find(|line| line.starts_with("| `wire-cut` |"));
        let measured =
            row.and_then(|row| row.trim_end_matches(" M/s |").rsplit(' ').next()).expect("such a row");
        let measured: f64 = 1e6 * measured.parse::<f64>().expect("a rate");
        assert!((measured * 0.9..measured * 1.1).contains(&whole), "{whole} {measured}");
    }

    #[test]
    fn links_carry_as_many_as_their_bytes_allow() {
        let of = |primitive, copies| {
            store_rate(&size(primitive, copies), ReportPath::SwitchRdma, &CoreRates::default(), &MACHINES)
        };
        let near =
            |rate: f64, bytes: f64| assert!((rate * bytes * 8.0 / 1e10 - 1.0).abs() < 1e-9, "{rate} {bytes}");
        // A version-1 report of 12 bytes has 82 on Ethernet, its frame 90, and each 24 in front and behind.
        let one = of(Primitive::KeyWrite, 1);
        near(bound(&one, Bottleneck::ReportLink) / 2.0, 82.0 + 24.0);
        near(bound(&one, Bottleneck::FrameLink), 90.0 + 24.0);
        near(bound(&of(Primitive::KeyWrite, 4), Bottleneck::FrameLink), 4.0 * (90.0 + 24.0));
        // Six hops are a row of 32 bytes; three entries a batch of 64; a FETCH_ADD has 28 and no data.
        near(bound(&of(Primitive::Postcarding, 2), Bottleneck::FrameLink), 2.0 / 6.0 * (74.0 + 32.0 + 24.0));
        near(bound(&of(Primitive::Append, 1), Bottleneck::FrameLink), (74.0 + 64.0 + 24.0) / 3.0);
        near(
            bound(&of(Primitive::KeyIncrement, 2), Bottleneck::FrameLink),
            2.0 * (74.0 - 16.0 + 28.0 + 24.0),
        );
        assert_eq!(of(Primitive::KeyWrite, 1).limit.part, Bottleneck::FrameLink);
    }

    #[test]
    fn more_of_what_limits_gives_more() {
        let (parts, one) = (CoreRates::default(), size(Primitive::KeyWrite, 1));
        let limit = |way, machines: &Machines| store_rate(&one, way, &parts, machines).limit;
        for way in ReportPath::ALL {
            let Bound { part, reports_per_second } = limit(way, &MACHINES);
            let more = match part {
                Bottleneck::ReportLink | Bottleneck::FrameLink => {
                    Machines { link: 25_000_000_000, ..MACHINES }
                }
                Bottleneck::Reporters => Machines { reporters: 8, ..MACHINES },
                Bottleneck::Translator | Bottleneck::Collector | Bottleneck::Cores => {
                    Machines { cores: 8, ..MACHINES }
                }
            };
            let faster = limit(way, &more).reports_per_second > reports_per_second;
            // One thread takes whole frames, however many cores there are.
            assert_eq!(faster, way != ReportPath::Xdp, "{way:?} {part:?}");
        }
        let plain = Machines { plain: true, ..MACHINES };
        assert_eq!(limit(ReportPath::Ring, &plain).part, Bottleneck::Cores);
        let lone = limit(ReportPath::Ring, &Machines { plain: true, reporters: 1, cores: 16, ..MACHINES });
        assert_eq!(
            (lone.part, lone.reports_per_second.round()),
            (Bottleneck::Reporters, parts.reports_plain)
        );
    }

    #[test]
    fn the_simplest_way_that_is_enough_is_chosen() {
        let one = size(Primitive::KeyWrite, 1);
        let rates = ReportPath::ALL.map(|way| store_rate(&one, way, &CoreRates::default(), &MACHINES));
        assert_eq!(choose_report_path(&rates, 100_000), (ReportPath::Ring, 1));
        assert_eq!(choose_report_path(&rates, 10_000_000), (ReportPath::SwitchRdma, 1));
        assert_eq!(choose_report_path(&rates, 100_000_000), (ReportPath::SwitchRdma, 10));
        assert_eq!(
            choose_report_path(&rates[..].iter().rev().cloned().collect::<Vec<_>>().try_into().unwrap(), 1).0,
            ReportPath::SwitchRdma
        );
    }
}
