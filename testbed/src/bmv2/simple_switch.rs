//! bmv2's `simple_switch_grpc` as a process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::processes::last_lines;

const READY: Duration = Duration::from_secs(60);

/// Checks that the program can be found.
pub(super) fn ensure_installed() -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join("simple_switch_grpc").is_file()) {
        bail!(
            "simple_switch_grpc is not on PATH: install p4lang's package p4lang-bmv2, or use p4lang's container images \
             (https://github.com/p4lang/behavioral-model); translator-p4/README.md says more"
        );
    }
    Ok(())
}

/// A switch; it ends when this is dropped, and with this program.
#[derive(Debug)]
pub struct SimpleSwitch {
    child: Child,
    log: PathBuf,
}

impl Drop for SimpleSwitch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl SimpleSwitch {
    /// Starts one without a program on interfaces, each `PORT@INTERFACE`, with P4Runtime at `control` (HOST:PORT),
    /// and waits until it listens. Its log goes to `NAME-bmv2.log` in a folder. `thrift` is the port of its Thrift
    /// server, if any.
    pub async fn spawn_until_listening(
        folder: &Path,
        name: &str,
        thrift: u16,
        interfaces: &[String],
        control: &str,
    ) -> anyhow::Result<SimpleSwitch> {
        ensure_installed()?;
        let path = folder.join(format!("{name}-bmv2.log"));
        let log = std::fs::File::create(&path)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "simple_switch_grpc", "--no-p4"]);
        let help = tokio::task::spawn_blocking(read_help_text).await?.map_err(anyhow::Error::msg)?;
        command.args(options_of_build(&help, thrift, &folder.join(format!("{name}-notifications"))));
        for interface in interfaces {
            command.args(["-i", interface]);
        }
        command.args(["--", "--grpc-server-addr", control, "--cpu-port", "255"]);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        let child = child
            .context("cannot run setpriv (Debian package util-linux), which starts simple_switch_grpc")?;
        let mut switch = SimpleSwitch { child, log: path };
        let until = Instant::now() + READY;
        while tokio::net::TcpStream::connect(control).await.is_err() {
            switch.check_running()?;
            if Instant::now() > until {
                bail!("simple_switch_grpc does not listen on {control}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(switch)
    }

    /// An error if it has ended.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                bail!("simple_switch_grpc ended ({status}); the end of its log:\n{}", last_lines(&self.log))
            }
        }
    }
}

/// Options that a switch accepts only if built with Thrift or with nanomsg. If it has them, two switches on
/// one machine need different values: a TCP port, and the path of a socket. `help` is the result of [`read_help_text`].
pub fn options_of_build(help: &str, thrift: u16, notifications: &Path) -> Vec<String> {
    let values = [
        ("--thrift-port", thrift.to_string()),
        ("--notifications-addr", format!("ipc://{}", notifications.display())),
    ];
    let has = |option: &str| help.split_whitespace().any(|word| word == option);
    values
        .into_iter()
        .filter(|(option, _)| has(option))
        .flat_map(|(o, value)| [o.to_owned(), value])
        .collect()
}

/// The help text of the program on PATH. Waits until it has ended.
///
/// # Errors
/// It cannot be run, or cannot be started without a P4 program.
pub fn read_help_text() -> Result<String, String> {
    let ran = Command::new("simple_switch_grpc").arg("--help").output();
    let ran = ran.map_err(|error| format!("cannot run simple_switch_grpc: {error}"))?;
    let text = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
    if text.contains("--no-p4") {
        return Ok(text);
    }
    let said = text.lines().last().unwrap_or("nothing");
    Err(format!(
        "`simple_switch_grpc --help` ({}) does not list the option --no-p4; it says last: {said}",
        ran.status
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_given_the_options_that_it_has() {
        let options = |help: &str| options_of_build(help, 9091, Path::new("/t/n")).join(" ");
        let help =
            "Options:\n  --no-p4   Enable the switch to start without it\n  --device-id arg  Device ID\n";
        let thrift = "  --thrift-port arg      TCP port on which to run the Thrift server\n";
        let nanomsg = "  --notifications-addr arg   Specify the nanomsg address\n";
        assert_eq!(options(help), "");
        assert_eq!(options(&[help, thrift].concat()), "--thrift-port 9091");
        assert_eq!(
            options(&[help, thrift, nanomsg].concat()),
            "--thrift-port 9091 --notifications-addr ipc:///t/n"
        );
    }
}
