//! Completion scripts: clap_complete's, extended to complete names of stores and hosts.
//!
//! clap_complete writes which flags there are; completions of their values are added to its scripts
//! afterwards. For names of stores, the scripts run `dta-collector stores` with those of its flags
//! ([`FLAGS`]) on the line, or else with its variables. A collector that does not answer within two seconds
//! yields none.

use std::collections::BTreeMap;

use clap::Command;
use clap_complete::Shell;

/// Flags with the collector's address and credentials: all programs share these names.
const FLAGS: [&str; 5] = ["--collector", "--ca", "--client-cert", "--client-key", "--tls-domain"];

/// A command, for any shell, that prints the stores' names, one a line; `flags` is its syntax for the flags found.
/// Names appear in the JSON as `"name": "flows"`.
fn list_stores_command(flags: &str) -> String {
    format!(
        r#"timeout 2 dta-collector stores -o json {flags} 2>/dev/null | sed -n 's/^ *"name": "\(.*\)",\{{0,1\}}$/\1/p'"#
    )
}

/// The kind of a value, by its placeholder in help texts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CompletionKind {
    /// `NAME|ID` or `STORE`
    Store,
    /// `HOST` or `HOST:PORT`
    Host,
}

pub(crate) fn completion_script(shell: Shell, command: &mut Command) -> String {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, command, &name, &mut script);
    // clap_complete 4.6 looks up a hyphenated name's words under another name than it records
    // (clap-rs/clap#6421).
    let (looked_up, noted) = (name.replace('-', "__subcmd__"), name.replace('-', "__"));
    let script = String::from_utf8_lossy(&script).replace(&looked_up, &noted);
    let mut kinds = BTreeMap::new();
    collect_flag_kinds(command, &mut kinds);
    let function = name.replace('-', "_");
    let mut with_argument = Vec::new();
    commands_with_store_argument(command, "", &mut with_argument);
    match shell {
        Shell::Bash => extend_bash_script(&script, &kinds, &function, &with_argument),
        Shell::Zsh => extend_zsh_script(&script, &function),
        Shell::Fish => {
            let arguments = with_argument.iter().map(|path| {
                format!(
                    "complete -c {name} -n \"__fish_{function}_using_subcommand {path}\" -f -a '(__fish_{function}_stores)'\n"
                )
            });
            extend_fish_script(&script, &kinds, &function) + &arguments.collect::<String>()
        }
        _ => script,
    }
}

/// The flags with values of these kinds, as typed.
fn collect_flag_kinds(command: &Command, kinds: &mut BTreeMap<String, CompletionKind>) {
    for arg in command.get_arguments() {
        let kind = match arg.get_value_names().unwrap_or_default() {
            [name] if name == "NAME|ID" || name == "STORE" => CompletionKind::Store,
            [name] if name == "HOST" || name == "HOST:PORT" => CompletionKind::Host,
            _ => continue,
        };
        kinds.extend(arg.get_long().map(|long| (format!("--{long}"), kind)));
        kinds.extend(arg.get_short().map(|short| (format!("-{short}"), kind)));
    }
    command.get_subcommands().for_each(|command| collect_flag_kinds(command, kinds));
}

/// bash splits words at colons, so the line is examined instead.
fn extend_bash_script(
    script: &str,
    kinds: &BTreeMap<String, CompletionKind>,
    function: &str,
    with_argument: &[String],
) -> String {
    let files = "compgen -f \"${cur}\"";
    // Commands as the script calls them.
    let with_argument: Vec<_> =
        with_argument.iter().map(|path| path.replace([' ', '-'], "__subcmd__")).collect();
    let mut flag = None;
    let mut has_store_argument = false;
    let (bare, with_value) = (FLAGS.join("|"), FLAGS.map(|flag| format!("{flag}=*")).join("|"));
    let mut lines = format!(
        r#"_{function}_stores() {{
    local word take='' words=() flags=()
    IFS=$' \t' read -ra words <<<"${{COMP_LINE:0:COMP_POINT}}"
    for word in "${{words[@]}}"; do
        if [[ $take ]]; then
            flags+=("$take" "$word")
            take=''
        else
            case $word in
            {bare}) take=$word ;;
            {with_value}) flags+=("$word") ;;
            esac
        fi
    done
    {}
}}
"#,
        list_stores_command("\"${flags[@]}\"")
    );
    for line in script.lines() {
        match line.trim().strip_suffix(')') {
            Some(shown) if shown.starts_with('-') && !shown.contains(' ') => flag = kinds.get(shown),
            Some(shown) if !shown.contains([' ', ',']) && shown.contains("__subcmd__") => {
                let path = shown.split_once("__subcmd__").map_or("", |(_, path)| path);
                has_store_argument = with_argument.iter().any(|with| with == path);
            }
            _ => {}
        }
        let line = match flag {
            // The words of a command; clap_complete leaves out its arguments.
            _ if has_store_argument && line.trim_start().starts_with("opts=") => {
                let stores = format!(" $(_{function}_stores)\"");
                line.strip_suffix('"').map_or_else(|| line.to_owned(), |words| words.to_owned() + &stores)
            }
            Some(CompletionKind::Store) => {
                line.replace(files, &format!("compgen -W \"$(_{function}_stores)\" -- \"${{cur}}\""))
            }
            Some(CompletionKind::Host) => line.replace(files, "compgen -A hostname -- \"${cur}\""),
            None => line.to_owned(),
        };
        lines += &line;
        lines.push('\n');
    }
    lines
}

