//! `dta-collector tail events`

use std::sync::Arc;

use dta_cli::CommandStatus;
use dta_cli::output::{self, OutputFlag};
use dta_export::kind::EventKind;
use dta_export::names::Names;
use dta_proto::key::Flow;
use dta_proto::prefix::Prefix;
use dta_proto::telemetry::SwitchNumber;
use dta_rpc::{Ask, ClientError};
use dta_views::int::event::Filter;
use dta_views::int::event_reader::{EventLine, EventReader, PastEvents};

use super::client_flags::ClientFlags;
use crate::cli::names_flag::NamesFlag;

pub(super) const HELP: &str = "\
Follows the lists of int-events and prints a line for each event: time, kind, flow or place, the value and the one before. Flows of long keys are named by the key directory.

Examples:
  dta-collector tail events
  dta-collector tail events -n 20 --once            the last 20
  dta-collector tail events --kind drop,loop --since 10m
  dta-collector tail events --prefix 10.0.0.0/8 --switch leaf1 -o json
  dta-collector tail events --kind drop --at -1h     in the epoch of an hour ago
  dta-collector tail events --since 2026-11-24T14:00 --until 2026-11-24T15:00

Past events in the rings are printed in order of time, new ones as they come. What could not be read is printed on separate lines. Where int-events has epochs, with --at and --since a line names each epoch before the events that came in it, and others name what is not kept, and what will only be there once the epoch is written. Exit status 3: there are no such events then.";

#[derive(clap::Args)]
pub(super) struct TailEventsArgs {
    /// Only events of these kinds, separated by commas [default: all but `key`]
    #[arg(long, short, value_name = "KIND", value_delimiter = ',', value_parser = dta_cli::one_of_names::<EventKind>(&EventKind::NAMES))]
    kind: Vec<EventKind>,
    /// Only events of this flow
    #[arg(long, short, value_name = "FLOW", conflicts_with = "prefix")]
    flow: Option<Flow>,
    /// Only events of flows with an end in this prefix, such as 10.0.0.0/8
    #[arg(long, short, value_name = "PREFIX")]
    prefix: Option<Prefix>,
    /// Only events at this switch, by number or name
    #[arg(long, value_name = "SWITCH")]
    switch: Option<String>,
    /// Begin with the oldest events that the rings hold
    #[arg(long, conflicts_with = "number")]
    from_start: bool,
    /// Begin with the last N past events
    #[arg(long, short, value_name = "N")]
    number: Option<usize>,
    /// Print what is there now, then end
    #[arg(long)]
    once: bool,
    /// The events that came in the epoch of this moment, where int-events has epochs: 2026-11-24T14:00, or -1h
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true, conflicts_with_all = FOLLOWING)]
    at: Option<u64>,
    /// The events from this moment on, such as 10m: of all epochs since then or, without epochs, those in the rings
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true, conflicts_with_all = ["from_start", "number", "at"], alias = "from")]
    since: Option<u64>,
    /// With --since: only up to this moment [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true, requires = "since")]
    until: Option<u64>,
    #[command(flatten)]
    names: NamesFlag,
    #[command(flatten)]
    client: ClientFlags,
}

/// Flags that apply only to lists that are followed, not to past ones.
const FOLLOWING: [&str; 3] = ["from_start", "number", "once"];

pub(super) fn run(what: TailEventsArgs) -> anyhow::Result<CommandStatus> {
    let names = what.names.read()?;
    let switch = what.switch.as_deref().map(|switch| number_of(switch, &names)).transpose()?;
    let filter = Filter { kinds: what.kind.clone(), flow: what.flow, prefix: what.prefix, switch };
    let mut reader = EventReader::new(Arc::new(names), filter);
    let each = |line: EventLine| print_line(&line, what.client.output);
    super::block_on(async {
        let ask: Arc<dyn Ask> = Arc::new(what.client.connect_all().await?);
        if let Some(span) = super::asked_span(what.at, what.since, what.until) {
            let has_events = match reader.read_epoch_events(&ask, span, each).await {
                // Without epochs, events carry their own times.
                Err(error) if what.since.is_some() && is_without_epochs(&error) => {
                    let mut has_events = false;
                    let each = |line: EventLine| {
                        has_events |= matches!(line, EventLine::Event(_));
                        each(line)
                    };
                    reader.read_past_events(&ask, PastEvents::Within(span), each).await?;
                    has_events
                }
                has_events => has_events?,
            };
            return Ok(if has_events { CommandStatus::Done } else { CommandStatus::Absent });
        }
        let last = reader.read_past_events(&ask, what.past_events(), each).await?;
        if !what.once {
            reader.follow_events(ask, last, each).await?;
        }
        anyhow::Ok(CommandStatus::Done)
    })
}

impl TailEventsArgs {
    fn past_events(&self) -> PastEvents {
        match self.number {
            Some(most) => PastEvents::Newest(most),
            None if self.from_start || self.once => PastEvents::Newest(usize::MAX),
            None => PastEvents::None,
        }
    }
}

fn is_without_epochs(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ClientError>().is_some_and(ClientError::is_unimplemented)
}

fn number_of(switch: &str, names: &Names) -> anyhow::Result<u32> {
    let number = names.number_of(switch).or_else(|| Some(switch.parse::<SwitchNumber>().ok()?.0));
    number.ok_or_else(|| {
        dta_cli::misuse_error(anyhow::anyhow!(
            "no switch is called {switch:?} in the file of names (--names), and it is neither a number nor an address"
        ))
    })
}

fn print_line(line: &EventLine, output: OutputFlag) -> anyhow::Result<()> {
    if output.is_json() {
        return output::json_line(line);
    }
    for text in line.to_texts() {
        dta_cli::print_line(text)?;
    }
    Ok(())
}
