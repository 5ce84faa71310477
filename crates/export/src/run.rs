//! Runs exporters: each follows the lists separately, so that none waits for another.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::metrics::MetricsPage;
use dta_files::moment::now_ns;
use dta_proto::key::Key;
use dta_proto::telemetry::{Metric, TelemetryEntry, is_since_1970};
use dta_proto::trace;
use dta_rpc::{Ask, ClientError};
use lru::LruCache;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::alert::{AlertFeeds, ExportedAlert};
use crate::config::{Config, ConfiguredSpool, KafkaLogin, TraceSelection};
use crate::counters::{ExportCounters, OfSinks, add};
use crate::deliver;
use crate::encode::{EncodeEvents, EncodePages};
use crate::error::ExportError;
use crate::events::{EventReader, Events, Positions, TelemetryEvent};
use crate::hosts::journey::HostTrace;
use crate::hosts::reader::HostReader;
use crate::json::{EventLine, LineOutput};
use crate::names::Names;
use crate::sink::{Sink, SinkInput, build_sinks, names_to_write};
use crate::source::{Begin, EventSource, LISTS, SourceOptions};
use crate::spool::{Checkpoint, Spool};
use crate::unique::SeriesTimes;

pub(crate) const RECORD: u64 = 5_000;
/// Most values whose state is kept: those reported longest ago are dropped first.
const STATE: usize = 65_536;
/// Most series whose last times are saved with each record.
const RECENT: usize = 64;
/// Delay before a failed write is repeated.
const AGAIN: Duration = Duration::from_secs(1);
/// How long to wait for deliveries at the end.
const END: Duration = Duration::from_secs(3);

/// Makes a page of metrics, or says why it cannot.
pub type Pages =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<MetricsPage, String>> + Send>> + Send + Sync>;

/// Checks what [`Exporters::start`] checks: secrets and certificates. Makes no connection and changes nothing.
///
/// # Errors
/// What would keep it from starting, as far as it can be checked.
pub fn check_exporters(config: &Config) -> Result<(), ExportError> {
    config.validate()?;
    build_sinks(config, "", &Arc::default()).map(drop)
}

/// Warns of a table whose secret is sent to its URL unencrypted.
pub fn clear_text_warning(table: &str, url: &str) -> Option<String> {
    let is_hidden = url.starts_with("https://") || url.strip_prefix("http://").is_some_and(is_this_host);
    (!is_hidden).then(|| {
        format!("[{table}] {url} is not https: anyone who sees the traffic sees the token or password")
    })
}

pub fn config_warnings(config: &Config) -> Vec<String> {
    let in_clear =
        config.tables_with_secret().into_iter().filter_map(|(table, url)| clear_text_warning(table, url));
    let kafka = config
        .kafka
        .iter()
        .filter(|kafka| kafka.user.is_some() && kafka.login == KafkaLogin::Plain && !kafka.tls);
    let brokers = kafka.flat_map(|kafka| &kafka.brokers).filter(|broker| !is_this_host(broker));
    let of_broker = |broker: &String| {
        format!(
            "[export.kafka] {broker} is reached without TLS: anyone who sees the traffic sees the password"
        )
    };
    in_clear.chain(brokers.map(of_broker)).collect()
}

/// Whether a URL without its scheme points to this host.
fn is_this_host(rest: &str) -> bool {
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|host| host.is_loopback())
}

/// Where to begin without an earlier run, whether to end, and what some exporters need.
#[derive(Clone, Default)]
pub struct ExportOptions {
    pub begin: Begin,
    /// Ends when everything there has been exported.
    pub once: bool,
    /// Names of switches, ports and drop reasons, for exporters that want them.
    pub names: Arc<Names>,
    /// Builds pages with only the [sums of traffic](crate::traffic), if there are any.
    pub traffic: Option<Pages>,
    /// Alerts, for exporters that send them.
    pub alerts: Option<AlertFeeds>,
}

/// Running exporters. Dropping it leaves them running until the runtime ends; [`Exporters::stop_exporters`] ends them in order.
#[derive(Debug)]
pub struct Exporters {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    counters: OfSinks,
    deliveries: Vec<(Arc<Spool>, thread::JoinHandle<()>)>,
}

