//! Records to a collector, by way of a translator.

use std::collections::HashMap;
use std::net::SocketAddrV4;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use dta_cli::number::grouped;
use dta_files::host;
use dta_trace::counts::{FlowAt, FlowCount};
use dta_trace::kernel;
use dta_trace::point::At;
use dta_trace::record::Record;

use crate::cli::check::{self, Stores as Asked};
use crate::trace::{Point, Setup, Stores, TooManyPoints, Tracer, number};
use crate::{Config, Options, Reporter};

/// How often what the kernel counted is read.
const COUNTS: Duration = Duration::from_secs(1);
/// Readings after which a flow whose counts do not change may be forgotten.
const RESTED: u32 = 30;
/// How long NACKs are waited for at the end.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct To {
    /// Send what the points see to this translator, for `dta-collector trace`
    #[arg(long, env, value_name = "HOST:PORT", value_parser = host::socket_v4)]
    pub(super) translator: Option<SocketAddrV4>,
    /// This host's number: the id of its reporter. No two hosts have the same
    #[arg(long, env, value_name = "ID", default_value_t = 0)]
    reporter_id: u16,
    /// What people call this host [default: its host name]
    #[arg(long, env, value_name = "NAME")]
    name: Option<String>,
    /// Number of the first point on the way of packets: all hosts together have 0 to 13
    #[arg(long, value_name = "HOP", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=13))]
    first_hop: u8,
    /// Tell packets one by one that take longer through this host, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", value_parser = milliseconds)]
    slow: Option<Duration>,
    /// PTP keeps this host's clock: times compare with those of other such hosts as they are
    #[arg(long)]
    synced: bool,
    /// The collector's gRPC address: it is asked for its stores before anything is sent [default:
    /// 127.0.0.1:40050, if a collector is there]
    #[arg(long, env, value_name = "HOST:PORT")]
    collector: Option<String>,
    /// Send to the stores that a collector usually has, without asking it
    #[arg(long)]
    unchecked: bool,
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(number / 1e3).map_err(|error| error.to_string())
}

impl To {
    /// The way to the translator, if one was given; the collector is asked which stores it has.
    pub(super) fn way(&self, settle: u64) -> Result<Option<Way>> {
        let Some(translator) = self.translator else { return Ok(None) };
        let stores = if self.unchecked {
            Stores::usual()
        } else {
            check::somebody_listens(translator)?;
            match Asked::ask(self.collector.as_deref())? {
                Asked::Known(stores) => Stores::among(&stores)?,
                Asked::Unknown => Stores::usual(),
            }
        };
        Ok(Some(Way {
            translator,
            reporter_id: self.reporter_id,
            name: host_name(self.name.as_deref(), self.reporter_id),
            slow: self.slow,
            synced: self.synced,
            settle: Duration::from_millis(settle),
            stores,
            first_hop: self.first_hop,
            skew: None,
        }))
    }
}

/// What people call this host.
pub(in crate::cli) fn host_name(given: Option<&str>, reporter_id: u16) -> String {
    match given {
        Some(name) => name.to_owned(),
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_or_else(|_| format!("host {reporter_id}"), |name| name.trim().to_owned()),
    }
}

/// Where records go, and as whose.
pub(in crate::cli) struct Way {
    pub(in crate::cli) translator: SocketAddrV4,
    pub(in crate::cli) reporter_id: u16,
    /// What people call this host.
    pub(in crate::cli) name: String,
    /// Packets that take longer are told one by one.
    pub(in crate::cli) slow: Option<Duration>,
    /// Whether PTP keeps this host's clock.
    pub(in crate::cli) synced: bool,
    /// How long nothing must have been seen of a packet before it is told.
    pub(in crate::cli) settle: Duration,
    pub(in crate::cli) stores: Stores,
    pub(in crate::cli) first_hop: u8,
    /// What is added to the clock, for tests.
    pub(in crate::cli) skew: Option<Skew>,
}

/// A clock that is wrong: tests of how clocks are compared give it to one of two agents on a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) struct Skew {
    /// Nanoseconds by which it is ahead at the start.
    ahead: i64,
    /// Millionths that it gains.
    ppm: f64,
}

impl FromStr for Skew {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts =
            text.split_once(',').and_then(|(ahead, ppm)| Some((ahead.parse().ok()?, ppm.parse().ok()?)));
        let (ahead, ppm) = parts.ok_or("write nanoseconds and millionths, as 7300000,40")?;
        Ok(Self { ahead, ppm })
    }
}

impl Skew {
    /// What the clock shows at a moment, when it was set at `start`.
    fn shows(self, moment: u64, start: u64) -> u64 {
        let gained = (moment as i64 - start as i64) as f64 * self.ppm / 1e6;
        moment.saturating_add_signed(self.ahead + gained as i64)
    }
}

/// Sends records as they come.
pub(in crate::cli) struct Sender {
    tracer: Tracer,
    /// When counts were read last.
    counted: Option<Instant>,
    /// Packets of each flow at a point, and for how many readings they have not changed.
    rest: HashMap<FlowAt, (u64, u32)>,
    /// TAI less UTC, in nanoseconds, as this host has it: what is told is nanoseconds since 1970.
    leap: i64,
    /// A clock that is wrong, and when it was set.
    skew: Option<(Skew, u64)>,
}

