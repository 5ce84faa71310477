//! This program on another machine: it carries out the manager's requests through ssh, on standard input and output.
//!
//! It ends, and with it the daemons that it started and their files, when asked to, when its input ends (the
//! connection has ended), and when the manager has been silent for [`SILENCE`] (a connection that died without
//! notice).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use dta_files::moment;
use dta_link::netstat;
use dta_proto::wire::dta::DtaReport;
use dta_switch::reporter::ReporterSwitch;
use dta_translator::config::Config;
use dta_translator::setup;
use dta_translator::targets::{any_switch, reporter_switch};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::protocol::{AgentMessage, Hello, OfSwitch, Outgoing, Reported, Request};
use crate::bmv2::{Hosts, SimpleSwitch};
use crate::folder::Folder;
use crate::processes::{Daemon, EndSignal, unless_ended};
use crate::reporters::Reporters;

/// After this time without a message from the manager, which sends one every second, the connection is dead.
pub const SILENCE: Duration = Duration::from_secs(20);
/// How often logs and daemons are checked.
const LOOK: Duration = Duration::from_millis(100);
/// Time for a clean shutdown; then the process exits anyway.
const GRACE: Duration = Duration::from_secs(15);
/// The part of it for emptying all switches.
const EMPTYING: Duration = Duration::from_secs(8);
const NOT_EMPTIED: &str = "the switch still holds what this run wrote: it could not be emptied";
const NO_HOSTS: &str = "no interfaces are open";
const NO_REPORTER: &str = "no reporter was programmed";
/// Most bytes of a log sent at once.
const LOG_PART: u64 = 64 << 10;

pub fn main() -> ExitCode {
    let served = (|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(serve_requests())
    })();
    match served {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(ended)) => ended.exit_status(),
        Err(error) => {
            eprintln!("dta-manager: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve_requests() -> anyhow::Result<Result<(), EndSignal>> {
    let folder = Folder::new().context("cannot make a folder for the testbed")?;
    let requests = read_requests(folder.folder_path())?;
    send_message(&Hello {
        version: dta_cli::program::build_version(),
        folder: folder.folder_path().display().to_string(),
    })?;
    let agent = MachineAgent { folder: folder.folder_path().to_owned(), ..MachineAgent::default() };
    let work = async {
        tokio::select! {
            done = agent.answer_all(requests) => done,
            failed = agent.look_around() => failed,
        }
    };
    let done = unless_ended(work).await?;
    agent.end_processes().await?;
    Ok(match done {
        Ok(done) => Ok(done?),
        Err(ended) => Err(ended),
    })
}

/// Reads requests in a thread. The receiver ends with the input, with [`Request::End`], or after [`SILENCE`]. If the
/// process then does not end, because it waits for something, it is terminated, and its folder removed.
fn read_requests(folder: &Path) -> anyhow::Result<mpsc::UnboundedReceiver<Request>> {
    let (request_sender, requests) = mpsc::unbounded_channel();
    let heard = Arc::new(Mutex::new(Some(Instant::now())));
    let (hear, folder) = (Arc::clone(&heard), folder.to_owned());
    // The reader may be gone while the agent still works: the sender is kept where both can end it.
    let request_sender = Arc::new(Mutex::new(Some(request_sender)));
    let from_input = Arc::clone(&request_sender);
    std::thread::Builder::new().name("requests".into()).spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            *hear.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            let request = match serde_json::from_str(&line) {
                Ok(Request::End) => break,
                Ok(Request::Alive) => continue,
                Ok(request) => request,
                Err(error) => {
                    eprintln!("dta-manager: cannot parse a request: {error}");
                    break;
                }
            };
            let request_sender = from_input.lock().unwrap_or_else(PoisonError::into_inner);
            if request_sender.as_ref().is_none_or(|request_sender| request_sender.send(request).is_err()) {
                break;
            }
        }
        *hear.lock().unwrap_or_else(PoisonError::into_inner) = None;
    })?;
    std::thread::Builder::new().name("silence".into()).spawn(move || {
        loop {
            let last = *heard.lock().unwrap_or_else(PoisonError::into_inner);
            if last.is_none_or(|last| last.elapsed() > SILENCE) {
                break;
            }
            std::thread::sleep(LOOK);
        }
        drop(request_sender.lock().unwrap_or_else(PoisonError::into_inner).take());
        std::thread::sleep(GRACE);
        // Daemons end with this process.
        let _ = std::fs::remove_dir_all(folder);
        std::process::exit(1);
    })?;
    Ok(requests)
}

fn send_message(what: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).context("the manager is gone")
}

/// Everything that runs for the manager.
#[derive(Default)]
struct MachineAgent {
    folder: PathBuf,
    daemons: RefCell<Vec<Daemon>>,
    switches: RefCell<Vec<SimpleSwitch>>,
    /// Switches that run on after this process, by configuration file and name, and whether they were programmed
    /// completely.
    programmed: RefCell<BTreeMap<(String, String), bool>>,
    reporters: RefCell<Option<Reporters>>,
    /// The last programmed reporter switch.
    reporter: RefCell<Option<ReporterSwitch>>,
    hosts: RefCell<Option<Hosts>>,
    /// How much of each log was sent.
    logs: RefCell<BTreeMap<PathBuf, u64>>,
}

