//! A machine that works for the testbed: this program there, through ssh.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use super::config::{Machine, Ssh};
use super::protocol::{AgentMessage, Hello, Request};
use super::ssh::{COPIED, SshConnection, deploy_line, last_lines, start_line};

/// How often the machine is notified that this program is alive.
const BEAT: Duration = Duration::from_secs(1);
/// Timeout for the agent's first message.
const READY: Duration = Duration::from_secs(30);
/// Timeout for copying a program.
const COPY: Duration = Duration::from_secs(300);
/// Timeout for everything there to end.
const END: Duration = Duration::from_secs(20);
/// Time to wait for the reason of a machine's end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A machine; what runs there ends when this is dropped.
pub struct RemoteMachine {
    connection: SshConnection,
    pub settings: Machine,
    /// Its folder for the run.
    pub folder: String,
    ssh: Mutex<Child>,
    input: Arc<Mutex<Option<ChildStdin>>>,
    answers: AsyncMutex<mpsc::UnboundedReceiver<Result<serde_json::Value, String>>>,
    heard: Arc<Mutex<Heard>>,
    readers: Vec<JoinHandle<()>>,
}

/// What came in besides answers.
#[derive(Default)]
struct Heard {
    ended: Vec<String>,
    /// What ssh, and the program there, wrote to standard error.
    errors: String,
    /// Whether nothing more will come.
    is_over: bool,
}

fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RemoteMachine {
    /// Connects to a machine and starts this program there. Sockets of ssh go into `folder`, logs into `logs`, as
    /// `MACHINE-NAME.log`.
    pub async fn connect(
        settings: &Machine,
        ssh: &Ssh,
        folder: &Path,
        logs: &Path,
    ) -> anyhow::Result<RemoteMachine> {
        let connection = SshConnection::new(settings, ssh, folder);
        let copy = match settings.deploy {
            true => {
                let path = std::env::current_exe().context("cannot find this program")?;
                let file = std::fs::File::open(&path);
                Some(file.with_context(|| format!("cannot read {}", path.display()))?)
            }
            false => None,
        };
        let line = match &copy {
            Some(file) => deploy_line(file.metadata()?.len()),
            None => start_line(&settings.program),
        };
        // Ctrl-C ends this program, which then shuts down what runs there: ssh must not end first.
        let mut child = connection
            .run(&line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot run ssh: is the package openssh-client installed?")?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (stdin, stdout, stderr) = match (stdin, stdout, stderr) {
            (Some(stdin), Some(stdout), Some(stderr)) => (stdin, stdout, stderr),
            _ => bail!("ssh has no standard input and output"),
        };
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (line_sender, mut lines) = mpsc::unbounded_channel();
        let (answer, answers) = mpsc::unbounded_channel();
        let of_errors = {
            let heard = Arc::clone(&heard);
            std::thread::spawn(move || hear_errors(stderr, &heard))
        };
        let of_lines = {
            let (heard, log) = (Arc::clone(&heard), Log::new(logs, &settings.name));
            std::thread::spawn(move || {
                receive_messages(BufReader::new(stdout), &line_sender, &answer, &heard, log);
                // Then ssh has said everything about its end.
                let _ = of_errors.join();
                lock_unpoisoned(&heard).is_over = true;
            })
        };
        let mut machine = RemoteMachine {
            connection,
            settings: settings.clone(),
            folder: String::new(),
            ssh: Mutex::new(child),
            input: Arc::new(Mutex::new(None)),
            answers: AsyncMutex::new(answers),
            heard,
            readers: vec![of_lines],
        };
        let stdin = match copy {
            Some(file) => {
                let stdin = spawn_program_copy(stdin, file);
                machine.wait_for_line(&mut lines, COPY, |line| (line == COPIED).then_some(())).await?;
                stdin
                    .join()
                    .map_err(|_| anyhow!("the copy to {} failed", machine.connection.display_name()))?
            }
            None => stdin,
        };
        *lock_unpoisoned(&machine.input) = Some(stdin);
        machine.start_heartbeat();
        let hello = |line: &str| serde_json::from_str::<Hello>(line).ok();
        let hello = machine.wait_for_line(&mut lines, READY, hello).await?;
        let ours = dta_cli::program::build_version();
        if hello.version != ours {
            bail!(
                "{}: the program there is dta-manager {}, and this one is {ours}: install the same, or have this one \
                 copied (deploy = true)",
                machine.connection.display_name(),
                hello.version
            );
        }
        machine.folder = hello.folder;
        Ok(machine)
    }

    /// Waits for the expected line. Skips what a login shell prints before it.
    async fn wait_for_line<T>(
        &self,
        lines: &mut mpsc::UnboundedReceiver<String>,
        patience: Duration,
        read: impl Fn(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let mut other = Vec::new();
        let wait = async {
            while let Some(line) = lines.recv().await {
                match read(&line) {
                    Some(read) => return Some(read),
                    None => other.push(line),
                }
            }
            None
        };
        match tokio::time::timeout(patience, wait).await {
            Ok(Some(read)) => Ok(read),
            Ok(None) => {
                let status = self.ssh_exit_code().await;
                let said = format!("{}\n{}", other.join("\n"), lock_unpoisoned(&self.heard).errors);
                let program = (!self.settings.deploy).then_some(&*self.settings.program);
                bail!("{}", self.connection.explain_exit(status, &said, program))
            }
            Err(_) => bail!(
                "{}: dta-manager did not start there within {patience:?}; output: {}",
                self.connection.display_name(),
                last_lines(&format!("{}\n{}", other.join("\n"), lock_unpoisoned(&self.heard).errors))
            ),
        }
    }

    async fn ssh_exit_code(&self) -> Option<i32> {
        let until = Instant::now() + LAST_WORDS;
        loop {
            if let Ok(Some(status)) = lock_unpoisoned(&self.ssh).try_wait()
                && (lock_unpoisoned(&self.heard).is_over || Instant::now() > until)
            {
                return status.code();
            }
            if Instant::now() > until + LAST_WORDS {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Regularly notifies the machine that this program is alive.
    fn start_heartbeat(&self) {
        let input = Arc::downgrade(&self.input);
        std::thread::spawn(move || {
            while let Some(input) = input.upgrade() {
                if send(&input, &Request::Alive).is_err() {
                    break;
                }
                drop(input);
                std::thread::sleep(BEAT);
            }
        });
    }

    pub fn connection(&self) -> &SshConnection {
        &self.connection
    }

    pub async fn call<T: DeserializeOwned>(&self, request: &Request) -> anyhow::Result<T> {
        // One at a time: answers come in order.
        let mut answers = self.answers.lock().await;
        let answer = match send(&self.input, request) {
            Ok(()) => answers.recv().await,
            Err(_) => None,
        };
        match answer {
            Some(Ok(value)) => serde_json::from_value(value)
                .with_context(|| format!("{}: cannot parse its answer", self.connection.display_name())),
            Some(Err(why)) => bail!("{}: {why}", self.settings.name),
            None => Err(anyhow!(
                "{}",
                self.trouble_message().await.unwrap_or_else(|| self.connection_lost_message())
            )),
        }
    }

    fn connection_lost_message(&self) -> String {
        format!("{}: the connection has ended", self.connection.display_name())
    }

    /// What is wrong there, if anything: a daemon has ended, or the connection.
    pub async fn trouble_message(&self) -> Option<String> {
        // The reason for a failure may arrive a bit later than the failure.
        let until = Instant::now() + LAST_WORDS;
        loop {
            {
                let heard = lock_unpoisoned(&self.heard);
                if let Some(ended) = heard.ended.first() {
                    return Some(format!("{}: {ended}", self.settings.name));
                }
                if heard.is_over {
                    let said = last_lines(&heard.errors);
                    let end = if said.is_empty() { String::new() } else { format!("; output: {said}") };
                    return Some(format!("{}{end}", self.connection_lost_message()));
                }
            }
            if Instant::now() > until {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for RemoteMachine {
    fn drop(&mut self) {
        let _ = send(&self.input, &Request::End);
        // The end of its input ends it, too.
        drop(lock_unpoisoned(&self.input).take());
        let until = Instant::now() + END;
        let mut ssh = lock_unpoisoned(&self.ssh);
        while matches!(ssh.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let is_late = matches!(ssh.try_wait(), Ok(None));
        let _ = ssh.kill();
        let status = ssh.wait();
        drop(ssh);
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        if is_late {
            let shown = self.connection.display_name();
            eprintln!("dta-manager: {shown}: the connection did not end within {END:?} and was closed");
        }
        // Nobody else reports what could not be shut down there.
        if !self.folder.is_empty() && status.is_ok_and(|status| status.code() == Some(1)) {
            eprintln!(
                "dta-manager: {}: {}",
                self.settings.name,
                last_lines(&lock_unpoisoned(&self.heard).errors)
            );
        }
    }
}

fn send(input: &Mutex<Option<ChildStdin>>, request: &Request) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    let mut input = lock_unpoisoned(input);
    let input = input.as_mut().context("the connection has ended")?;
    input.write_all(&line)?;
    Ok(input.flush()?)
}

/// Copies a program to ssh's input.
fn spawn_program_copy(mut stdin: ChildStdin, mut file: std::fs::File) -> JoinHandle<ChildStdin> {
    std::thread::spawn(move || {
        // The other end notices a copy that breaks off.
        let _ = std::io::copy(&mut file, &mut stdin);
        let _ = stdin.flush();
        stdin
    })
}

fn hear_errors(mut stderr: impl Read, heard: &Mutex<Heard>) {
    const MOST: usize = 16 << 10;
    let mut part = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut part) {
        let mut heard = lock_unpoisoned(heard);
        let text = format!("{}{}", heard.errors, String::from_utf8_lossy(&part[..length]));
        let more = text.len().saturating_sub(MOST);
        let from = (more..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(more);
        heard.errors = text[from..].to_owned();
    }
}

/// Sorts what comes in: lines before the first message, answers, logs.
fn receive_messages(
    input: impl BufRead,
    lines: &mpsc::UnboundedSender<String>,
    answers: &mpsc::UnboundedSender<Result<serde_json::Value, String>>,
    heard: &Mutex<Heard>,
    mut log: Log,
) {
    for line in input.lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(AgentMessage::Answer(answer)) => drop(answers.send(answer)),
            Ok(AgentMessage::Log { name, text }) => log.add(&name, &text),
            Ok(AgentMessage::Ended { what }) => lock_unpoisoned(heard).ended.push(what),
            Err(_) => drop(lines.send(line)),
        }
    }
}

struct Log {
    folder: PathBuf,
    machine: String,
}

impl Log {
    fn new(folder: &Path, machine: &str) -> Log {
        Log { folder: folder.to_owned(), machine: machine.to_owned() }
    }

    fn add(&mut self, name: &str, text: &str) {
        // The name comes from the other machine.
        let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        let path = self.folder.join(format!("{}-{name}.log", self.machine));
        if is_plain && let Ok(mut file) = std::fs::File::options().create(true).append(true).open(path) {
            let _ = file.write_all(text.as_bytes());
        }
    }
}
