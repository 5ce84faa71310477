//! What every program adds to its commands: a version with commit and features, an environment variable for
//! each flag that has one, the exit statuses, `completions` and `man`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Command, CommandFactory, Parser};
use clap_complete::Shell;

use crate::status::{self, CommandStatus};

/// The commit of this build; empty if unknown.
const COMMIT: &str = env!("DTA_COMMIT");

/// Maximum width of help texts, in columns.
const WIDEST: usize = 100;

/// Commands that every program has besides its own.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Common {
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples, of which each is for one shell:
  PROGRAM completions bash > /etc/bash_completion.d/PROGRAM
  PROGRAM completions zsh > /usr/share/zsh/site-functions/_PROGRAM
  PROGRAM completions fish > /etc/fish/completions/PROGRAM.fish
  PROGRAM completions powershell >> $PROFILE")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write one for each command into a directory
    #[command(after_help = "\
Examples:
  PROGRAM man | man -l -
  PROGRAM man /usr/local/share/man/man1")]
    Man {
        /// Where to write PROGRAM.1, and PROGRAM-COMMAND.1 for each command
        dir: Option<PathBuf>,
    },
}

/// Arguments of `config`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Example {
    /// Print a commented file with every setting and its default
    #[arg(long, required = true)]
    pub example: bool,
}

impl Common {
    /// Runs it for a program with these features.
    ///
    /// # Errors
    /// Standard output or the directory is not writable.
    pub fn run<C: CommandFactory>(&self, features: &[&str]) -> anyhow::Result<CommandStatus> {
        let mut command = program_command::<C>(features);
        match self {
            Self::Completions { shell } => {
                write_stdout(crate::completions::completion_script(*shell, &mut command).as_bytes())?;
            }
            Self::Man { dir: None } => {
                let mut page = Vec::new();
                clap_mangen::Man::new(for_manual_pages(command)).render(&mut page)?;
                write_stdout(&page)?;
            }
            Self::Man { dir: Some(dir) } => write_manual_pages(command, dir)?,
        }
        Ok(CommandStatus::Done)
    }
}

fn write_stdout(bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    std::io::stdout().lock().write_all(bytes)
}

/// A program as in its manual: the commit would change every page.
fn for_manual_pages(command: Command) -> Command {
    command.version(env!("CARGO_PKG_VERSION")).disable_help_subcommand(true)
}

fn write_manual_pages(command: Command, dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    clap_mangen::generate_to(for_manual_pages(command), dir)
        .with_context(|| format!("cannot write manual pages into {}", dir.display()))
}

/// The program's commands plus those that all programs have. `features` are the cargo features it is built
/// with.
pub fn program_command<C: CommandFactory>(features: &[&str]) -> Command {
    with_common_parts(C::command(), features)
}

fn with_common_parts(command: Command, features: &[&str]) -> Command {
    let name = command.get_name().to_owned();
    let help = command.get_after_help().map(ToString::to_string);
    let help = help.into_iter().chain([status::exit_status_help()]).collect::<Vec<_>>().join("\n\n");
    let prefix = format!("{}_", name.to_uppercase().replace('-', "_"));
    let command = with_names(with_variables(command, &prefix), &name);
    command.version(leak_text(version_text(features))).after_help(help).max_term_width(WIDEST)
}

/// Names the environment variable of each flag that has one (`#[arg(long, env)]`): `--soft-port` of
/// dta-collector has DTA_COLLECTOR_SOFT_PORT.
fn with_variables(command: Command, prefix: &str) -> Command {
    let command = command.mut_args(|arg| match (arg.get_env(), arg.get_long()) {
        (Some(_), Some(long)) => {
            let name = format!("{prefix}{}", long.to_uppercase().replace('-', "_"));
            arg.env(leak_text(name)).hide_env_values(true)
        }
        _ => arg,
    });
    command.mut_subcommands(|command| with_variables(command, prefix))
}

/// Inserts the program's name into shared help texts.
fn with_names(command: Command, name: &str) -> Command {
    let named = |text: String| text.replace("PROGRAM", name);
    command.mut_subcommands(|mut command| {
        if let Some(text) = command.get_after_help().map(ToString::to_string) {
            command = command.after_help(named(text));
        }
        if command.get_name() == "man" {
            command = command.mut_args(|arg| match arg.get_help().map(ToString::to_string) {
                Some(text) => arg.help(named(text)),
                None => arg,
            });
        }
        command
    })
}

