//! `dta-collector sessions`

use clap::Subcommand;
use dta_cli::Status;
use dta_client::Ask;
use dta_proto::control::{Purpose, SessionInfo, Transport};
use serde::Serialize;

use super::client_flags::ClientFlags;
use super::output::{self, Output};

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  dta-collector sessions
  dta-collector sessions end leaf1      its queue pairs and keys end at once; what it wrote stays

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

pub(super) fn run(args: Args) -> anyhow::Result<Status> {
    match args.command {
        Some(Command::End { name, client }) => {
            super::block_on(async { Ok(client.connect().await?.end_session(&name).await?) })?;
            if client.output == Output::Table {
                output::line(format!("session {name} has ended"))?;
            }
        }
        Some(Command::List { client }) => list(&client)?,
        None => list(&args.client)?,
    }
    Ok(Status::Done)
}

fn list(client: &ClientFlags) -> anyhow::Result<()> {
    let sessions = super::block_on(async { Ok(client.connect().await?.sessions().await?.sessions) })?;
    let sessions: Vec<Shown> = sessions.into_iter().map(shown).collect();
    if client.output == Output::Json {
        return output::json(&sessions);
    }
    if sessions.is_empty() {
        output::line("no session: no translator has a key to this collector's memory")?;
        return Ok(());
    }
    let mut table = output::table(
        &[
            "session",
            "generation",
            "translator",
            "expires in",
            "stores",
            "queue pair",
            "state",
            "expects PSN",
        ],
        &[1, 3, 7],
    );
    for s in &sessions {
        let head = [
            s.name.clone(),
            s.generation.to_string(),
            s.translator.clone(),
            s.expires_in.map_or_else(|| "never".to_owned(), |t| format!("{t:.0} s")),
            s.stores.join(", "),
        ];
        if s.queue_pairs.is_empty() {
            let rest = ["none until it renews".to_owned(), String::new(), String::new()];
            table.add_row(head.iter().cloned().chain(rest));
        }
        for (i, pair) in s.queue_pairs.iter().enumerate() {
            let head = head.iter().map(|cell| if i == 0 { cell.clone() } else { String::new() });
            let qpn = format!("{:#08x} {} ({})", pair.qpn, pair.purpose, pair.transport);
            table.add_row(head.chain([qpn, pair.state.clone(), pair.expected_psn.to_string()]));
        }
    }
    output::line(table)?;
    Ok(())
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