impl Sender {
    /// Opens the way to the translator.
    pub(in crate::cli) fn open(way: Way, from: &kernel::Tracer) -> Result<Self> {
        let points = numbered(from.points().iter().map(|point| &point.at), way.first_hop)?;
        let options = Options { retransmittable: true, immediate: false };
        let config =
            Config { reporter: way.reporter_id, options, backup: 1 << 16, ..Config::new(way.translator) };
        let reporter = Reporter::open(config)?;
        let setup = Setup {
            slow: way.slow,
            synced: way.synced,
            quiet: way.settle,
            ..Setup::new(way.reporter_id, way.name, points, way.stores)
        };
        let reasons = from.kernel().clone();
        let tracer = Tracer::new(reporter, setup, Box::new(move |reason| Some(reasons.reason(reason))));
        let leap = from.leap();
        let skew = way.skew.map(|skew| (skew, kernel::tai().saturating_add_signed(-leap)));
        Ok(Self { tracer, counted: None, rest: HashMap::new(), leap, skew })
    }

    /// Other points, by the number that records have. What is held is told before.
    pub(in crate::cli) fn set_points(&mut self, points: Vec<Point>) -> Result<()> {
        self.tracer.set_points(points).context("a report cannot be written")
    }

    /// Follows the clock, where it was set. To be called before records are read.
    pub(in crate::cli) fn follow_clock(&mut self, from: &kernel::Tracer) {
        self.leap = from.leap();
    }

    /// Takes what a point saw.
    pub(in crate::cli) fn record(&mut self, record: &Record) -> Result<()> {
        let time = self.told(record.time);
        self.tracer.record(&Record { time, ..*record }).context("a report cannot be written")
    }

    /// Sends what there is to send. To be called some times a second.
    pub(in crate::cli) fn turn(&mut self, from: &mut kernel::Tracer) -> Result<()> {
        if self.counted.is_none_or(|counted| counted.elapsed() >= COUNTS) {
            self.counted = Some(Instant::now());
            self.count(from)?;
        }
        Ok(self.tracer.tick(self.now())?)
    }

    /// Sends all that is held.
    pub(in crate::cli) fn finish(&mut self, from: &mut kernel::Tracer) -> Result<()> {
        self.count(from)?;
        Ok(self.tracer.finish(self.now(), LINGER)?)
    }

    /// Says what was counted.
    pub(super) fn tell(&self) {
        for (name, count) in self.counters().into_iter().filter(|(_, count)| *count > 0) {
            eprintln!("{name:<40} {:>12}", grouped(count));
        }
    }

    /// Each counter under its name.
    pub(in crate::cli) fn counters(&self) -> Vec<(String, u64)> {
        self.tracer.counters().named()
    }

    fn now(&self) -> u64 {
        self.told(kernel::tai())
    }

    /// A moment of TAI as it is told.
    fn told(&self, tai: u64) -> u64 {
        let moment = tai.saturating_add_signed(-self.leap);
        self.skew.map_or(moment, |(skew, start)| skew.shows(moment, start))
    }

    /// Tells what the kernel counted since the last time.
    pub(in crate::cli) fn count(&mut self, from: &mut kernel::Tracer) -> Result<()> {
        let flows: Vec<(FlowAt, FlowCount)> = from.flows()?;
        for (at, total) in &flows {
            self.tracer.count(at, *total).context("a report cannot be written")?;
        }
        self.make_room(&flows, from)?;
        self.tracer.books(&from.total()?);
        Ok(())
    }

    /// Where the kernel's table of flows fills, forgets those that rest. All of them were told.
    fn make_room(&mut self, flows: &[(FlowAt, FlowCount)], from: &mut kernel::Tracer) -> Result<()> {
        let before = std::mem::take(&mut self.rest);
        for (at, total) in flows {
            let rested = match before.get(at) {
                Some((packets, rested)) if *packets == total.packets => rested.saturating_add(1),
                _ => 0,
            };
            if flows.len() > kernel::FLOWS / 2 && rested >= RESTED {
                from.forget_flow(at)?;
                self.tracer.forget(at);
            } else {
                self.rest.insert(*at, (total.packets, rested));
            }
        }
        Ok(())
    }
}

/// Points with their hops.
///
/// # Errors
/// There are more on the way of packets than there are hops.
pub(in crate::cli) fn numbered<'a>(
    points: impl IntoIterator<Item = &'a At>,
    first_hop: u8,
) -> Result<Vec<Point>, TooManyPoints> {
    number(points.into_iter().map(|at| (at.is_on_way(), at.to_string())), first_hop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_is_wrong_is_ahead_and_gains() {
        let skew: Skew = "7300000,40".parse().unwrap();
        assert_eq!(skew.shows(2_000_000_000, 1_000_000_000), 2_000_000_000 + 7_300_000 + 40_000);
        let behind: Skew = "-500,0".parse().unwrap();
        assert_eq!(behind.shows(2_000, 1_000), 1_500);
        assert!("7".parse::<Skew>().is_err() && "a,1".parse::<Skew>().is_err());
    }
}
