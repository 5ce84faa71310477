//! Running exporters: each follows the lists separately, so that none waits for another.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dta_client::Ask;
use dta_proto::key::Key;
use dta_proto::telemetry::{Entry, Metric, is_since_1970};
use lru::LruCache;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::config::{Config, Influx};
use crate::counters::{ExportCounters, OfSinks, add};
use crate::deliver;
use crate::error::ExportError;
use crate::events::{Event, EventReader, Events, Positions};
use crate::influx::Server;
use crate::json::{Line, Output};
use crate::names::Names;
use crate::schema::Schema;
use crate::source::{Begin, LISTS, Options, Source};
use crate::spool::{Checkpoint, Spool};
use crate::unique::Times;

/// Most points per record.
const RECORD: u64 = 5_000;
/// Most values whose state is kept: those reported longest ago are dropped.
const STATE: usize = 65_536;
/// Series whose last times are kept with each record.
const RECENT: usize = 64;
/// Delay before a failed write is repeated.
const AGAIN: Duration = Duration::from_secs(1);
/// How long to wait for deliveries at the end.
const END: Duration = Duration::from_secs(3);

/// Checks what [`Exporters::start`] would check: secrets and certificates. Makes no connection and changes nothing.
///
/// # Errors
/// What would keep it from starting, as far as that can be checked.
pub fn look(config: &Config) -> Result<(), ExportError> {
    config.check()?;
    config.influx.as_ref().map(Server::new).transpose()?;
    Ok(())
}

/// Warnings, in sentences.
pub fn warnings(config: &Config) -> Vec<String> {
    let in_clear = config.influx.as_ref().filter(|influx| {
        let host = influx.url.strip_prefix("http://").unwrap_or_default();
        let is_here = ["127.", "localhost", "[::1]"].iter().any(|here| host.starts_with(here));
        let has_secret = influx.user.is_some() || influx.org.is_some();
        has_secret && !influx.url.starts_with("https://") && !is_here
    });
    let warning = |influx: &Influx| {
        format!(
            "[export.influx] {} is not https: anyone who sees the traffic sees the token or password",
            influx.url
        )
    };
    in_clear.map(warning).into_iter().collect()
}

/// Where to begin without an earlier run, whether to end, and names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Where to begin.
    pub begin: Begin,
    /// End when everything there has been exported.
    pub once: bool,
    /// Names of switches, ports and drop reasons, for exporters that want them.
    pub names: Arc<Names>,
}

/// Running exporters. Dropping it leaves them running until the runtime ends; [`Exporters::stop`] ends them in order.
#[derive(Debug)]
pub struct Exporters {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    counters: OfSinks,
    delivery: Option<(Arc<Spool>, thread::JoinHandle<()>)>,
}

impl Exporters {
    /// Starts the exporters in a configuration; `name` is the collector's, and part of the name of the spool's
    /// directory. Needs a tokio runtime.
    ///
    /// # Errors
    /// Something that it needs on this machine is missing. A database that is down is not an error.
    pub fn start(config: &Config, name: &str, ask: &Arc<dyn Ask>, run: Run) -> Result<Self, ExportError> {
        config.check()?;
        let (stop, stopped) = watch::channel(false);
        let mut all = Self { stop, tasks: Vec::new(), counters: Vec::new(), delivery: None };
        let names = |wanted: bool| if wanted { run.names.clone() } else { Arc::new(Names::none()) };
        // What can fail comes before anything is started.
        let influx = match &config.influx {
            Some(influx) => {
                let server = Server::new(influx)?;
                let spool = Spool::open(&influx.spool_directory(name), influx.spool_mib << 20)?;
                Some((influx, server, Arc::new(spool)))
            }
            None => None,
        };
        let json = match &config.json {
            Some(json) => {
                let path = &json.file;
                let output = Output::open(path)
                    .map_err(|source| ExportError(format!("cannot write {}: {source}", path.display())))?;
                Some((output, names(json.names)))
            }
            None => None,
        };
        let reader = |read: Positions, counters: &ExportCounters| {
            let begin = read.map(|sequence| match sequence {
                0 => Some(run.begin),
                sequence => Some(Begin::Behind(sequence)),
            });
            let options = Options { store: config.events.clone(), begin, once: run.once };
            let source = Source::new(ask.clone(), &options, counters.source.clone());
            EventReader::new(source, ask.clone(), config.stores(), counters.events.clone())
        };
        if let Some((influx, server, spool)) = influx {
            let counters = Arc::new(ExportCounters::default());
            add(&counters.found, spool.points());
            let _ = counters.spool.set(spool.clone());
            let kept = spool.checkpoint();
            let names = names(influx.names);
            let points =
                Points::new(influx, names, reader(kept.read, &counters), spool.clone(), kept, &counters);
            all.tasks.push(tokio::spawn(points.run(stopped.clone(), run.once)));
            let (of_thread, counted) = (spool.clone(), counters.clone());
            let thread = thread::Builder::new()
                .name("dta-export".into())
                .spawn(move || deliver::run(&of_thread, &server, &counted))
                .map_err(|error| ExportError(format!("cannot start a thread: {error}")))?;
            all.delivery = Some((spool, thread));
            all.counters.push(("influx", counters));
        }
        if let Some((output, names)) = json {
            let counters = Arc::new(ExportCounters::default());
            let read = output.read().unwrap_or([0; LISTS]);
            let reader = reader(read, &counters);
            all.tasks.push(tokio::spawn(lines(reader, names, output, counters.clone(), stopped)));
            all.counters.push(("json", counters));
        }
        Ok(all)
    }