/// A text that lives as long as the program: clap accepts no other names.
fn leak_text(text: String) -> &'static str {
    text.leak()
}

/// Version and commit: two programs with the same version and commit are compatible.
pub fn build_version() -> String {
    let commit = if COMMIT.is_empty() { "unknown" } else { COMMIT };
    format!("{} (commit {commit})", env!("CARGO_PKG_VERSION"))
}

fn version_text(features: &[&str]) -> String {
    let commit = if COMMIT.is_empty() { "unknown" } else { COMMIT };
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let features = match features {
        [] => "no features".to_owned(),
        features => format!("features {}", features.join(" ")),
    };
    format!("{} (commit {commit}, {build} build, {features})", env!("CARGO_PKG_VERSION"))
}

/// Runs a program: parses arguments, the first of which is its name, executes them, and returns the exit
/// status. Errors are printed on standard error.
pub fn run<P: Parser, S: Into<ExitCode>>(
    args: impl IntoIterator<Item = OsString>,
    features: &[&str],
    work: impl FnOnce(P) -> anyhow::Result<S>,
) -> ExitCode {
    let command = program_command::<P>(features);
    let name = command.get_name().to_owned();
    let args = move_flags_behind_subcommand(&command, args.into_iter().collect());
    let parsed = command.try_get_matches_from(args).and_then(|matches| P::from_arg_matches(&matches));
    match parsed {
        Ok(program) => crate::report_result(&name, work(program)),
        Err(error) => {
            // Help and version are errors to clap, but not to the user.
            let status = if error.use_stderr() { CommandStatus::Misuse } else { CommandStatus::Done };
            let _ = error.print();
            status.into()
        }
    }
}