impl MachineAgent {
    async fn answer_all(&self, mut requests: mpsc::UnboundedReceiver<Request>) -> anyhow::Result<()> {
        while let Some(request) = requests.recv().await {
            // When a connection ends, the current request is dropped.
            let answer = tokio::select! {
                answer = self.answer_request(request) => answer,
                () = wait_until_closed(&requests) => break,
            };
            let answer = answer.map_err(|error| format!("{error:#}"));
            self.send_logs()?;
            send_message(&AgentMessage::Answer(answer))?;
        }
        Ok(())
    }

    /// Ends everything that runs. Switches that run on are emptied: their frames would go to memory that is gone.
    async fn end_processes(&self) -> anyhow::Result<()> {
        let emptied = tokio::time::timeout(EMPTYING, self.empty_all()).await;
        let emptied = emptied.unwrap_or_else(|_| Err(anyhow!("{NOT_EMPTIED} within {EMPTYING:?}")));
        self.switches.borrow_mut().clear();
        self.daemons.borrow_mut().clear();
        // Nobody may be listening to their last log lines.
        let _ = self.send_logs();
        emptied
    }

    async fn empty_all(&self) -> anyhow::Result<()> {
        let programmed = self.programmed.take();
        // A switch accepts one control plane at a time.
        drop(self.reporter.take());
        for ((config, name), whole) in programmed {
            let config = self.read_translator_config(&config)?;
            let emptied = match reporter_switch(&config, &name)? {
                Some(mut reporter) => reporter.stop_reporting().await.map(drop).map_err(Into::into),
                None => setup::clear_switch(&config, &name).await,
            };
            // Why the others were not programmed completely was reported, and also keeps them from being emptied.
            if whole {
                emptied.context(NOT_EMPTIED)?;
            }
        }
        Ok(())
    }

    async fn answer_request(&self, request: Request) -> anyhow::Result<Value> {
        Ok(match request {
            Request::Alive | Request::End => Value::Null,
            Request::Write { name, text } => {
                let path = self.file_in_folder(&name)?;
                std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
                Value::Null
            }
            Request::Read { name } => {
                let path = self.file_in_folder(&name)?;
                let bytes =
                    std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                serde_json::to_value(bytes)?
            }
            Request::Start { name, arguments } => {
                let (name, role) = match &*name {
                    "collector" => ("collector", "__collector"),
                    "translator" => ("translator", "__translator"),
                    _ => bail!("there is no daemon {name}"),
                };
                let log = self.file_in_folder(&format!("{name}.log"))?;
                let daemon = Daemon::spawn_until_ready(name, role, &arguments, &log).await?;
                let ready = daemon.ready_line().clone();
                self.daemons.borrow_mut().push(daemon);
                ready
            }
            Request::SimpleSwitch { interfaces, control } => {
                let switch =
                    SimpleSwitch::spawn_until_listening(&self.folder, "switch", 9090, &interfaces, &control)
                        .await?;
                self.switches.borrow_mut().push(switch);
                Value::Null
            }
            Request::Backlog { socket } => {
                serde_json::to_value(netstat::socket_backlog(socket)?.unwrap_or(0))?
            }
            Request::Clock => serde_json::to_value(moment::now())?,
            Request::Reporters { count, source, translator, faults, seed } => {
                let reporters = Reporters::open(count, translator, source, faults, seed, false)?;
                *self.reporters.borrow_mut() = Some(reporters);
                Value::Null
            }
            Request::Traffic { interfaces } => {
                *self.hosts.borrow_mut() = Some(Hosts::open(&interfaces)?);
                Value::Null
            }
            Request::Frames { frames } => {
                self.hosts
                    .borrow_mut()
                    .as_mut()
                    .context(NO_HOSTS)?
                    .send(frames.iter().map(|(host, frame)| (*host, frame)))?;
                Value::Null
            }
            Request::Received => {
                serde_json::to_value(self.hosts.borrow().as_ref().context(NO_HOSTS)?.received_counts()?)?
            }
            Request::Report { reports } => serde_json::to_value(self.send_reports(&reports)?)?,
            Request::Switch { config, name, what } => {
                self.answer_switch_request(&config, &name, what).await?
            }
        })
    }

