//! `dta-collector sessions`

use clap::Subcommand;
use dta_cli::CommandStatus;
use dta_cli::table::TextTable;
use dta_views::sessions::{SessionRow, fetch_session_rows};
use serde::Serialize;

use super::client_flags::ClientFlags;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  dta-collector sessions
  dta-collector sessions -o wide     with owners and transport
  dta-collector sessions end leaf1   revoke its keys; what it wrote stays

A running translator reopens its session: stop it first to give its lists to another."
)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    client: ClientFlags,
}

#[derive(Subcommand)]
enum Command {
    /// List sessions and their queue pairs
    #[command(after_help = "Example:\n  dta-collector sessions list")]
    List {
        #[command(flatten)]
        client: ClientFlags,
    },
    /// End a session
    #[command(
        after_help = "Example:\n  dta-collector sessions end leaf1   revoke its keys; what it wrote stays"
    )]
    End {
        /// Its name
        name: String,
        #[command(flatten)]
        client: ClientFlags,
    },
}

#[derive(Serialize)]
struct EndedSessions {
    ended: Vec<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    match args.command {
        Some(Command::End { name, client }) => {
            super::block_on(async { Ok(client.connect_single().await?.end_session(&name).await?) })?;
            client.output.print_document(&EndedSessions { ended: vec![name] }, |ended| {
                ended.ended.iter().map(|name| format!("session {name} has ended")).collect()
            })?;
        }
        Some(Command::List { client }) => print_sessions(&client)?,
        None => print_sessions(&args.client)?,
    }
    Ok(CommandStatus::Done)
}

fn print_sessions(client: &ClientFlags) -> anyhow::Result<()> {
    let found = super::block_on(async { Ok(fetch_session_rows(&client.connect_all().await?).await?) })?;
    // One answer is enough; collectors without one are reported.
    for (address, error) in &found.unreachable {
        let text = format!("dta-collector: the collector at {address} does not answer: {error}");
        eprintln!("{}", dta_cli::terminal::for_stderr(&text));
    }
    let sessions = found.sessions;
    client.output.print_document(&sessions, |sessions| render_table(sessions, client.is_wide_output()))
}

fn render_table(sessions: &[SessionRow], wide: bool) -> String {
    if sessions.is_empty() {
        return "no session: no translator has a key to this collector's memory".to_owned();
    }
    // If several collectors are asked, each row names its collector.
    let several = sessions.iter().any(|session| session.collector.is_some());
    let (mut header, right): (Vec<&str>, &[usize]) = if wide {
        let header =
            ["session", "gen.", "translator", "frames by", "owner", "expires", "stores", "queue pair"];
        ([&header[..], &["state", "PSN"]].concat(), &[1, 5, 9])
    } else {
        (vec!["session", "translator", "expires", "stores", "queue pair", "state"], &[2])
    };
    if several {
        header.insert(0, "collector");
    }
    let right: Vec<usize> = right.iter().map(|column| column + usize::from(several)).collect();
    let mut table = TextTable::new(&header, &right);
    for s in sessions {
        let expires = s.expires_in.map_or_else(|| "never".to_owned(), |t| format!("{t:.0} s"));
        let head = [s.name.clone(), s.translator.clone(), expires, s.stores.join(", ")];
        let mut row = |first: bool, mut cells: Vec<String>| {
            if several {
                cells.insert(0, s.collector.clone().filter(|_| first).unwrap_or_default());
            }
            table.add_row(cells);
        };
        let mut pair = |first: bool, [pair, state, psn]: [String; 3]| {
            let [name, translator, expires, stores] =
                head.clone().map(|cell| if first { cell } else { String::new() });
            if wide {
                let generation = if first { s.generation.to_string() } else { String::new() };
                let owner =
                    if first { s.owner.clone().unwrap_or_else(|| "-".to_owned()) } else { String::new() };
                let by =
                    if first { s.frames_by.clone().unwrap_or_else(|| "-".to_owned()) } else { String::new() };
                row(first, vec![name, generation, translator, by, owner, expires, stores, pair, state, psn]);
            } else {
                row(first, vec![name, translator, expires, stores, pair, state]);
            }
        };
        if s.queue_pairs.is_empty() {
            pair(true, ["none until it renews".to_owned(), String::new(), String::new()]);
        }
        for (i, of) in s.queue_pairs.iter().enumerate() {
            let qpn = format!("{:#08x} {} ({})", of.qpn, of.purpose, of.transport);
            pair(i == 0, [qpn, of.state.clone(), of.expected_psn.to_string()]);
        }
    }
    table.to_string()
}
