//! A machine of its own for what the examples do: network, processes, `/etc`, `/dev/shm` and home folder, with
//! addresses that the examples name. Everything in it ends with it.

use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::MANAGER;
use crate::found::root;

/// Set for the test itself inside of the room.
const INSIDE: &str = "DTA_EXAMPLES_INSIDE";

/// The parts of the machine that are replaced.
const SET_UP: &str = "\
set -e
mount --make-rprivate /
mount -t tmpfs none /dev/shm
mkdir etc home
cp -a /etc/. etc/
mount --bind etc /etc
mkdir -p /etc/bash_completion.d
echo 10.0.0.1 tor1.example >> /etc/hosts
mount -t tmpfs none /usr/local
mkdir share
mount -t tmpfs none share
mkdir share/upper share/work
mount -t overlay overlay -o lowerdir=/usr/share,upperdir=share/upper,workdir=share/work /usr/share
mkdir -p /usr/share/zsh/site-functions
mkdir -p /run/netns
mount -t tmpfs none /run/netns
ip link set lo up
for address in 10.0.0.1 10.0.0.5 10.0.0.6 10.0.0.7 10.0.1.1 10.0.1.2; do ip addr add $address/32 dev lo; done";

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with the programs in its `PATH`; inside [`apart`], also the machine on which the examples run.
pub(crate) struct Room {
    folder: tempfile::TempDir,
}

/// Runs `inside` on a machine of its own: this test again, in namespaces of its own.
pub(crate) fn apart(test: &str, inside: impl FnOnce(Room)) {
    if std::env::var_os(INSIDE).is_some() {
        let room = Room::new();
        let made = room.command(SET_UP).status().expect("a shell");
        assert!(made.success(), "the room cannot be made");
        return inside(room);
    }
    let this = std::env::current_exe().expect("this test");
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(this)
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .expect("unshare");
    assert!(status.success(), "{test} failed in its room; see above");
}

impl Room {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path().join("here");
        let release = here.join("target/release");
        std::fs::create_dir_all(&release).expect("a folder");
        symlink(root().join("testbed"), here.join("testbed")).expect("a link");
        symlink(root().join("Makefile"), here.join("Makefile")).expect("a link");
        for program in ["reporter", "collector", "translator"] {
            script(&release.join(format!("dta-{program}")), &format!("exec {MANAGER} __{program} \"$@\""));
        }
        script(&release.join("dta-manager"), &format!("exec {MANAGER} \"$@\""));
        // Debian's, which has numpy.
        script(&release.join("python3"), "exec /usr/bin/python3 \"$@\"");
        Self { folder }
    }

    /// Where commands are run.
    pub(crate) fn here(&self) -> PathBuf {
        self.folder.path().join("here")
    }

    /// A line, as a person at a shell would run it.
    pub(crate) fn command(&self, line: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        // Where a script starts these tests in the background, SIGINT is ignored, also by what they start.
        let mut command = Command::new("env");
        command
            .args(["--default-signal=INT", "bash", "-c", line])
            .current_dir(self.here())
            .env("PATH", format!("{}:{path}", self.here().join("target/release").display()))
            .env("HOME", self.here().join("home"))
            .env("PYTHONPATH", root().join("python"))
            .envs(["DTA_COLLECTOR_LOG", "DTA_TRANSLATOR_LOG"].map(|name| (name, "warn")))
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::null());
        command
    }

    /// Runs a line to its end.
    pub(crate) fn run(&self, line: &str) -> Output {
        let limited = format!("exec timeout --kill-after=5 300 bash -c {}", quoted(line));
        self.command(&limited).output().expect("a shell")
    }

    /// Starts a line that goes on.
    pub(crate) fn start(&self, line: &str) -> Running {
        let output = self.folder.path().join(format!("output-{}", line.len()));
        let file = std::fs::File::create(&output).expect("a file");
        let errors = file.try_clone().expect("a file");
        let mut command = self.command(line);
        command.stdin(Stdio::piped()).stdout(file).stderr(errors).process_group(0);
        Running { child: command.spawn().expect("a shell"), output, line: line.to_owned() }
    }

    /// Asks until the answer holds all of `wanted`; blanks do not count. `asked` is what answers.
    pub(crate) fn ask(&self, question: &str, wanted: &[&str], asked: Option<&Running>) {
        let start = Instant::now();
        loop {
            let output = self.run(question);
            let answer = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() && missing(&answer, wanted).is_none() {
                return;
            }
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            let printed = || asked.map(Running::printed).unwrap_or_default();
            assert!(
                start.elapsed() < PATIENCE,
                "{question} gave {answer}{errors}, and not {wanted:?}; what it asks printed {}",
                printed()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The first of `wanted` that is not in `answer`, not counting blanks.
pub(crate) fn missing<'a>(answer: &str, wanted: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| text.split_whitespace().collect::<String>();
    let answer = plain(answer);
    wanted.iter().copied().find(|part| !answer.contains(&plain(part)))
}

fn quoted(line: &str) -> String {
    format!("'{}'", line.replace('\'', "'\\''"))
}

/// Makes a program of lines for `sh`, or for the shell that the first of them names.
pub(crate) fn script(path: &Path, text: &str) {
    let shell = if text.starts_with("#!") { "" } else { "#!/bin/sh\n" };
    std::fs::write(path, format!("{shell}{text}\n")).expect("a script");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a script");
}

/// A command that goes on. Ends when it is dropped.
pub(crate) struct Running {
    child: Child,
    output: PathBuf,
    line: String,
}

impl Running {
    /// What it has printed so far.
    pub(crate) fn printed(&self) -> String {
        let mut text = Vec::new();
        let read = std::fs::File::open(&self.output).and_then(|mut file| file.read_to_end(&mut text));
        read.expect("its output");
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Waits until it has printed all of `wanted`.
    pub(crate) fn shows(&mut self, wanted: &[&str]) {
        let start = Instant::now();
        while let Some(lacking) = missing(&self.printed(), wanted) {
            let ended = self.child.try_wait().expect("its state");
            // What it printed last may have come after we looked.
            let all_there = missing(&self.printed(), wanted).is_none();
            assert!(ended.is_none() || all_there, "{} ended ({ended:?}): {}", self.line, self.printed());
            assert!(
                start.elapsed() < PATIENCE,
                "{} does not show {lacking:?}: {}",
                self.line,
                self.printed()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it as Ctrl-C does.
    pub(crate) fn interrupt(mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::INT);
        let start = Instant::now();
        while self.child.try_wait().expect("its state").is_none() {
            assert!(start.elapsed() < PATIENCE, "{} does not end", self.line);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}