    fn file_in_folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            bail!("{name:?} is not a file name");
        }
        Ok(self.folder.join(name))
    }

    fn send_reports(&self, reports: &[Outgoing]) -> anyhow::Result<Reported> {
        let mut reporters = self.reporters.borrow_mut();
        let reporters = reporters.as_mut().context("no reporters are open")?;
        let mut held = Vec::new();
        for Outgoing { switch, at_once, bytes } in reports {
            let report = DtaReport::parse_payload(bytes).context("a report cannot be read")?;
            match at_once {
                true => {
                    let (number, is_fate_known) =
                        reporters.send(*switch, report.store, report.body, report.retransmittable)?;
                    held.extend((!is_fate_known).then_some((*switch, number)));
                }
                false => {
                    reporters.take(*switch, report.store, report.body, report.retransmittable)?;
                }
            }
        }
        reporters.flush_all()?;
        Ok(Reported { deliveries: reporters.take_deliveries(), held, side: reporters.reporter_side() })
    }

    /// A configuration of dta-translator in the folder.
    fn read_translator_config(&self, name: &str) -> anyhow::Result<Config> {
        let path = self.file_in_folder(name)?;
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let (config, _) = Config::parse(&text, &path)?;
        config.check_values()?;
        Ok(config)
    }

    async fn answer_switch_request(&self, file: &str, name: &str, what: OfSwitch) -> anyhow::Result<Value> {
        let config = self.read_translator_config(file)?;
        if config.reporter_of(name)?.is_some() {
            return self.answer_reporter_request(&config, file, name, what).await;
        }
        Ok(match what {
            OfSwitch::Counters => bail!("{name} is not a reporter"),
            OfSwitch::Setup => {
                self.note_programmed(file, name, false);
                setup::program_switch(&config, name).await.context("the switch cannot be programmed")?;
                self.note_programmed(file, name, true);
                Value::Null
            }
            OfSwitch::Statistics => serde_json::to_value(any_switch(&config, name)?.statistics().await?)?,
            OfSwitch::Flush => serde_json::to_value(any_switch(&config, name)?.flush_all().await?)?,
        })
    }

    /// Notes that a switch is being programmed, or has been as a `whole`, unless it is a bmv2 that ends with this process.
    fn note_programmed(&self, file: &str, name: &str, whole: bool) {
        if self.switches.borrow().is_empty() {
            self.programmed.borrow_mut().insert((file.to_owned(), name.to_owned()), whole);
        }
    }

    /// Carries out a request for a reporter switch.
    async fn answer_reporter_request(
        &self,
        config: &Config,
        file: &str,
        name: &str,
        what: OfSwitch,
    ) -> anyhow::Result<Value> {
        let known = self.reporter.take();
        let (reporter, answer) = match what {
            OfSwitch::Setup => {
                // A switch accepts one control plane at a time.
                drop(known);
                let mut reporter = reporter_switch(config, name)?.context("it is not a reporter")?;
                self.note_programmed(file, name, false);
                reporter.apply_settings().await.context("the reporter cannot be programmed")?;
                self.note_programmed(file, name, true);
                (reporter, Value::Null)
            }
            OfSwitch::Statistics => {
                let mut reporter = known.context(NO_REPORTER)?;
                let node = reporter.statistics().await?;
                (reporter, serde_json::to_value([node])?)
            }
            OfSwitch::Counters => {
                let mut reporter = known.context(NO_REPORTER)?;
                let counts = reporter.read_counters().await?.0;
                (reporter, serde_json::to_value(counts)?)
            }
            OfSwitch::Flush => bail!("a reporter holds nothing"),
        };
        *self.reporter.borrow_mut() = Some(reporter);
        Ok(answer)
    }

    /// Sends what is new in logs, and which daemon or switch has ended. Fails when nobody listens.
    async fn look_around(&self) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(LOOK).await;
            let ended: Vec<_> = {
                let mut daemons = self.daemons.borrow_mut();
                let ended = daemons.iter_mut().filter_map(|daemon| daemon.check_running().err());
                let mut ended: Vec<_> = ended.map(|error| error.to_string()).collect();
                daemons.retain_mut(|daemon| daemon.check_running().is_ok());
                let mut switches = self.switches.borrow_mut();
                ended.extend(
                    switches
                        .iter_mut()
                        .filter_map(|switch| switch.check_running().err())
                        .map(|e| e.to_string()),
                );
                switches.retain_mut(|switch| switch.check_running().is_ok());
                ended
            };
            self.send_logs()?;
            for what in ended {
                send_message(&AgentMessage::Ended { what })?;
            }
        }
    }

    fn send_logs(&self) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(&self.folder)?.flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "log") {
                continue;
            }
            let mut logs = self.logs.borrow_mut();
            let sent = logs.entry(path.clone()).or_default();
            loop {
                let mut file = std::fs::File::open(&path)?;
                file.seek(SeekFrom::Start(*sent))?;
                let mut part = Vec::new();
                let length = file.take(LOG_PART).read_to_end(&mut part)? as u64;
                if length == 0 {
                    break;
                }
                *sent += length;
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                send_message(&AgentMessage::Log { name, text: String::from_utf8_lossy(&part).into_owned() })?;
            }
        }
        Ok(())
    }
}

/// Waits until no more requests can come.
async fn wait_until_closed(requests: &mpsc::UnboundedReceiver<Request>) {
    while !requests.is_closed() || !requests.is_empty() {
        tokio::time::sleep(LOOK).await;
    }
}