    /// Their counters: see [`ExportCounters::named`].
    pub fn counters(&self) -> OfSinks {
        self.counters.clone()
    }

    /// Waits until everything there has been exported, which ends only with [`Run::once`].
    pub async fn ended(&mut self) {
        for task in &mut self.tasks {
            if !task.is_finished() {
                let _ = task.await;
            }
        }
    }

    /// Ends them: what was read is in the spool, and what is in the spool stays there.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        for task in self.tasks.drain(..) {
            if !task.is_finished() && tokio::time::timeout(END, task).await.is_err() {
                tracing::warn!("an exporter did not end in time: what it had read will be read again");
            }
        }
        if let Some((spool, thread)) = self.delivery.take() {
            spool.close();
            let joined = tokio::task::spawn_blocking(move || thread.join());
            // It may wait for a database: a point sent again after the next start is the same.
            let _ = tokio::time::timeout(END, joined).await;
        }
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // `Err` means that the sender is gone, and this with it.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Logs an outage of the collector.
fn interrupted(error: &dta_client::ClientError) {
    tracing::warn!(%error, "cannot follow events at the moment; trying again");
}

/// From events to the spool.
struct Points {
    reader: EventReader,
    spool: Arc<Spool>,
    schema: Schema,
    names: Arc<Names>,
    flush: Duration,
    state_every: Option<Duration>,
    times: Times,
    counters: Arc<ExportCounters>,
    lines: String,
    points: u64,
    read: Positions,
    /// The last event of each key and metric; empty if the state is not exported.
    state: LruCache<(Key, Metric), Event>,
}

impl Points {
    fn new(
        config: &Influx,
        names: Arc<Names>,
        reader: EventReader,
        spool: Arc<Spool>,
        kept: Checkpoint,
        counters: &Arc<ExportCounters>,
    ) -> Self {
        let most = NonZeroUsize::new(STATE).unwrap_or(NonZeroUsize::MIN);
        let is_told = config.state_seconds > 0;
        Self {
            reader,
            spool,
            schema: config.schema,
            names,
            flush: Duration::from_millis(config.flush_ms),
            state_every: is_told.then(|| Duration::from_secs(config.state_seconds)),
            times: Times::new(&kept.recent),
            counters: counters.clone(),
            lines: String::new(),
            points: 0,
            read: kept.read,
            state: if is_told { LruCache::new(most) } else { LruCache::unbounded() },
        }
    }

