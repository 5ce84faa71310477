//! Collector and translator as separate processes.
//!
//! They are this program, started again with a hidden first argument, so that one binary is a whole testbed. Each
//! dies with its parent ([`die_with_parent`]), however that ends.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Timeout until a daemon is ready: a slow machine clears its memory first.
const READY: Duration = Duration::from_secs(60);
/// Timeout for a clean exit.
const END: Duration = Duration::from_secs(5);
/// Lines of its log shown when it fails.
const LOG_LINES: usize = 15;

#[derive(Debug)]
pub struct Daemon {
    name: &'static str,
    child: Child,
    log: PathBuf,
    ready: Value,
}

impl Daemon {
    /// Starts this program again as `role` (`__collector` or `__translator`) with `arguments`, appending its standard
    /// error to `log`, and waits for the JSON object that it prints as its first line when it is ready.
    pub async fn spawn_until_ready(
        name: &'static str,
        role: &str,
        arguments: &[String],
        log: &Path,
    ) -> anyhow::Result<Self> {
        let failed = || format!("cannot start the {name}");
        let errors = std::fs::File::options().create(true).append(true).open(log).with_context(failed)?;
        let program = std::env::current_exe().with_context(failed)?;
        let mut child = Command::new(program)
            .arg(role)
            .args(arguments)
            // The user's settings for daemons do not apply to the testbed.
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| is_foreign_variable(name)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(failed)?;
        let stdout = child.stdout.take().expect("stdout was asked to be a pipe");
        let mut daemon = Self { name, child, log: log.to_owned(), ready: Value::Null };
        daemon.ready = daemon.wait_ready(stdout).await?;
        Ok(daemon)
    }

    pub fn ready_line(&self) -> &Value {
        &self.ready
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// An error if it has ended.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.error_with_log(format!("ended unexpectedly ({status})"))),
            Err(error) => Err(self.error_with_log(format!("cannot be waited for: {error}"))),
        }
    }

    /// Stops it (SIGSTOP); after that only a kill ends it here. When this returns, none of its threads runs.
    pub fn freeze_process(&self) -> std::io::Result<()> {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
        }
        let start = Instant::now();
        while start.elapsed() < READY {
            if self.is_stopped()? {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(std::io::ErrorKind::TimedOut.into())
    }

    fn is_stopped(&self) -> std::io::Result<bool> {
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let about = std::fs::read_to_string(thread?.path().join("stat"))?;
            // The state follows the name, which is in parentheses and may hold anything (proc_pid_stat(5)).
            if !about.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Kills it like a crash (SIGKILL).
    pub fn kill_abruptly(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    async fn wait_ready(&mut self, stdout: ChildStdout) -> anyhow::Result<Value> {
        let (line_sender, ready_line) = oneshot::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            if let Some(line) = lines.next() {
                let _ = line_sender.send(line);
            }
            // Further lines are read, too, so that the daemon never blocks on a full pipe.
            lines.for_each(drop);
        });
        match tokio::time::timeout(READY, ready_line).await {
            Ok(Ok(line)) => serde_json::from_str(&line)
                .map_err(|_| self.error_with_log(format!("printed {line:?} instead of its ready line"))),
            Err(_) => Err(self.error_with_log(format!("was not ready within {READY:?}"))),
            Ok(Err(_)) => {
                let how = match self.child.wait() {
                    Ok(status) => match status.signal() {
                        Some(signal) => format!("was ended by signal {signal}"),
                        None => format!("ended with {status}"),
                    },
                    Err(error) => format!("cannot be waited for: {error}"),
                };
                Err(self.error_with_log(format!("{how} before it was ready")))
            }
        }
    }

    fn error_with_log(&self, what: String) -> anyhow::Error {
        let (name, path, log) = (self.name, self.log.display(), last_lines(&self.log));
        anyhow!("the {name} {what}; the end of its log ({path}):\n{log}")
    }
}

pub(super) fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32)
            && matches!(self.child.try_wait(), Ok(None))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let start = Instant::now();
            while start.elapsed() < END && matches!(self.child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether an environment variable is not a daemon's setting.
fn is_foreign_variable(name: &std::ffi::OsStr) -> bool {
    let name = name.to_string_lossy();
    !name.starts_with("DTA_") || name.ends_with("_LOG")
}

/// Called by a daemon that [`Daemon::spawn_until_ready`] started: the kernel ends it when its parent ends.
pub fn die_with_parent() {
    let parent = rustix::process::getppid();
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    // The parent may have ended before the line above.
    if rustix::process::getppid() != parent {
        std::process::exit(2);
    }
}

/// A signal that ends a program, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndSignal(u8);

impl EndSignal {
    /// The exit status of a program ended by a signal, as in shells.
    pub fn exit_status(self) -> std::process::ExitCode {
        std::process::ExitCode::from(128 + self.0)
    }
}

/// Does `work`; but if this program is asked to end meanwhile (SIGINT or SIGTERM), drops the work where it waits, and
/// with it the processes and files of a testbed.
///
/// # Errors
/// The system's, when it cannot wait for signals.
pub async fn unless_ended<T>(work: impl Future<Output = T>) -> std::io::Result<Result<T, EndSignal>> {
    let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
    let (mut interrupted, mut terminated) = (signal(interrupt)?, signal(terminate)?);
    Ok(tokio::select! {
        done = work => Ok(done),
        _ = interrupted.recv() => Err(EndSignal(interrupt.as_raw_value() as u8)),
        _ = terminated.recv() => Err(EndSignal(terminate.as_raw_value() as u8)),
    })
}
