//! `dta-collector sessions`

use clap::Subcommand;
use dta_cli::Status;
use dta_cli::table::Table;
use dta_client::Ask;
use dta_proto::control::{Purpose, SessionInfo, Transport};
use serde::Serialize;

use super::client_flags::ClientFlags;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  dta-collector sessions
  dta-collector sessions -o wide     with owners, and how frames travel
  dta-collector sessions end leaf1   its keys end at once; what it wrote stays

A translator that runs opens its session again: stop it first, if another one is to have its lists."
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    client: ClientFlags,
}

#[derive(Subcommand)]
enum Command {
    /// List sessions and their queue pairs
    List {
        #[command(flatten)]
        client: ClientFlags,
    },
    /// End a session
    End {
        /// Its name
        name: String,
        #[command(flatten)]
        client: ClientFlags,
    },
}

#[derive(Serialize)]
struct Shown {
    name: String,
    generation: u64,
    translator: String,
    /// Seconds; `null` = never.
    expires_in: Option<f64>,
    stores: Vec<String>,
    /// Names of the certificate that opened it; absent without TLS.
    owner: Option<String>,
    /// How its frames travel: `ring`, or `udp: ` and why; absent where its translator does not say.
    frames_by: Option<String>,
    queue_pairs: Vec<Pair>,
}

#[derive(Serialize)]
struct Pair {
    qpn: u32,
    purpose: &'static str,
    transport: &'static str,
    state: String,
    expected_psn: u32,
    peer_qpn: u32,
    counters: std::collections::BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct Ended {
    /// Names of sessions.
    ended: Vec<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Status> {
    match args.command {
        Some(Command::End { name, client }) => {
            super::block_on(async { Ok(client.connect().await?.end_session(&name).await?) })?;
            client.output.print(&Ended { ended: vec![name] }, |ended| {
                ended.ended.iter().map(|name| format!("session {name} has ended")).collect()
            })?;
        }
        Some(Command::List { client }) => list(&client)?,
        None => list(&args.client)?,
    }
    Ok(Status::Done)
}

fn list(client: &ClientFlags) -> anyhow::Result<()> {
    let sessions = super::block_on(async { Ok(client.connect().await?.sessions().await?.sessions) })?;
    let sessions: Vec<Shown> = sessions.into_iter().map(shown).collect();
    client.output.print(&sessions, |sessions| table(sessions, client.is_wide()))
}

fn table(sessions: &[Shown], wide: bool) -> String {
    if sessions.is_empty() {
        return "no session: no translator has a key to this collector's memory".to_owned();
    }
    let mut table = if wide {
        Table::new(
            &[
                "session",
                "gen.",
                "translator",
                "frames by",
                "owner",
                "expires",
                "stores",
                "queue pair",
                "state",
                "PSN",
            ],
            &[1, 5, 9],
        )
    } else {
        Table::new(&["session", "translator", "expires", "stores", "queue pair", "state"], &[2])
    };
    for s in sessions {
        let expires = s.expires_in.map_or_else(|| "never".to_owned(), |t| format!("{t:.0} s"));
        let head = [s.name.clone(), s.translator.clone(), expires, s.stores.join(", ")];
        let mut row = |first: bool, [pair, state, psn]: [String; 3]| {
            let [name, translator, expires, stores] =
                head.clone().map(|cell| if first { cell } else { String::new() });
            if wide {
                let generation = if first { s.generation.to_string() } else { String::new() };
                let owner =
                    if first { s.owner.clone().unwrap_or_else(|| "-".to_owned()) } else { String::new() };
                let by =
                    if first { s.frames_by.clone().unwrap_or_else(|| "-".to_owned()) } else { String::new() };
                table.row([name, generation, translator, by, owner, expires, stores, pair, state, psn]);
            } else {
                table.row([name, translator, expires, stores, pair, state]);
            }
        };
        if s.queue_pairs.is_empty() {
            row(true, ["none until it renews".to_owned(), String::new(), String::new()]);
        }
        for (i, pair) in s.queue_pairs.iter().enumerate() {
            let qpn = format!("{:#08x} {} ({})", pair.qpn, pair.purpose, pair.transport);
            row(i == 0, [qpn, pair.state.clone(), pair.expected_psn.to_string()]);
        }
    }
    table.to_string()
}

fn shown(session: SessionInfo) -> Shown {
    let translator = session.translator.unwrap_or_default();
    Shown {
        name: session.name,
        generation: session.generation,
        translator: format!("{}:{}", translator.ip, translator.port),
        expires_in: (session.expires_in_seconds >= 0.0).then_some(session.expires_in_seconds),
        stores: session.stores,
        owner: (!session.owner.is_empty()).then_some(session.owner),
        frames_by: (!session.frames_by.is_empty()).then_some(session.frames_by),
        queue_pairs: session
            .queue_pairs
            .into_iter()
            .map(|pair| Pair {
                qpn: pair.qpn,
                purpose: match pair.purpose() {
                    Purpose::Write => "write",
                    Purpose::Atomic => "atomic",
                },
                transport: match pair.transport() {
                    Transport::Uc => "UC",
                    Transport::Rc => "RC",
                },
                state: pair.state,
                expected_psn: pair.expected_psn,
                peer_qpn: pair.peer_qpn,
                counters: pair.counters.into_iter().map(|c| (c.name, c.value)).collect(),
            })
            .collect(),
    }
}