impl Exporters {
    /// Starts the configured exporters; `name` is the collector's, and part of the names of the spools' directories. Exporters
    /// of metrics send the results of `pages`. Needs a tokio runtime.
    ///
    /// # Errors
    /// Something needed on this machine is missing. A receiver that is down is not an error.
    pub fn start(
        config: &Config,
        name: &str,
        ask: &Arc<dyn Ask>,
        pages: &Pages,
        run: ExportOptions,
    ) -> Result<Self, ExportError> {
        config.validate()?;
        let (stop, stopped) = watch::channel(false);
        let mut all = Self { stop, tasks: Vec::new(), counters: Vec::new(), deliveries: Vec::new() };
        // What can fail comes before anything is started.
        let mut opened = Vec::new();
        for sink in build_sinks(config, name, &run.names)? {
            let ConfiguredSpool { sink: exporter, directory, most } = &sink.spool;
            let spool = Arc::new(Spool::open(directory, &format!("exporter {exporter} of {name}"), *most)?);
            opened.push((sink, spool));
        }
        let json = match &config.json {
            Some(json) => {
                let path = &json.file;
                let output = LineOutput::open(path)
                    .map_err(|source| ExportError(format!("cannot write {}: {source}", path.display())))?;
                Some((output, names_to_write(&run.names, json.names)))
            }
            None => None,
        };
        let options = |store: &str, read: Positions| {
            let begin = read.map(|sequence| match sequence {
                0 => Some(run.begin),
                sequence => Some(Begin::Behind(sequence)),
            });
            SourceOptions { store: store.into(), begin, once: run.once }
        };
        let reader = |read: Positions, traces: Option<TraceSelection>, counters: &ExportCounters| {
            let options = options(&config.events, read);
            let source = EventSource::new(ask.clone(), &options, counters.source.clone());
            EventReader::new(source, ask.clone(), config.lookup_stores(), traces, counters.events.clone())
        };
        let of_hosts = |read: Positions, traces: TraceSelection, counters: &ExportCounters| {
            let mut options = options(trace::store::EVENTS, read);
            options.begin[trace::list::SLOW as usize] = None;
            let source = EventSource::new(ask.clone(), &options, counters.source.clone());
            HostReader::new(source, ask.clone(), traces, counters.events.clone())
        };
        for (Sink { spool: ConfiguredSpool { sink: name, .. }, what, receiver }, spool) in opened {
            let counters = Arc::new(ExportCounters::default());
            add(&counters.points.found, spool.pending_points());
            let _ = counters.spool.set(spool.clone());
            let into = ToSpool { spool: spool.clone(), counters: counters.clone(), stopped: stopped.clone() };
            let task = match what {
                SinkInput::Events { encoder, flush, state_every, traffic_every, traces, takes_alerts } => {
                    let kept = spool.checkpoint();
                    let reader = reader(kept.read, traces, &counters);
                    let mut points = Points::new(encoder, flush, state_every, reader, kept, into);
                    points.traffic = run.traffic.clone().zip(traffic_every);
                    points.alerts = run.alerts.as_ref().filter(|_| takes_alerts).map(|feed| feed(name));
                    tokio::spawn(points.run(run.once))
                }
                SinkInput::Packets { encoder, flush, traces } => {
                    let kept = spool.checkpoint();
                    let reader = of_hosts(kept.read, traces, &counters);
                    tokio::spawn(Points::new(encoder, flush, None, reader, kept, into).run(run.once))
                }
                SinkInput::Pages { encoder, every } => {
                    tokio::spawn(send_pages(pages.clone(), encoder, every, into, run.once))
                }
            };
            all.tasks.push(task);
            let (of_thread, counted) = (spool.clone(), counters.clone());
            let thread = thread::Builder::new()
                .name("dta-export".into())
                .spawn(move || deliver::run(name, &of_thread, &*receiver, &counted))
                .map_err(|error| ExportError(format!("cannot start a thread: {error}")))?;
            all.deliveries.push((spool, thread));
            all.counters.push((name, counters));
        }
        if let Some((output, names)) = json {
            let counters = Arc::new(ExportCounters::default());
            let read = output.read().unwrap_or([0; LISTS]);
            let reader = reader(read, None, &counters);
            all.tasks.push(tokio::spawn(export_lines(reader, names, output, counters.clone(), stopped)));
            all.counters.push(("json", counters));
        }
        Ok(all)
    }

    pub fn exporter_counters(&self) -> OfSinks {
        self.counters.clone()
    }

    /// Waits until everything there has been exported, which happens only with [`ExportOptions::once`].
    pub async fn wait_until_done(&mut self) {
        for task in &mut self.tasks {
            if !task.is_finished() {
                let _ = task.await;
            }
        }
    }

