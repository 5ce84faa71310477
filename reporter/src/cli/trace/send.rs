//! Sends records to a collector through a translator.

use std::collections::HashMap;
use std::net::SocketAddrV4;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::packet_trace::counts::{FlowAt, FlowCount};
use crate::packet_trace::kernel;
use crate::packet_trace::point::At;
use crate::packet_trace::record::TraceRecord;
use anyhow::{Context, Result};
use clap::Args;
use dta_cli::number::format_grouped;
use dta_files::host;

use crate::cli::check::{self, CollectorStores};
use crate::trace::{HostPoint, Setup, TooManyPoints, TraceStores, Tracer, number_points};
use crate::{Config, ReportOptions, Reporter};

/// Interval between reads of the kernel's counters.
const COUNTS: Duration = Duration::from_secs(1);
/// Reads without a change after which a flow may be forgotten.
const RESTED: u32 = 30;
/// How long to wait for NACKs at the end.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct To {
    /// Send what the points see to this translator, for `dta-collector trace`
    #[arg(long, env, value_name = "HOST:PORT", value_parser = host::socket_v4)]
    pub(super) translator: Option<SocketAddrV4>,
    /// This host's reporter id, which must be unique among hosts
    #[arg(long, env, value_name = "ID", default_value_t = 0)]
    reporter_id: u16,
    /// This host's name for people [default: its host name]
    #[arg(long, env, value_name = "NAME")]
    name: Option<String>,
    /// Number of the first point on the packets' path: all hosts together have 0 to 13
    #[arg(long, value_name = "HOP", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=13))]
    first_hop: u8,
    /// Report packets individually that take longer than this through the host, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", value_parser = milliseconds)]
    slow: Option<Duration>,
    /// PTP keeps this host's clock: its times are directly comparable with other such hosts'
    #[arg(long)]
    synced: bool,
    /// The collector's gRPC address: it is asked for its stores before sending [default: 127.0.0.1:40050, if
    /// a collector is there]
    #[arg(long, env, value_name = "HOST:PORT")]
    collector: Option<String>,
    /// Send to a collector's default stores, without asking it
    #[arg(long)]
    unchecked: bool,
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(number / 1e3).map_err(|error| error.to_string())
}