/// clap_complete 4.6 does not escape the colon in `HOST:PORT`, which zsh takes for the end of the name.
fn extend_zsh_script(script: &str, function: &str) -> String {
    let (bare, with_value) = (FLAGS.join("|"), FLAGS.map(|flag| format!("{flag}=*")).join("|"));
    let stores = format!(
        r#"_{function}_stores() {{
    local word take=''
    local -a names flags
    for word in "${{(@Q)${{(z)LBUFFER}}}}"; do
        if [[ -n $take ]]; then
            flags+=("$take" "$word")
            take=''
        else
            case $word in
            ({bare}) take=$word ;;
            ({with_value}) flags+=("$word") ;;
            esac
        fi
    done
    names=(${{(f)"$({})"}})
    compadd -a names
}}

"#,
        list_stores_command("\"${flags[@]}\"")
    );
    script
        .replace(":NAME|ID:_default", &format!(":NAME or ID:_{function}_stores"))
        .replace(":STORE:_default", &format!(":STORE:_{function}_stores"))
        .lines()
        .map(|line| complete_zsh_argument(line, function) + "\n")
        .collect::<String>()
        .replace(":HOST:_default", ":HOST:_hosts")
        .replace(":HOST:PORT:_default", ":HOST\\:PORT:_hosts")
        .replace(":HOST:PORT|", ":HOST\\:PORT|")
        .replacen("autoload -U is-at-least\n\n", &format!("autoload -U is-at-least\n\n{stores}"), 1)
}

/// Makes the line of an argument, `':store -- The store:_default' \`, complete stores.
fn complete_zsh_argument(line: &str, function: &str) -> String {
    let is_store = line.trim_start_matches(['\'', ':']).starts_with("store -- ");
    if is_store { line.replace(":_default'", &format!(":_{function}_stores'")) } else { line.to_owned() }
}

/// Paths of the commands whose argument is a store.
fn commands_with_store_argument(command: &Command, path: &str, found: &mut Vec<String>) {
    for command in command.get_subcommands() {
        let path = format!("{path} {}", command.get_name());
        let is_store = |arg: &clap::Arg| arg.get_value_names().is_some_and(|names| names[0] == "STORE");
        if command.get_positionals().any(is_store) {
            found.push(path.trim_start().to_owned());
        }
        commands_with_store_argument(command, &path, found);
    }
}