    /// Stops them: what was read is in the spool, and what is in the spool stays there.
    pub async fn stop_exporters(mut self) {
        self.stop.send_replace(true);
        for task in self.tasks.drain(..) {
            if !task.is_finished() && tokio::time::timeout(END, task).await.is_err() {
                tracing::warn!("an exporter did not stop in time: what it had read will be read again");
            }
        }
        let (spools, threads): (Vec<_>, Vec<_>) = self.deliveries.drain(..).unzip();
        spools.iter().for_each(|spool| spool.close());
        let joined = tokio::task::spawn_blocking(move || {
            threads.into_iter().for_each(|thread| {
                let _ = thread.join();
            })
        });
        // They may wait for a receiver: after the next start, the same records are sent again.
        let _ = tokio::time::timeout(END, joined).await;
    }
}

async fn wait_for_stop(mut stopped: watch::Receiver<bool>) {
    // `Err` means that the sender is gone, and the exporter with it.
    let _ = stopped.wait_for(|stop| *stop).await;
}

fn interrupted(error: &ClientError) {
    tracing::warn!(%error, "cannot follow events at the moment; trying again");
}

struct ToSpool {
    spool: Arc<Spool>,
    counters: Arc<ExportCounters>,
    stopped: watch::Receiver<bool>,
}

