//! The system's OpenSSH client as a child process (`docs/decisions/ssh.md`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::config::{Machine, Ssh};

/// Connects to one machine. The connection of the agent is the master of all others.
#[derive(Clone, Debug)]
pub struct SshConnection {
    name: String,
    destination: String,
    options: Vec<OsString>,
    socket: PathBuf,
}

impl SshConnection {
    /// A connection to a machine; the socket of its master goes into a folder.
    pub fn new(machine: &Machine, ssh: &Ssh, folder: &Path) -> SshConnection {
        let mut options: Vec<OsString> = Vec::new();
        if let Some(config) = &ssh.config {
            options.extend(["-F".into(), config.into()]);
        }
        if let Some(port) = machine.port {
            options.extend(["-p".into(), port.to_string().into()]);
        }
        // If an option is repeated, the first one counts. A prompt would wait forever.
        let ours = ["BatchMode=yes", "RequestTTY=no", "RemoteCommand=none"].map(String::from);
        // A machine that is gone is noticed after 15 seconds.
        let usual = ["ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"].map(String::from);
        for option in ours.iter().chain(&ssh.options).chain(&usual) {
            options.extend(["-o".into(), option.into()]);
        }
        // Neither the user's agent nor the display is forwarded to the machine.
        options.extend(["-a".into(), "-x".into(), "-T".into()]);
        let socket = folder.join(format!("ssh-{}", machine.name));
        SshConnection { name: machine.name.clone(), destination: machine.ssh.clone(), options, socket }
    }

    /// The machine in messages: its name, and ssh's target.
    pub fn display_name(&self) -> String {
        format!("{} (ssh {})", self.name, self.destination)
    }

    fn ssh_command(&self, master: &str, more: &[&str]) -> Command {
        let mut command = Command::new("ssh");
        command.arg("-S").arg(&self.socket).args(["-o", &format!("ControlMaster={master}")]);
        command.args(["-o", "ControlPersist=no"]).args(&self.options).args(more);
        command.arg("--").arg(&self.destination);
        command
    }

    /// Runs a shell line there, as the master of later connections.
    pub fn run(&self, line: &str) -> Command {
        let mut command = self.ssh_command("yes", &[]);
        command.arg(line);
        command
    }

    /// Connects standard input and output to HOST:PORT, as seen from the machine.
    pub fn forward_stdio(&self, address: &str) -> Command {
        self.ssh_command("no", &["-W", address])
    }

    /// Forwards a free port of the machine's loopback to an address here; prints its number.
    pub fn forward_remote_port(&self, address: &str) -> Command {
        self.ssh_command("no", &["-O", "forward", "-R", &format!("127.0.0.1:0:{address}")])
    }

    /// Why ssh ended with `status` (`None` = by a signal) before the agent there sent anything: the output of ssh or
    /// the machine, and what to do. `program` is the one there; `None` = a copy of this one.
    pub fn explain_exit(&self, status: Option<i32>, said: &str, program: Option<&str>) -> String {
        let said = said.trim();
        let shown = self.display_name();
        let has = |what: &str| said.contains(what);
        let there = program.unwrap_or_default();
        let advice = match status {
            Some(255) if has("REMOTE HOST IDENTIFICATION HAS CHANGED") => {
                "its host key differs from the one in known_hosts: find out why before you remove the old one \
                 (ssh-keygen -R)"
                    .to_owned()
            }
            Some(255) if has("Host key verification failed") => format!(
                "its host key is unknown: connect once by hand and compare it (ssh {}), or add it to known_hosts",
                self.destination
            ),
            Some(255) if has("Permission denied") => {
                "it denies access: there is no password prompt, so it needs a key (ssh-copy-id) that an agent \
                 holds or that has no passphrase"
                    .to_owned()
            }
            Some(255) => "it cannot be reached".to_owned(),
            None => "ssh was ended by a signal".to_owned(),
            Some(status) if program.is_none() => format!(
                "this program could not be copied there or cannot run there (status {status}): it needs room in the folder for \
                 temporary files, the same architecture, and the libraries that it is linked with"
            ),
            Some(127) => format!(
                "there is no program {there} there: install dta-manager, give its path (program = \"PATH\"), or have \
                 it copied (deploy = true)"
            ),
            Some(126) => format!("{there} cannot run there: it is not a program for that machine"),
            Some(status) => {
                format!("{there} there is another version, or no dta-manager: it ended with status {status}")
            }
        };
        match said {
            "" => format!("{shown}: {advice}"),
            said => format!("{shown}: {advice}; output: {}", last_lines(said)),
        }
    }
}

