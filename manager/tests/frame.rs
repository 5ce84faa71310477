//! What all programs have in common: version, completions, manual pages, names of variables, exit
//! statuses, and names of hosts wherever addresses are taken.

use std::net::UdpSocket;
use std::process::{Command, Output};

const MANAGER: &str = env!("CARGO_BIN_EXE_dta-manager");

/// Name of each program, and how this one is asked to act as it.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("dta-collector", &["__collector"]),
    ("dta-translator", &["__translator"]),
    ("dta-reporter", &["__reporter"]),
    ("dta-manager", &[]),
];

fn run(role: &[&str], arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(MANAGER);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DTA_")) {
        command.env_remove(name);
    }
    command.args(role).args(arguments).envs(variables.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The commands that a help text lists.
fn commands(help: &str) -> Vec<String> {
    let list =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn each_prints_its_version_with_commit_and_features() {
    for (name, role) in PROGRAMS {
        for flag in ["--version", "-V"] {
            let output = run(role, &[flag], &[]);
            let printed = text(&output.stdout);
            assert!(output.status.success() && printed.lines().count() == 1, "{name}: {printed}");
            let start = format!("{name} {} (commit ", env!("CARGO_PKG_VERSION"));
            assert!(printed.starts_with(&start) && printed.contains("features"), "{printed}");
        }
    }
}

#[test]
fn bash_completes_the_words_behind_a_command() {
    for (name, role, command, expected) in [
        ("dta-collector", PROGRAMS[0].1, "stores", "--collector"),
        ("dta-translator", PROGRAMS[1].1, "plan", "--against"),
        ("dta-reporter", PROGRAMS[2].1, "send", "key-write"),
        ("dta-manager", PROGRAMS[3].1, "run-testbed", "--faults"),
    ] {
        let script = text(&run(role, &["completions", "bash"], &[]).stdout);
        let function = name.replace('-', "__");
        let start = if expected.starts_with('-') { "--" } else { "k" };
        let ask = format!(
            "{script}\nCOMP_WORDS=({name} {command} {start}); COMP_CWORD=2\n\
             _{function} {name} {start} {command}; echo \"${{COMPREPLY[*]}}\""
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
        let offered = text(&output.stdout);
        assert!(offered.split_whitespace().any(|word| word == expected), "{name} {command}: {offered}");
    }
}

#[test]
fn each_has_completions_for_every_shell_and_a_page_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    for (name, role) in PROGRAMS {
        let commands = commands(&text(&run(role, &["--help"], &[]).stdout));
        assert!(commands.len() >= 3, "{name}: {commands:?}");
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let output = run(role, &["completions", shell], &[]);
            let script = text(&output.stdout);
            for command in commands.iter().filter(|command| *command != "help") {
                assert!(script.contains(command), "{name} {shell}: no {command}");
            }
        }
        assert_eq!(run(role, &["completions", "csh"], &[]).status.code(), Some(2));
        let output = run(role, &["man", folder.path().to_str().unwrap()], &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        for command in commands.iter().filter(|command| *command != "help") {
            let page = std::fs::read_to_string(folder.path().join(format!("{name}-{command}.1")));
            let page = page.unwrap_or_else(|e| panic!("{name}-{command}.1: {e}"));
            assert!(page.contains(".SH SYNOPSIS"), "{page}");
        }
        let page = std::fs::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
        assert_eq!(
            text(&run(role, &["man"], &[]).stdout),
            page,
            "{name}: the page is the same on standard output"
        );
        assert!(page.contains("Exit status:") && !page.contains("commit "), "{page}");
    }
}

#[test]
fn variables_are_called_after_program_and_flag() {
    for (name, role) in PROGRAMS {
        let prefix = format!("{}_", name.to_uppercase().replace('-', "_"));
        let mut seen = 0;
        for command in commands(&text(&run(role, &["--help"], &[]).stdout)) {
            let help = text(&run(role, &[&command, "--help"], &[]).stdout);
            let mut flag = String::new();
            for line in help.lines() {
                let words = || line.split_whitespace();
                if words().next().is_some_and(|word| word.starts_with('-'))
                    && let Some(long) = words().find_map(|word| word.strip_prefix("--"))
                {
                    flag = long.to_uppercase().replace('-', "_");
                }
                if let Some((_, variable)) = line.split_once("[env: ") {
                    let variable = variable.split(']').next().unwrap();
                    assert_eq!(variable, format!("{prefix}{flag}"), "{name} {command}: {line}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 0, "{name} has no variable");
    }
}

#[test]
fn a_variable_is_as_good_as_its_flag() {
    let listen = [("DTA_TRANSLATOR_LISTEN", "127.0.0.1:41999"), ("DTA_TRANSLATOR_NAME", "tor1")];
    let shown = text(&run(&["__translator"], &["check-config"], &listen).stdout);
    assert!(shown.contains("\"127.0.0.1:41999\"") && shown.contains("\"tor1\""), "{shown}");
    let shown = text(&run(&["__translator"], &["check-config", "--name", "tor2"], &listen).stdout);
    assert!(shown.contains("\"tor2\""), "a flag goes over a variable: {shown}");
    let json = run(&[], &["doctor"], &[("DTA_MANAGER_OUTPUT", "json")]);
    assert!(serde_json::from_slice::<serde_json::Value>(&json.stdout).is_ok());
}

#[test]
fn exit_statuses_are_the_same_in_all_programs() {
    for (name, role) in PROGRAMS {
        let status = |arguments: &[&str]| run(role, arguments, &[]).status.code();
        assert_eq!(status(&["--help"]), Some(0), "{name}");
        assert_eq!(status(&["nothing-of-this"]), Some(2), "{name}");
        assert_eq!(status(&["man", "/dev/null/x"]), Some(1), "{name}");
        let help = text(&run(role, &["--help"], &[]).stdout);
        for (status, meaning) in dta_cli::status::STATUSES {
            assert!(help.contains(&format!("  {status:<10}{meaning}")), "{name}: {status} in\n{help}");
        }
    }
    for (role, arguments) in [
        (&["__collector"][..], &["check-config", "--config", "/nonexistent"][..]),
        (&["__translator"], &["check-config", "--config", "/nonexistent"]),
        (&[], &["run-testbed", "--topology", "/nonexistent"]),
    ] {
        assert_eq!(run(role, arguments, &[]).status.code(), Some(2), "{arguments:?}");
    }
    for (role, arguments) in [
        (&["__collector"][..], &["stores", "--collector", "127.0.0.1:1"][..]),
        (&["__translator"], &["stats", "--translator", "127.0.0.1:1"]),
        (&["__reporter"], &["send", "key-write", "--key", "01", "--value", "1", "--to", "127.0.0.1:1"]),
        (&[], &["doctor", "--collector", "127.0.0.1:1"]),
    ] {
        assert_eq!(run(role, arguments, &[]).status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn a_configuration_is_found_in_its_place_and_is_blamed_for_nothing_that_a_flag_says() {
    for (role, name, wrong) in [
        ("__collector", "collector.toml", "listen = \"0.0.0.0:41996\""),
        ("__translator", "translator.toml", "control = \"0.0.0.0:41996\""),
    ] {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("dta").join(name);
        std::fs::create_dir(home.path().join("dta")).unwrap();
        let table = role.trim_start_matches('_');
        let check = |text: &str, flags: &[&str]| {
            std::fs::write(&file, format!("[{table}]\n{text}\n")).unwrap();
            let variables = [("XDG_CONFIG_HOME", home.path().to_str().unwrap())];
            run(&[role], &[&["check-config"], flags].concat(), &variables)
        };
        let output = check("name = \"placed\"", &[]);
        assert!(text(&output.stdout).contains("name = \"placed\""), "{output:?}");
        assert!(text(&output.stderr).contains(file.to_str().unwrap()), "which file it was: {output:?}");
        let output = check("name = \"placed\"", &["--config", "none"]);
        assert!(output.status.success() && !text(&output.stdout).contains("placed"), "{output:?}");

        let output = check(wrong, &[]);
        assert_eq!(output.status.code(), Some(2));
        let place = format!("{}, line 2: ", file.display());
        assert!(text(&output.stderr).contains(&place), "{output:?}");
        let [flag, _, value] = wrong.split(' ').collect::<Vec<_>>()[..] else { panic!("{wrong}") };
        let output = check("", &[&format!("--{flag}"), value.trim_matches('"')]);
        assert_eq!(output.status.code(), Some(2));
        assert!(!text(&output.stderr).contains(", line "), "{output:?}");
        let output = check(wrong, &[&format!("--{flag}"), "127.0.0.1:41996"]);
        assert!(output.status.success(), "a flag goes over the file: {output:?}");
    }
}

#[test]
fn names_of_hosts_are_taken_wherever_addresses_are() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let to = format!("localhost:{port}");
    let send = ["send", "key-write", "--unchecked", "--store", "1", "--key", "01", "--value", "1"];
    let output = run(&["__reporter"], &[&send[..], &["--to", &to, "--from", "localhost:0"]].concat(), &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (_, from) = socket.recv_from(&mut [0; 256]).unwrap();
    assert!(from.ip().is_loopback());

    for (role, flags, shown) in [
        (
            &["__collector"][..],
            &["--listen", "localhost:41998", "--soft-address", "localhost", "--memory", "anonymous"][..],
            "127.0.0.1:41998",
        ),
        (
            &["__translator"],
            &["--listen", "localhost:41998", "--source", "localhost", "--control", "localhost:41997"],
            "127.0.0.1:41998",
        ),
    ] {
        let output = run(role, &[&["check-config"], flags].concat(), &[]);
        let all = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && all.contains(shown), "{flags:?}: {all}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        let table = role[0].trim_start_matches('_');
        std::fs::write(&file, format!("[{table}]\nlisten = \"localhost:41998\"\n")).unwrap();
        let output = run(role, &["check-config", "--config", file.to_str().unwrap()], &[]);
        let all = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && all.contains(shown), "{all}");
        std::fs::write(&file, format!("[{table}]\nlisten = \"nobody.invalid:1\"\n")).unwrap();
        let output = run(role, &["check-config", "--config", file.to_str().unwrap()], &[]);
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains("nobody.invalid"), "{stderr}");
    }
    for (role, arguments) in [
        (&["__collector"][..], &["check-config", "--listen", "nobody.invalid:1"][..]),
        (&["__translator"], &["check-config", "--source", "nobody.invalid"]),
        (&["__reporter"], &["send", "append", "--list", "1", "--value", "1", "--to", "nobody.invalid:1"]),
        (&[], &["replay", "x.pcap", "--to", "nobody.invalid:1"]),
    ] {
        let output = run(role, arguments, &[]);
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains("no known address for host \"nobody.invalid\""), "{arguments:?}: {stderr}");
    }
}
