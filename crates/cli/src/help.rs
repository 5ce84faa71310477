//! Rules for help texts, checked by each program's tests. Each page has an example.
//!
//! The terminal's width decides where a paragraph wraps, so a paragraph is a single source line; only lines
//! that start with two spaces, such as examples, are printed as they are, and must fit 80 columns. (A manual
//! page keeps such lines apart, too.)

use clap::Command;

/// Width of the narrowest terminal.
const NARROWEST: usize = 80;

/// For a program's tests: checks its arguments and the help of all its commands.
///
/// # Panics
/// If clap finds a fault in the arguments, or the help breaks a rule; the message names the command.
pub fn assert_sound(command: Command) {
    command.clone().debug_assert();
    let faults = help_faults(command);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn help_faults(mut command: Command) -> Vec<String> {
    command.build();
    let mut faults = Vec::new();
    check_command_help(&command, &mut faults);
    faults
}

fn check_command_help(command: &Command, faults: &mut Vec<String>) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let own = [
        command.get_about(),
        command.get_long_about(),
        command.get_after_help(),
        command.get_after_long_help(),
    ];
    let args = command.get_arguments().flat_map(|arg| [arg.get_help(), arg.get_long_help()]);
    for text in own.into_iter().chain(args).flatten() {
        faults
            .extend(help_text_faults(&text.to_string()).into_iter().map(|fault| format!("{name}: {fault}")));
    }
    let mut help = command.clone().term_width(NARROWEST);
    if !help.render_long_help().to_string().lines().any(|line| line.starts_with("Example")) {
        faults.push(format!("{name}: no example"));
    }
    for text in [help.render_help().to_string(), help.render_long_help().to_string()] {
        let wide = text.lines().filter(|line| line.chars().count() > NARROWEST);
        faults.extend(wide.map(|line| format!("{name}: too wide: {line}")));
    }
    // `help` itself is clap's.
    let own = command.get_subcommands().filter(|command| command.get_name() != "help");
    own.for_each(|command| check_command_help(command, faults));
}

fn help_text_faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut before: Option<&str> = None;
    for line in text.lines() {
        let stands = line.starts_with("  ");
        if stands && line.chars().count() > NARROWEST {
            faults.push(format!("wider than {NARROWEST} columns: {line}"));
        }
        let goes_on = before.is_some_and(|before| !before.is_empty() && !before.starts_with("  "));
        if goes_on && !stands && !line.is_empty() {
            faults.push(format!("a paragraph of several lines: {line}"));
        }
        before = Some(line);
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_lines_and_examples_fit() {
        assert_eq!(
            help_text_faults(&format!("{}\n\nExamples:\n  a\n    b\nAnother.", "word ".repeat(40))),
            [""; 0]
        );
        assert_eq!(help_text_faults("One\ntwo").len(), 1);
        assert_eq!(help_text_faults(&format!("Examples:\n  {}", "x".repeat(79))).len(), 1);
        let command = Command::new("a")
            .after_help("Example:\n  a b")
            .subcommand(Command::new("b").after_help("One\ntwo\nExamples:\n  a b c"))
            .subcommand(Command::new("c"));
        assert_eq!(
            help_faults(command),
            [
                "a b: a paragraph of several lines: two",
                "a b: a paragraph of several lines: Examples:",
                "a c: no example"
            ]
        );
    }
}
