//! Options of bmv2's `simple_switch_grpc`, which depend on how it was built.

use std::path::Path;
use std::process::Command;

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
