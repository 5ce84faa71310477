//! Records to a collector, by way of a translator.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use dta_cli::host;
use dta_cli::number::grouped;
use dta_trace::counts::{Books, FlowAt, FlowCount};
use dta_trace::kernel;
use dta_trace::point::At;
use dta_trace::record::Record;

use crate::cli::check::{self, Stores as Asked};
use crate::trace::{Setup, Stores, Tracer, number};
use crate::{Config, Options, Reporter};

/// How often what the kernel counted is read.
const COUNTS: Duration = Duration::from_secs(1);
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

/// Sends records as they come.
pub(super) struct Sender {
    tracer: Tracer,
    /// When counts were read last.
    counted: Option<Instant>,
    /// TAI less UTC, in nanoseconds, as this host has it: what is told is nanoseconds since 1970.
    leap: i64,
}

impl Sender {
    /// Opens the way to the translator; asks the collector which stores it has.
    pub(super) fn open(args: &super::Trace, translator: SocketAddrV4, from: &kernel::Tracer) -> Result<Self> {
        let to = &args.to;
        let stores = if to.unchecked {
            Stores::usual()
        } else {
            check::somebody_listens(translator)?;
            match Asked::ask(to.collector.as_deref())? {
                Asked::Known(stores) => Stores::among(&stores)?,
                Asked::Unknown => Stores::usual(),
            }
        };
        let points = from.points().iter().map(|point| (is_on_way(&point.at), point.at.to_string()));
        let points = number(points, to.first_hop)?;
        let name = match &to.name {
            Some(name) => name.clone(),
            None => std::fs::read_to_string("/proc/sys/kernel/hostname")
                .map_or_else(|_| format!("host {}", to.reporter_id), |name| name.trim().to_owned()),
        };
        let options = Options { retransmittable: true, immediate: false };
        let config = Config { reporter: to.reporter_id, options, backup: 1 << 16, ..Config::new(translator) };
        let reporter = Reporter::open(config)?;
        let setup = Setup {
            slow: to.slow,
            synced: to.synced,
            quiet: Duration::from_millis(args.settle),
            ..Setup::new(to.reporter_id, name, points, stores)
        };
        let reasons = from.kernel().clone();
        let tracer = Tracer::new(reporter, setup, Box::new(move |reason| Some(reasons.reason(reason))));
        Ok(Self { tracer, counted: None, leap: leap()? })
    }

    /// Takes what a point saw.
    pub(super) fn record(&mut self, record: &Record) -> Result<()> {
        let time = record.time.saturating_add_signed(-self.leap);
        self.tracer.record(&Record { time, ..*record }).context("a report cannot be written")
    }

    /// Sends what there is to send. To be called some times a second.
    pub(super) fn turn(&mut self, from: &kernel::Tracer) -> Result<()> {
        if self.counted.is_none_or(|counted| counted.elapsed() >= COUNTS) {
            self.counted = Some(Instant::now());
            self.count(from)?;
        }
        Ok(self.tracer.tick(self.now())?)
    }

    /// Sends all that is held.
    pub(super) fn finish(&mut self, from: &kernel::Tracer) -> Result<()> {
        self.count(from)?;
        Ok(self.tracer.finish(self.now(), LINGER)?)
    }

    /// Says what was counted.
    pub(super) fn tell(&self) {
        for (name, count) in self.tracer.counters().named().into_iter().filter(|(_, count)| *count > 0) {
            eprintln!("{name:<40} {:>12}", grouped(count));
        }
    }

    fn now(&self) -> u64 {
        kernel::tai().saturating_add_signed(-self.leap)
    }

    fn count(&mut self, from: &kernel::Tracer) -> Result<()> {
        let flows: Vec<(FlowAt, FlowCount)> = from.flows()?;
        for (at, total) in &flows {
            self.tracer.count(at, *total).context("a report cannot be written")?;
        }
        let books = from.books()?.iter().fold(Books::default(), |sum, point| sum.plus(point.total));
        self.tracer.books(&books);
        Ok(())
    }
}

/// Whether packets go on from a point: where they are dropped or have arrived, they do not.
fn is_on_way(at: &At) -> bool {
    !matches!(at, At::Tracepoint(name) if name == "kfree_skb" || name == "consume_skb")
}

/// TAI less UTC in nanoseconds: whole seconds, as the two clocks are not read at one moment.
fn leap() -> Result<i64> {
    let utc = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as i64;
    let tai = kernel::tai() as i64;
    Ok((tai - utc + 500_000_000).div_euclid(1_000_000_000) * 1_000_000_000)
}