impl To {
    /// The connection to the translator, if one was given; the collector is asked for its stores.
    pub(super) fn sender_config(&self, settle: u64) -> Result<Option<SenderConfig>> {
        let Some(translator) = self.translator else { return Ok(None) };
        let stores = if self.unchecked {
            TraceStores::with_default_ids()
        } else {
            check::somebody_listens(translator)?;
            match CollectorStores::query_collector(self.collector.as_deref())? {
                CollectorStores::Known(stores) => TraceStores::from_specs(&stores)?,
                CollectorStores::Unknown => TraceStores::with_default_ids(),
            }
        };
        Ok(Some(SenderConfig {
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

/// The host's name for people.
pub(in crate::cli) fn host_name(given: Option<&str>, reporter_id: u16) -> String {
    match given {
        Some(name) => name.to_owned(),
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_or_else(|_| format!("host {reporter_id}"), |name| name.trim().to_owned()),
    }
}

/// Destination and identity of the reports.
pub(in crate::cli) struct SenderConfig {
    pub(in crate::cli) translator: SocketAddrV4,
    pub(in crate::cli) reporter_id: u16,
    /// The host's name for people.
    pub(in crate::cli) name: String,
    /// Packets that take longer are reported individually.
    pub(in crate::cli) slow: Option<Duration>,
    /// Whether PTP keeps this host's clock.
    pub(in crate::cli) synced: bool,
    /// A packet is reported when nothing new was seen of it for this long.
    pub(in crate::cli) settle: Duration,
    pub(in crate::cli) stores: TraceStores,
    pub(in crate::cli) first_hop: u8,
    /// Offset of the clock, for tests.
    pub(in crate::cli) skew: Option<Skew>,
}

/// A wrong clock: tests of clock comparison give it to one of two agents on a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) struct Skew {
    /// Nanoseconds by which it is ahead at first.
    ahead: i64,
    /// Millionths by which it gains.
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
    /// What the clock shows at a time if it was set at `start`.
    fn clock_reading(self, moment: u64, start: u64) -> u64 {
        let gained = (moment as i64 - start as i64) as f64 * self.ppm / 1e6;
        moment.saturating_add_signed(self.ahead + gained as i64)
    }
}

/// Sends records as they arrive.
pub(in crate::cli) struct Sender {
    tracer: Tracer,
    /// When counts were last read.
    counted: Option<Instant>,
    /// For each flow at a point, its packets and the number of reads without a change.
    rest: HashMap<FlowAt, (u64, u32)>,
    /// TAI minus UTC on this host, in nanoseconds: reported times are nanoseconds since 1970.
    leap: i64,
    /// A clock that is deliberately wrong, and when it was set.
    skew: Option<(Skew, u64)>,
}

impl Sender {
    pub(in crate::cli) fn open(given: SenderConfig, from: &kernel::Tracer) -> Result<Self> {
        let points = points_with_hops(from.points().iter().map(|point| &point.at), given.first_hop)?;
        let options = ReportOptions { retransmittable: true, immediate: false };
        let config =
            Config { reporter: given.reporter_id, options, backup: 1 << 16, ..Config::new(given.translator) };
        let reporter = Reporter::open(config)?;
        let setup = Setup {
            slow: given.slow,
            synced: given.synced,
            quiet: given.settle,
            ..Setup::new(given.reporter_id, given.name, points, given.stores)
        };
        let reasons = from.kernel().clone();
        let tracer = Tracer::new(reporter, setup, Box::new(move |reason| Some(reasons.reason_name(reason))));
        let leap = from.tai_offset();
        let skew = given.skew.map(|skew| (skew, kernel::tai_now().saturating_add_signed(-leap)));
        Ok(Self { tracer, counted: None, rest: HashMap::new(), leap, skew })
    }

    /// Switches to other points, by their numbers in records. Everything held is reported first.
    pub(in crate::cli) fn set_points(&mut self, points: Vec<HostPoint>) -> Result<()> {
        self.tracer.set_points(points).context("cannot build a report")
    }

    /// Notices if the clock was set. Must be called before reading records.
    pub(in crate::cli) fn follow_clock(&mut self, from: &kernel::Tracer) {
        self.leap = from.tai_offset();
    }

    pub(in crate::cli) fn process_record(&mut self, record: &TraceRecord) -> Result<()> {
        let time = self.to_reported_time(record.time);
        self.tracer.process_record(&TraceRecord { time, ..*record }).context("cannot build a report")
    }

    /// Sends what is due. Must be called several times a second.
    pub(in crate::cli) fn send_due(&mut self, from: &mut kernel::Tracer) -> Result<()> {
        if self.counted.is_none_or(|counted| counted.elapsed() >= COUNTS) {
            self.counted = Some(Instant::now());
            self.report_counts(from)?;
        }
        Ok(self.tracer.report_due(self.now())?)
    }

    pub(in crate::cli) fn finish(&mut self, from: &mut kernel::Tracer) -> Result<()> {
        self.report_counts(from)?;
        Ok(self.tracer.finish(self.now(), LINGER)?)
    }

    pub(super) fn print_counters(&self) {
        for (name, count) in self.named_counters().into_iter().filter(|(_, count)| *count > 0) {
            eprintln!("{name:<40} {:>12}", format_grouped(count));
        }
    }

    pub(in crate::cli) fn named_counters(&self) -> Vec<(String, u64)> {
        self.tracer.counters().named_counters()
    }

    fn now(&self) -> u64 {
        self.to_reported_time(kernel::tai_now())
    }

    /// Converts a TAI time to a reported one.
    fn to_reported_time(&self, tai: u64) -> u64 {
        let moment = tai.saturating_add_signed(-self.leap);
        self.skew.map_or(moment, |(skew, start)| skew.clock_reading(moment, start))
    }

    /// Reports what the kernel has counted since the last call.
    pub(in crate::cli) fn report_counts(&mut self, from: &mut kernel::Tracer) -> Result<()> {
        let flows: Vec<(FlowAt, FlowCount)> = from.read_flows()?;
        for (at, total) in &flows {
            self.tracer.report_flow_count(at, *total).context("cannot build a report")?;
        }
        self.make_room(&flows, from)?;
        self.tracer.set_totals(&from.total_books()?);
        Ok(())
    }

    /// If the kernel's flow table is filling up, forgets idle flows, all of which have been reported.
    fn make_room(&mut self, flows: &[(FlowAt, FlowCount)], from: &mut kernel::Tracer) -> Result<()> {
        let before = std::mem::take(&mut self.rest);
        for (at, total) in flows {
            let rested = match before.get(at) {
                Some((packets, rested)) if *packets == total.packets => rested.saturating_add(1),
                _ => 0,
            };
            if flows.len() > kernel::FLOWS / 2 && rested >= RESTED {
                from.forget_flow(at)?;
                self.tracer.forget_flow(at);
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
/// There are more points on the packets' path than hops.
pub(in crate::cli) fn points_with_hops<'a>(
    points: impl IntoIterator<Item = &'a At>,
    first_hop: u8,
) -> Result<Vec<HostPoint>, TooManyPoints> {
    number_points(points.into_iter().map(|at| (at.is_on_way(), at.to_string())), first_hop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_is_wrong_is_ahead_and_gains() {
        let skew: Skew = "7300000,40".parse().unwrap();
        assert_eq!(skew.clock_reading(2_000_000_000, 1_000_000_000), 2_000_000_000 + 7_300_000 + 40_000);
        let behind: Skew = "-500,0".parse().unwrap();
        assert_eq!(behind.clock_reading(2_000, 1_000), 1_500);
        assert!("7".parse::<Skew>().is_err() && "a,1".parse::<Skew>().is_err());
    }
}