fn extend_fish_script(script: &str, kinds: &BTreeMap<String, CompletionKind>, function: &str) -> String {
    let (bare, with_value) = (FLAGS.join(" "), FLAGS.map(|flag| format!("'{flag}=*'")).join(" "));
    let mut lines = format!(
        r#"function __fish_{function}_stores
    set -l flags
    set -l take
    for word in (commandline -opc)
        if set -q take[1]
            set -a flags $take $word
            set take
        else
            switch $word
                case {bare}
                    set take $word
                case {with_value}
                    set -a flags $word
            end
        end
    end
    {}
end
"#,
        list_stores_command("$flags")
    );
    for line in script.lines() {
        lines += line;
        let long = line.split_once(" -l ").and_then(|(_, rest)| rest.split(' ').next());
        match long.filter(|_| line.ends_with(" -r")).and_then(|long| kinds.get(&format!("--{long}"))) {
            Some(CompletionKind::Store) => lines += &format!(" -f -a '(__fish_{function}_stores)'"),
            Some(CompletionKind::Host) => lines += " -f -a '(__fish_print_hostnames)'",
            None => {}
        }
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn command() -> Command {
        let flag =
            |name: &'static str, value: &'static str| clap::Arg::new(name).long(name).value_name(value);
        Command::new("dta-test")
            .subcommand(
                Command::new("query")
                    .arg(flag("store", "NAME|ID").short('s'))
                    .arg(flag("collector", "HOST:PORT"))
                    .arg(flag("file", "FILE")),
            )
            .subcommand(
                Command::new("history")
                    .arg(clap::Arg::new("store").value_name("STORE").required(true).help("The store")),
            )
    }

    /// What bash offers at the end of a line, given a collector of two stores, one known host and one file.
    fn offered(line: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let collector = folder.path().join("dta-collector");
        let stores = "printf '[\\n {\\n  \"name\": \"flows\",\\n  \"id\": 1\\n },\\n {\\n  \"name\": \"events\"\\n }\\n]\\n'";
        let other = "printf '[\\n {\\n  \"name\": \"others\"\\n }\\n]\\n'";
        std::fs::write(
            &collector,
            format!(
                "#!/bin/sh\ncase \"$*\" in\n'stores -o json') {stores} ;;\n\
                 'stores -o json --collector 10.0.0.9:40051' | 'stores -o json --collector=10.0.0.9:40051 --ca my.crt') {other} ;;\n\
                 *) exit 1 ;;\nesac\n"
            ),
        )
        .unwrap();
        std::fs::set_permissions(&collector, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(folder.path().join("hosts"), "10.0.0.5 collector.example\n").unwrap();
        std::fs::write(folder.path().join("script"), completion_script(Shell::Bash, &mut command())).unwrap();
        let ask = format!(
            ". ./script; HOSTFILE=$PWD/hosts; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _dta__test dta-test \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let bash = std::process::Command::new("bash")
            .args(["-c", &ask])
            .current_dir(folder.path())
            .env("PATH", path)
            .output()
            .unwrap();
        assert!(bash.stderr.is_empty(), "{}", String::from_utf8_lossy(&bash.stderr));
        String::from_utf8(bash.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn bash_completes_stores_hosts_and_files() {
        assert_eq!(offered("dta-test query --store ''"), ["flows", "events"]);
        assert_eq!(offered("dta-test query -s fl"), ["flows"]);
        assert_eq!(offered("dta-test query --collector 10.0.0.9:40051 --store oth"), ["others"]);
        assert_eq!(offered("dta-test query --collector=10.0.0.9:40051 --ca my.crt -s oth"), ["others"]);
        assert_eq!(offered("dta-test query --collector coll"), ["collector.example"]);
        assert_eq!(offered("dta-test query --file scr"), ["script"]);
        assert!(offered("dta-test query --").contains(&"--store".to_owned()));
        assert_eq!(offered("dta-test history fl"), ["flows"]);
        assert_eq!(offered("dta-test history --collector 10.0.0.9:40051 oth"), ["others"]);
    }

    #[test]
    fn zsh_and_fish_ask_for_stores_and_hosts() {
        let zsh = completion_script(Shell::Zsh, &mut command());
        assert!(
            zsh.contains(":NAME or ID:_dta_test_stores'") && zsh.contains("\n_dta_test_stores() {"),
            "{zsh}"
        );
        assert!(zsh.contains(":HOST\\:PORT:_hosts'") && !zsh.contains("HOST:PORT"), "{zsh}");
        let fish = completion_script(Shell::Fish, &mut command());
        assert!(fish.contains(" -l store -r -f -a '(__fish_dta_test_stores)'"), "{fish}");
        for script in [&zsh, &fish] {
            assert!(script.contains("--collector=*") && script.contains("stores -o json "), "{script}");
        }
        assert!(fish.contains(" -l collector -r -f -a '(__fish_print_hostnames)'"), "{fish}");
        let history = "-n \"__fish_dta_test_using_subcommand history\" -f -a '(__fish_dta_test_stores)'";
        assert!(fish.contains(history), "{fish}");
        assert!(zsh.contains("':store -- The store:_dta_test_stores'"), "{zsh}");
    }
}