impl ToSpool {
    /// Adds a record to the spool, retrying until the end; returns whether it is there.
    async fn append_record(&self, record: Vec<u8>, points: u64, kept: Checkpoint) -> bool {
        let record = Arc::new(record);
        let mut is_logged = false;
        loop {
            let (spool, record, kept) = (self.spool.clone(), record.clone(), kept.clone());
            let append = move || spool.append_record(&record, points, kept);
            let error = match tokio::task::spawn_blocking(append).await {
                Ok(Ok(())) => {
                    add(&self.counters.points.made, points);
                    return true;
                }
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            if !is_logged {
                tracing::error!(error, "cannot write points to the spool; trying again");
                is_logged = true;
            }
            if *self.stopped.borrow() {
                return false;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Waits until everything is delivered or dropped.
    async fn wait_until_empty(&self) {
        while self.spool.pending_points() > 0 && !*self.stopped.borrow() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn send_pages(
    pages: Pages,
    mut encoder: Box<dyn EncodePages>,
    every: Duration,
    into: ToSpool,
    once: bool,
) {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut is_logged = false;
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = wait_for_stop(into.stopped.clone()) => return,
        }
        match pages().await {
            Ok(page) => {
                is_logged = false;
                for (record, points) in encoder.encode_page(page, now_ns()) {
                    into.append_record(record, points, Checkpoint::default()).await;
                }
            }
            Err(error) => {
                add(&into.counters.points.without_page, 1);
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(error, "cannot collect metrics to export; trying again");
                }
            }
        }
        if once && !is_logged {
            return into.wait_until_empty().await;
        }
    }
}

/// What reads events, or packets of hosts.
trait ExportReader: Send {
    type Event: Clone + Send + Sync;

    /// Waits for the next events: see [`EventReader::next`].
    fn next(&mut self) -> impl Future<Output = Option<Result<Events<Self::Event>, ClientError>>> + Send;

    /// The key of the value that an event sets; `None` if it has no state to export.
    fn state_key(_: &Self::Event) -> Option<(Key, Metric)> {
        None
    }

    /// Replaces earlier events by the values at `time`.
    fn refresh_values(&self, _: &mut [Self::Event], _: u64) -> impl Future<Output = ()> + Send {
        async {}
    }
}

impl ExportReader for EventReader {
    type Event = TelemetryEvent;

    async fn next(&mut self) -> Option<Result<Events, ClientError>> {
        EventReader::next(self).await
    }

    fn state_key(event: &TelemetryEvent) -> Option<(Key, Metric)> {
        match event.entry {
            TelemetryEntry::Change { key, metric, time, .. } if is_since_1970(time) => Some((key, metric)),
            _ => None,
        }
    }

    async fn refresh_values(&self, events: &mut [TelemetryEvent], time: u64) {
        EventReader::refresh_values(self, events, time).await;
    }
}

impl ExportReader for HostReader {
    type Event = HostTrace;

    async fn next(&mut self) -> Option<Result<Events<HostTrace>, ClientError>> {
        HostReader::next(self).await
    }
}

/// From events to the spool.
struct Points<R: ExportReader> {
    reader: R,
    encoder: Box<dyn EncodeEvents<R::Event>>,
    into: ToSpool,
    flush: Duration,
    state_every: Option<Duration>,
    /// Builds pages with sums of traffic, read this often.
    traffic: Option<(Pages, Duration)>,
    /// Alerts; each waits until it is in the spool.
    alerts: Option<mpsc::Receiver<ExportedAlert>>,
    times: SeriesTimes,
    points: u64,
    read: Positions,
    /// The last event of each key and metric; empty if the state is not exported.
    state: LruCache<(Key, Metric), R::Event>,
}

impl<R: ExportReader> Points<R> {
    fn new(
        encoder: Box<dyn EncodeEvents<R::Event>>,
        flush: Duration,
        state_every: Option<Duration>,
        reader: R,
        kept: Checkpoint,
        into: ToSpool,
    ) -> Self {
        let most = NonZeroUsize::new(STATE).unwrap_or(NonZeroUsize::MIN);
        Self {
            reader,
            encoder,
            into,
            flush,
            state_every,
            traffic: None,
            alerts: None,
            times: SeriesTimes::new(&kept.recent),
            points: 0,
            read: kept.read,
            state: if state_every.is_some() { LruCache::new(most) } else { LruCache::unbounded() },
        }
    }

    async fn run(mut self, once: bool) {
        let mut flush_at: Option<Instant> = None;
        let mut state_at = self.state_every.map(|every| Instant::now() + every);
        let mut traffic_at = self.traffic.as_ref().map(|(_, every)| Instant::now() + *every);
        let at = |at: Option<Instant>| async move {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        loop {
            tokio::select! {
                events = self.reader.next() => match events {
                    Some(Ok(events)) => self.take(events),
                    Some(Err(error)) => interrupted(&error),
                    None => break,
                },
                Some(alert) = next_alert(&mut self.alerts) => self.spool_alert(alert).await,
                () = at(flush_at) => {}
                () = at(state_at) => {
                    self.write_state().await;
                    state_at = self.state_every.map(|every| Instant::now() + every);
                }
                () = at(traffic_at) => {
                    self.add_traffic().await;
                    traffic_at = self.traffic.as_ref().map(|(_, every)| Instant::now() + *every);
                }
                () = wait_for_stop(self.into.stopped.clone()) => break,
            }
            let is_due = flush_at.is_some_and(|at| Instant::now() >= at);
            if self.points >= RECORD || (self.points > 0 && is_due) {
                self.spool_points().await;
            }
            flush_at = match flush_at {
                _ if self.points == 0 => None,
                Some(at) if !is_due => Some(at),
                _ => Some(Instant::now() + self.flush),
            };
        }
        self.spool_points().await;
        if once {
            self.into.wait_until_empty().await;
        }
    }

    fn take(&mut self, Events { events, left_out, read }: Events<R::Event>) {
        add(&self.into.counters.points.taken, events.len() as u64 + left_out);
        add(&self.into.counters.points.skipped, left_out);
        for event in events {
            if !self.add_event(&event) {
                add(&self.into.counters.points.skipped, 1);
            }
            if self.state_every.is_some()
                && let Some(of) = R::state_key(&event)
            {
                self.state.put(of, event);
            }
        }
        self.read = read;
    }

    /// Adds an event to the next record; `false` if it has no point.
    fn add_event(&mut self, event: &R::Event) -> bool {
        let is_put = self.encoder.encode_event(event, &mut self.times);
        self.points += u64::from(is_put);
        is_put
    }

    /// Writes a point for each current value.
    async fn write_state(&mut self) {
        let now = now_ns();
        let mut events: Vec<R::Event> = self.state.iter().map(|(_, event)| event.clone()).collect();
        self.reader.refresh_values(&mut events, now).await;
        for event in &events {
            if self.add_event(event) {
                add(&self.into.counters.points.state, 1);
            }
            if self.points >= RECORD {
                self.spool_points().await;
            }
        }
    }

    /// Adds the current sums of traffic.
    async fn add_traffic(&mut self) {
        let Some((pages, _)) = &self.traffic else { return };
        match pages().await {
            Ok(page) => {
                let points = self.encoder.encode_traffic(page, now_ns());
                self.points += points;
                add(&self.into.counters.points.traffic, points);
            }
            Err(_) => add(&self.into.counters.points.without_page, 1),
        }
    }

    /// Moves an alert into the spool, with the points that came before it.
    async fn spool_alert(&mut self, ExportedAlert { message, spooled }: ExportedAlert) {
        add(&self.into.counters.points.taken, 1);
        let is_spooled = if self.encoder.encode_alert(&message) {
            self.points += 1;
            self.spool_points().await
        } else {
            add(&self.into.counters.points.skipped, 1);
            true
        };
        if is_spooled {
            // If the feeder is gone, the next run gets the alert again.
            _ = spooled.send(());
        }
    }

    /// Moves new points into the spool, and returns whether all are there.
    async fn spool_points(&mut self) -> bool {
        if self.points == 0 {
            return true;
        }
        let kept = Checkpoint { read: self.read, recent: self.times.recent_series(RECENT) };
        let points = std::mem::take(&mut self.points);
        self.into.append_record(self.encoder.take(), points, kept).await
    }
}

/// The next alert; `None` if there will be none.
async fn next_alert(alerts: &mut Option<mpsc::Receiver<ExportedAlert>>) -> Option<ExportedAlert> {
    match alerts {
        Some(alerts) => alerts.recv().await,
        None => None,
    }
}

/// Exports events as lines of JSON.
async fn export_lines(
    mut reader: EventReader,
    names: Arc<Names>,
    output: LineOutput,
    counters: Arc<ExportCounters>,
    stopped: watch::Receiver<bool>,
) {
    let mut output = Some(output);
    loop {
        let Events { events, read, .. } = tokio::select! {
            events = reader.next() => match events {
                Some(Ok(events)) => events,
                Some(Err(error)) => {
                    interrupted(&error);
                    continue;
                }
                None => return,
            },
            () = wait_for_stop(stopped.clone()) => return,
        };
        add(&counters.points.taken, events.len() as u64);
        let mut text = String::new();
        for line in events.iter().filter_map(|event| EventLine::from_event(event, &names)) {
            match serde_json::to_string(&line) {
                Ok(line) => text.extend([line.as_str(), "\n"]),
                Err(error) => tracing::error!(%error, "cannot write an event as JSON"),
            }
        }
        let (text, count) = (Arc::new(text), events.len() as u64);
        add(&counters.points.made, count);
        let mut is_logged = false;
        loop {
            let Some(mut to) = output.take() else { return };
            let lines = text.clone();
            let write = move || {
                let written = to.write_lines(&lines, read);
                (to, written)
            };
            let Ok((to, written)) = tokio::task::spawn_blocking(write).await else { return };
            let is_stdout = matches!(to, LineOutput::Stdout);
            output = Some(to);
            match written {
                Ok(()) => break,
                // The reader of standard output is gone.
                Err(error) if is_stdout && error.kind() == std::io::ErrorKind::BrokenPipe => return,
                Err(error) if !is_logged => {
                    tracing::error!(%error, "cannot write lines; trying again");
                    is_logged = true;
                }
                Err(_) => {}
            }
            add(&counters.points.retried, 1);
            if *stopped.borrow() {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
        add(&counters.points.delivered, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kafka;

    #[test]
    fn a_name_that_begins_like_this_host_is_another_host() {
        for here in ["127.0.0.1:8086", "127.9.9.9", "localhost/x", "LOCALHOST:1", "[::1]:8086/write"] {
            assert!(is_this_host(here), "{here}");
        }
        for there in ["127.evil.example", "localhost.example:80", "[::2]:1", "10.0.0.1", "1270.0.0.1", ""] {
            assert!(!is_this_host(there), "{there}");
        }
    }

    #[test]
    fn a_password_that_goes_to_another_host_in_clear_is_warned_of() {
        let kafka = |user: Option<&str>, login, tls, brokers: &[&str]| Config {
            kafka: Some(Kafka {
                user: user.map(str::to_owned),
                login,
                tls,
                brokers: brokers.iter().map(|broker| broker.to_string()).collect(),
                ..Kafka::default()
            }),
            ..Config::default()
        };
        let brokers = ["127.0.0.1:9092", "broker.example:9092"];
        let warnings = config_warnings(&kafka(Some("dta"), KafkaLogin::Plain, false, &brokers));
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("broker.example:9092"), "{warnings:?}");
        for silent in [
            kafka(None, KafkaLogin::Plain, false, &brokers),
            kafka(Some("dta"), KafkaLogin::Plain, true, &brokers),
            kafka(Some("dta"), KafkaLogin::ScramSha256, false, &brokers),
            kafka(Some("dta"), KafkaLogin::Plain, false, &brokers[..1]),
        ] {
            assert_eq!(config_warnings(&silent), [""; 0]);
        }
    }
}
