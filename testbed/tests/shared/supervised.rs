//! A daemon under a service manager that is a test. Tests of several crates take this file by `#[path]`.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon, the socket that it writes to, and its log.
pub(crate) struct Supervised {
    pub(crate) child: Child,
    pub(crate) manager: UnixDatagram,
    pub(crate) log: Receiver<String>,
    /// The line that said that it is ready.
    pub(crate) ready: serde_json::Value,
}

impl Supervised {
    /// Starts `command` with a socket in `folder`, and with no variables of DTA. It is ready when this returns.
    pub(crate) fn start(mut command: Command, folder: &Path, watchdog: Option<Duration>) -> Self {
        let socket = folder.join("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DTA_")) {
            command.env_remove(name);
        }
        if let Some(watchdog) = watchdog {
            command.env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        }
        let mut child = command
            .env("NOTIFY_SOCKET", &socket)
            .env_remove("WATCHDOG_PID")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, log) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).expect("a ready line");
        Supervised { child, manager, log, ready }
    }

    /// A text of the ready line.
    pub(crate) fn said(&self, field: &str) -> &str {
        self.ready[field].as_str().unwrap()
    }

    /// The next message with these words.
    pub(crate) fn message_about(&self, words: &str) -> String {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let mut bytes = [0; 1024];
            let len = self.manager.recv(&mut bytes).expect("a message");
            let message = String::from_utf8(bytes[..len].to_vec()).unwrap();
            if message.contains(words) {
                return message;
            }
        }
        panic!("nothing about {words:?}");
    }

    /// The next line of the log with these words.
    pub(crate) fn logs(&self, words: &str) -> String {
        self.logs_within(words, PATIENCE).unwrap_or_else(|| panic!("no log about {words:?}"))
    }

    /// The same, if there is one within this time.
    pub(crate) fn logs_within(&self, words: &str, time: Duration) -> Option<String> {
        let until = Instant::now() + time;
        loop {
            let line = self.log.recv_timeout(until.saturating_duration_since(Instant::now())).ok()?;
            if line.contains(words) {
                return Some(line);
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