/// Moves a subcommand's long flags behind it if they come first: people also type
/// `dta-collector --collector HOST:PORT stores`.
fn move_flags_behind_subcommand(command: &Command, args: Vec<OsString>) -> Vec<OsString> {
    let find = |command: &Command, name: &str| {
        command
            .get_arguments()
            .find(|arg| arg.get_long() == Some(name))
            .map(|arg| arg.get_action().takes_values())
    };
    let mut args = args.into_iter().peekable();
    let (mut before, mut moved): (Vec<_>, Vec<_>) = (args.next().into_iter().collect(), Vec::new());
    while let Some(flag) = args.next_if(|arg| arg.to_str().is_some_and(|arg| arg.starts_with("--"))) {
        let text = flag.to_string_lossy().into_owned();
        let (name, value) =
            text[2..].split_once('=').map_or((&text[2..], None), |(name, value)| (name, Some(value)));
        let own = find(command, name);
        let of_subcommand = command.get_subcommands().find_map(|command| find(command, name));
        let to = if own.is_none() && of_subcommand.is_some() { &mut moved } else { &mut before };
        to.push(flag);
        if value.is_none() && own.or(of_subcommand) == Some(true) {
            to.extend(args.next());
        }
    }
    let mut rest: Vec<OsString> = args.collect();
    let end = rest.iter().position(|arg| arg == "--").unwrap_or(rest.len());
    rest.splice(end..end, moved);
    before.extend(rest);
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    #[command(name = "dta-test", version, after_help = "Examples:\n  dta-test one", propagate_version = true)]
    struct Test {
        #[arg(long, env, global = true, default_value = "a")]
        some_flag: String,
        #[command(subcommand)]
        command: TestCommand,
    }

    #[derive(clap::Subcommand)]
    enum TestCommand {
        /// One
        One {
            /// A key
            #[arg(long, env, value_name = "FILE")]
            private_key: Option<PathBuf>,
            /// No variable
            #[arg(long)]
            count: Option<u32>,
        },
        #[command(flatten)]
        Common(Common),
    }

    #[test]
    fn a_flag_with_a_variable_has_the_one_of_its_name() {
        let mut command = program_command::<Test>(&[]);
        command.build();
        let one = command.find_subcommand("one").unwrap();
        let variable = |name: &str| {
            let arg = one.get_arguments().find(|arg| arg.get_long() == Some(name)).unwrap();
            arg.get_env().map(|name| name.to_string_lossy().into_owned())
        };
        assert_eq!(variable("some-flag").as_deref(), Some("DTA_TEST_SOME_FLAG"));
        assert_eq!(variable("private-key").as_deref(), Some("DTA_TEST_PRIVATE_KEY"));
        assert_eq!(variable("count"), None);
    }

    #[test]
    fn a_flag_of_a_subcommand_may_stand_before_it() {
        let moved = |line: &str| {
            let args = line.split(' ').map(OsString::from).collect();
            let moved = move_flags_behind_subcommand(&program_command::<Test>(&[]), args);
            moved.join(" ".as_ref()).into_string().unwrap()
        };
        for (typed, understood) in [
            ("dta-test --count 3 one", "dta-test one --count 3"),
            ("dta-test --count=3 --some-flag b one x", "dta-test --some-flag b one x --count=3"),
            ("dta-test --count 3 one -- x", "dta-test one --count 3 -- x"),
            ("dta-test one --count 3", "dta-test one --count 3"),
            ("dta-test --unknown 3 one", "dta-test --unknown 3 one"),
            ("dta-test --help", "dta-test --help"),
        ] {
            assert_eq!(moved(typed), understood);
        }
        let status = run::<Test, CommandStatus>(
            ["dta-test", "--count", "3", "one"].map(OsString::from),
            &[],
            |test| match test.command {
                TestCommand::One { count: Some(3), .. } => Ok(CommandStatus::Done),
                _ => Ok(CommandStatus::Failed),
            },
        );
        assert_eq!(status, CommandStatus::Done.into());
    }

    #[test]
    fn the_version_says_commit_and_features() {
        let version = |features: &[&str]| program_command::<Test>(features).render_version();
        let text = version(&[]);
        assert!(text.starts_with(&format!("dta-test {} (commit ", env!("CARGO_PKG_VERSION"))), "{text}");
        assert!(text.trim_end().ends_with("no features)"), "{text}");
        assert!(version(&["verbs"]).trim_end().ends_with(", features verbs)"), "{text}");
    }

    #[test]
    fn every_shell_has_completions_and_every_command_a_page() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut program_command::<Test>(&[]), "dta-test", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("dta-test") && script.contains("private-key"), "{shell}: {script}");
        }
        let dir = tempfile::tempdir().unwrap();
        write_manual_pages(program_command::<Test>(&[]), &dir.path().join("man1")).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.path().join("man1").join(name)).unwrap();
        assert!(page("dta-test-one.1").contains("DTA_TEST_PRIVATE_KEY"), "{}", page("dta-test-one.1"));
        assert!(page("dta-test-completions.1").contains("completions fish"));
        let all = page("dta-test.1");
        assert!(all.contains("Exit status:") && all.contains("dta\\-test one"), "{all}");
        assert!(!all.contains("commit"), "{all}");
        assert!(write_manual_pages(program_command::<Test>(&[]), Path::new("/dev/null/x")).is_err());
    }

    #[test]
    fn statuses_say_what_was_wrong() {
        let run = |args: &[&str], work: fn() -> anyhow::Result<CommandStatus>| {
            run::<Test, CommandStatus>(args.iter().map(OsString::from), &[], |_| work())
        };
        let is = |code: ExitCode, status: CommandStatus| assert_eq!(code, status.into());
        is(run(&["dta-test", "one"], || Ok(CommandStatus::Done)), CommandStatus::Done);
        is(run(&["dta-test", "one"], || Ok(CommandStatus::Absent)), CommandStatus::Absent);
        is(run(&["dta-test", "one"], || Err(anyhow::anyhow!("no"))), CommandStatus::Failed);
        is(
            run(&["dta-test", "one"], || Err(status::misuse_error(anyhow::anyhow!("no")))),
            CommandStatus::Misuse,
        );
        is(run(&["dta-test", "two"], || Ok(CommandStatus::Done)), CommandStatus::Misuse);
        is(run(&["dta-test", "--version"], || Ok(CommandStatus::Failed)), CommandStatus::Done);
    }
}