    async fn run(mut self, stopped: watch::Receiver<bool>, once: bool) {
        let mut flush_at: Option<Instant> = None;
        let mut state_at = self.state_every.map(|every| Instant::now() + every);
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
                () = at(flush_at) => {}
                () = at(state_at) => {
                    self.tell_state(&stopped).await;
                    state_at = self.state_every.map(|every| Instant::now() + every);
                }
                () = until(stopped.clone()) => break,
            }
            let is_due = flush_at.is_some_and(|at| Instant::now() >= at);
            if self.points >= RECORD || (self.points > 0 && is_due) {
                self.spool(&stopped).await;
            }
            flush_at = match flush_at {
                _ if self.points == 0 => None,
                Some(at) if !is_due => Some(at),
                _ => Some(Instant::now() + self.flush),
            };
        }
        self.spool(&stopped).await;
        // `once` waits until everything is in the database.
        while once && self.spool.points() > 0 && !*stopped.borrow() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn take(&mut self, Events { events, read }: Events) {
        add(&self.counters.taken, events.len() as u64);
        for event in events {
            if !self.put(&event) {
                add(&self.counters.skipped, 1);
            }
            if self.state_every.is_some()
                && let Entry::Change { key, metric, time, .. } = event.entry
                && is_since_1970(time)
            {
                self.state.put((key, metric), event);
            }
        }
        self.read = read;
    }

    /// Writes the point of an event; `false` if it has none.
    fn put(&mut self, event: &Event) -> bool {
        let Some(point) = self.schema.point(event, &self.names) else { return false };
        // Points of one report's path and latency should have the same time.
        let part = match event.entry {
            Entry::Change { metric, .. } => metric as u8,
            _ => 0,
        };
        let series = point.series();
        let time = self.times.give(&series, part, point.time);
        point.write(&mut self.lines, &series, time);
        self.points += 1;
        true
    }

    /// Writes a point of each current value.
    async fn tell_state(&mut self, stopped: &watch::Receiver<bool>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut events: Vec<Event> = self.state.iter().map(|(_, event)| event.clone()).collect();
        self.reader.refresh(&mut events, now.as_nanos() as u64).await;
        for event in &events {
            if self.put(event) {
                add(&self.counters.state, 1);
            }
            if self.points >= RECORD {
                self.spool(stopped).await;
            }
        }
    }

    /// Moves new points into the spool. Retries until the end if that fails.
    async fn spool(&mut self, stopped: &watch::Receiver<bool>) {
        if self.points == 0 {
            return;
        }
        let kept = Checkpoint { read: self.read, recent: self.times.recent(RECENT) };
        let (lines, points) = (std::mem::take(&mut self.lines), std::mem::take(&mut self.points));
        let lines = Arc::new(lines);
        let mut told = false;
        loop {
            let (spool, lines, kept) = (self.spool.clone(), lines.clone(), kept.clone());
            let append = move || spool.append(lines.as_bytes(), points, kept);
            let error = match tokio::task::spawn_blocking(append).await {
                Ok(Ok(())) => {
                    add(&self.counters.made, points);
                    return;
                }
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            if !told {
                tracing::error!(error, "cannot write points to the spool; trying again");
                told = true;
            }
            if *stopped.borrow() {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// From events to lines of JSON.
async fn lines(
    mut reader: EventReader,
    names: Arc<Names>,
    output: Output,
    counters: Arc<ExportCounters>,
    stopped: watch::Receiver<bool>,
) {
    let mut output = Some(output);
    loop {
        let Events { events, read } = tokio::select! {
            events = reader.next() => match events {
                Some(Ok(events)) => events,
                Some(Err(error)) => {
                    interrupted(&error);
                    continue;
                }
                None => return,
            },
            () = until(stopped.clone()) => return,
        };
        add(&counters.taken, events.len() as u64);
        let mut text = String::new();
        for line in events.iter().filter_map(|event| Line::of(event, &names)) {
            match serde_json::to_string(&line) {
                Ok(line) => text.extend([line.as_str(), "\n"]),
                Err(error) => tracing::error!(%error, "cannot write an event as JSON"),
            }
        }
        let (text, count) = (Arc::new(text), events.len() as u64);
        add(&counters.made, count);
        let mut told = false;
        loop {
            let Some(mut to) = output.take() else { return };
            let lines = text.clone();
            let write = move || {
                let written = to.write(&lines, read);
                (to, written)
            };
            let Ok((to, written)) = tokio::task::spawn_blocking(write).await else { return };
            let is_stdout = matches!(to, Output::Stdout);
            output = Some(to);
            match written {
                Ok(()) => break,
                // The reader is gone.
                Err(error) if is_stdout && error.kind() == std::io::ErrorKind::BrokenPipe => return,
                Err(error) if !told => {
                    tracing::error!(%error, "cannot write lines; trying again");
                    told = true;
                }
                Err(_) => {}
            }
            add(&counters.retried, 1);
            if *stopped.borrow() {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
        add(&counters.delivered, count);
    }
}