/// Lines of output that are shown.
const LINES: usize = 4;

/// The last lines of a text, joined into one.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join(" / ")
}

fn shell_quoted(word: &str) -> String {
    match word.strip_prefix("~/") {
        Some(rest) => format!("\"$HOME\"/{}", shell_quoted(rest)),
        None => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The command on the machine: its own program.
pub fn start_line(program: &str) -> String {
    format!("exec {} {}", shell_quoted(program), super::protocol::ROLE)
}

/// The command on the machine: a program with this many bytes that comes on standard input, run from a folder that is
/// removed afterwards. It prints [`COPIED`] before the program starts.
pub fn deploy_line(bytes: u64) -> String {
    let script = format!(
        "umask 077; d=$(mktemp -d \"${{TMPDIR:-/tmp}}/dta-deploy-XXXXXXXX\") || exit 1; trap \"rm -rf $d\" EXIT; \
         trap \"exit 1\" HUP INT TERM; head -c {bytes} >\"$d/dta-manager\" || exit 1; \
         [ \"$(wc -c <\"$d/dta-manager\")\" -eq {bytes} ] || exit 1; chmod 700 \"$d/dta-manager\" && echo {COPIED} && \
         \"$d/dta-manager\" {}",
        super::protocol::ROLE
    );
    // Whatever shell the user has there.
    format!("exec sh -c {}", shell_quoted(&script))
}

pub const COPIED: &str = "copied";

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(options: &[&str]) -> SshConnection {
        let text = "name = 'm1'\nssh = 'dta@m1.example'\nport = 2222\nroles = ['host']\naddress = '10.0.0.1'";
        let ssh = Ssh {
            config: Some("/etc/x/ssh_config".into()),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        };
        SshConnection::new(&toml::from_str(text).unwrap(), &ssh, Path::new("/run/x"))
    }

    fn words(command: &Command) -> Vec<String> {
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_users_options_go_before_what_is_usual_and_behind_what_has_to_be() {
        let words = words(&connection(&["BatchMode=no", "ConnectTimeout=3"]).run("true"));
        let at = |word: &str| {
            words.iter().position(|it| it == word).unwrap_or_else(|| panic!("{word}: {words:?}"))
        };
        assert!(at("BatchMode=yes") < at("BatchMode=no"));
        assert!(at("ConnectTimeout=3") < at("ConnectTimeout=10"));
        assert_eq!(words[at("-F") + 1], "/etc/x/ssh_config");
        assert_eq!(words[at("-p") + 1], "2222");
        assert_eq!(&words[at("--")..], ["--", "dta@m1.example", "true"]);
    }

    #[test]
    fn what_went_wrong_is_explained_with_what_to_do() {
        let connection = connection(&[]);
        for (status, said, expect) in [
            (
                Some(255),
                "ssh: connect to host m1 port 22: Connection refused",
                "cannot be reached; output: ssh",
            ),
            (
                Some(255),
                "No ED25519 host key is known.\r\nHost key verification failed.\r\n",
                "compare it (ssh dta@m1",
            ),
            (Some(255), "dta@m1: Permission denied (publickey).", "ssh-copy-id"),
            (Some(127), "bash: line 1: exec: x: not found", "deploy = true"),
            (Some(126), "Exec format error", "not a program for that machine"),
            (Some(2), "error: unrecognized subcommand", "another version"),
        ] {
            let explanation = connection.explain_exit(status, said, Some("/opt/dta-manager"));
            assert!(
                explanation.starts_with("m1 (ssh dta@m1.example): ") && explanation.contains(expect),
                "{explanation}"
            );
        }
    }

    #[test]
    fn a_program_is_one_word_of_the_shell() {
        assert_eq!(start_line("/a b/it's"), "exec '/a b/it'\\''s' __machine");
        assert_eq!(start_line("~/bin/x"), "exec \"$HOME\"/'bin/x' __machine");
    }
}
