//! Flushes and probes. Registers show what the switch holds; commands sent to its CPU port make it leave
//! ([`cpu_port`](crate::cpu_port)).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dta_proto::wire::roce::Psn;

use super::{BfRuntime, Described};
use crate::TargetError;
use crate::cpu_port::{ColumnCommand, FlushCommand, Send, SwitchRows};
use crate::lower::{collector_port, split_pair_number};
use crate::tables::Tables;
use crate::tofino::{
    COLUMN_EPOCH, COLUMN_UNSENT, LIST_COUNT, LIST_SEQUENCE, NEXT_PSN, ROW_HEAD, ROW_KEY, command_port,
    cpu_port_pipe, pipe_of_port,
};
use crate::translator::{Command, FLUSH_COLUMN, FLUSH_LIST, FLUSH_ROW};

/// What to do if no command can be sent.
pub(super) const NO_INTERFACE: &str = "the switch cannot be made to flush or to probe: set `cpu_interface` in its table to the interface of \
     its CPU port (bf_pci0, which the kernel packet driver of the SDE makes)";

/// Pauses before checking whether a command was done. The command is sent again after each.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(500),
];

/// What was read at a place.
struct PlaceReading {
    /// The command for which it was read.
    command: Command,
    /// The pipe whose registers have it.
    pipe: usize,
    state: u32,
    /// What is there; `None` for nothing.
    mark: Option<Mark>,
    /// The recirculation port that the command passes through, if it is for a pipe other than the CPU port's.
    by: Option<u16>,
    /// The command that makes it leave.
    frame: Vec<u8>,
}

impl PlaceReading {
    fn register_place(&self) -> Place {
        (self.command.command, self.pipe, self.state)
    }
}

/// The value of a register in a pipe; a switch gives one value for each pipe, or one for all.
fn value_in_pipe(values: &[u32], pipe: usize) -> u32 {
    match values {
        [only] => *only,
        _ => values.get(pipe).copied().unwrap_or(0),
    }
}

impl BfRuntime {
    /// Sends commands by this rather than by an interface.
    pub fn send_commands_by(&mut self, send: Send) {
        self.send = Some(send);
    }

    /// Flushes what lists, rows and columns have held for as long as their commands say, and waits until it
    /// has left. `tables` are the rows that the switch holds.
    pub(super) async fn flush_due(
        &mut self,
        described: &Described,
        commands: &[Command],
        tables: &Tables,
    ) -> Result<(), TargetError> {
        if self.send.is_none() {
            return Err(TargetError::Refused(NO_INTERFACE.into()));
        }
        let rows = SwitchRows::new(self.profile, tables);
        let looks = self.read_places(described, &rows, commands).await?;
        let now = Instant::now();
        let mut due = Vec::new();
        for look in looks {
            let Some(mark) = look.mark else {
                self.ages.forget_place(look.register_place());
                continue;
            };
            // Columns are not flushed by age: their commands have the place of an epoch instead.
            let older = Duration::from_micros(look.command.value.into());
            if look.command.command == FLUSH_COLUMN
                || self.ages.observe_age(look.register_place(), mark, now) >= older
            {
                due.push(look);
            }
        }
        for pause in PAUSES {
            if due.is_empty() {
                return Ok(());
            }
            self.send_commands(due.iter().map(|look| look.frame.clone()).collect())?;
            tokio::time::sleep(pause).await;
            let mut again: Vec<Command> = due.iter().map(|look| look.command).collect();
            // The same row may be due in several pipes.
            again.dedup();
            let now = self.read_places(described, &rows, &again).await?;
            let now: BTreeMap<_, _> = now.iter().map(|look| (look.register_place(), look.mark)).collect();
            due.retain(|look| now.get(&look.register_place()) == Some(&look.mark));
        }
        if due.is_empty() {
            return Ok(());
        }
        let ports: BTreeSet<u16> = due.iter().filter_map(|look| look.by).collect();
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        let enabled = match ports.len() {
            0 => String::new(),
            _ => format!(" Are its recirculation ports enabled ({})?", ports.join(", ")),
        };
        Err(self.switch_failure(&format!(
            "it did not execute {} commands: is `cpu_interface` the interface of its CPU port?{enabled}",
            due.len()
        )))
    }

    pub(super) async fn probe_queue_pairs(
        &mut self,
        described: &Described,
        pairs: &[u8],
        tables: &Tables,
    ) -> Result<(), TargetError> {
        let indices: Vec<u32> = pairs.iter().map(|pair| u32::from(*pair)).collect();
        let next = self.registers(described, NEXT_PSN, &indices).await?;
        let rows = SwitchRows::new(self.profile, tables);
        let probe = |(pair, next): (&u8, &Vec<u32>)| {
            rows.probe_frame(*pair, Psn::new(value_in_pipe(next, self.pipe_of_pair(*pair))).wrapping_sub(1))
        };
        let frames = pairs.iter().zip(&next).filter_map(probe).collect();
        self.send_commands(frames)
    }

    fn send_commands(&mut self, frames: Vec<Vec<u8>>) -> Result<(), TargetError> {
        let Some(send) = &mut self.send else { return Err(TargetError::Refused(NO_INTERFACE.into())) };
        match send(&frames) {
            Ok(sent) if sent == frames.len() => Ok(()),
            Ok(sent) => Err(self.switch_failure(&format!(
                "{sent} of {} commands left by `cpu_interface`: is the interface up?",
                frames.len()
            ))),
            Err(error) => {
                Err(self.switch_failure(&format!("cannot send commands by `cpu_interface`: {error}")))
            }
        }
    }

    /// The pipe by which the frames of a queue pair leave: its registers at egress are there.
    fn pipe_of_pair(&self, pair: u8) -> usize {
        collector_port(&self.ports, split_pair_number(pair.into()).0)
            .map_or(0, |port| pipe_of_port(port).into())
    }

    /// Reads what the places of commands hold. Places that never hold anything are left out.
    async fn read_places(
        &mut self,
        described: &Described,
        rows: &SwitchRows<'_>,
        commands: &[Command],
    ) -> Result<Vec<PlaceReading>, TargetError> {
        let mut looks = self.look_at_lists(described, rows, commands).await?;
        looks.extend(self.look_at_rows(described, rows, commands).await?);
        looks.extend(self.look_at_columns(described, rows, commands).await?);
        Ok(looks)
    }

    async fn look_at_lists(
        &mut self,
        described: &Described,
        rows: &SwitchRows<'_>,
        commands: &[Command],
    ) -> Result<Vec<PlaceReading>, TargetError> {
        let mut lists = Vec::new();
        for command in commands.iter().filter(|command| command.command == FLUSH_LIST) {
            if let Some(list) = rows.list_command(command.store, command.index) {
                let pipe = list.pair.map_or(0, |pair| self.pipe_of_pair(pair));
                lists.push(PlaceReading {
                    command: *command,
                    pipe,
                    state: list.state,
                    mark: None,
                    by: None,
                    frame: list.frame,
                });
            }
        }
        let states: Vec<u32> = lists.iter().map(|look| look.state).collect();
        let counts = self.registers(described, LIST_COUNT, &states).await?;
        let (mut held, mut empty) = (Vec::new(), Vec::new());
        for (look, counts) in lists.into_iter().zip(counts) {
            match value_in_pipe(&counts, look.pipe) {
                0 => empty.push(look),
                _ => held.push(look),
            }
        }
        let states: Vec<u32> = held.iter().map(|look| look.state).collect();
        let sequences = self.registers(described, LIST_SEQUENCE, &states).await?;
        let held = held.into_iter().zip(sequences).map(|(look, sequences)| PlaceReading {
            mark: Some([value_in_pipe(&sequences, look.pipe), 0, 0, 0, 0]),
            ..look
        });
        empty.extend(held);
        Ok(empty)
    }

    /// A row is in the pipe through which its reports came in. A command for a pipe other than the CPU port's is forwarded to it.
    async fn look_at_rows(
        &mut self,
        described: &Described,
        rows: &SwitchRows<'_>,
        commands: &[Command],
    ) -> Result<Vec<PlaceReading>, TargetError> {
        let rows: Vec<(&Command, FlushCommand)> = commands
            .iter()
            .filter(|command| command.command == FLUSH_ROW)
            .filter_map(|command| Some((command, rows.postcards(command.store, command.index)?)))
            .collect();
        let states: Vec<u32> = rows.iter().map(|(_, row)| row.state).collect();
        let heads = self.registers(described, ROW_HEAD, &states).await?;
        let mut looks = Vec::new();
        for ((command, row), heads) in rows.iter().zip(&heads) {
            for (pipe, head) in heads.iter().enumerate() {
                let other =
                    u8::try_from(pipe).ok().filter(|_| heads.len() > 1 && pipe != cpu_port_pipe(heads.len()));
                let frame = match (head, other) {
                    // Most places hold nothing, and need no command.
                    (0, _) => Vec::new(),
                    (_, None) => row.frame.clone(),
                    (_, Some(other)) => row.frame_for_pipe(other),
                };
                let mark = (*head != 0).then_some([*head, 0, 0, 0, 0]);
                let by = other.map(command_port);
                looks.push(PlaceReading { command: **command, pipe, state: row.state, mark, by, frame });
            }
        }
        // Their keys matter only for their age.
        let by_age = |look: &&mut PlaceReading| look.mark.is_some() && look.command.value != 0;
        let states: Vec<u32> = looks.iter_mut().filter(by_age).map(|look| look.state).collect();
        for (place, name) in ROW_KEY.into_iter().enumerate() {
            let words = self.registers(described, name, &states).await?;
            for (look, words) in looks.iter_mut().filter(by_age).zip(&words) {
                if let Some(mark) = &mut look.mark {
                    mark[place + 1] = value_in_pipe(words, look.pipe);
                }
            }
        }
        Ok(looks)
    }

    async fn look_at_columns(
        &mut self,
        described: &Described,
        rows: &SwitchRows<'_>,
        commands: &[Command],
    ) -> Result<Vec<PlaceReading>, TargetError> {
        let columns: Vec<_> = commands
            .iter()
            .filter(|command| command.command == FLUSH_COLUMN)
            .filter_map(|command| {
                Some((command, rows.column_command(command.store, command.index, command.value)?))
            })
            .collect();
        let states: Vec<u32> = columns.iter().map(|(_, column)| column.state).collect();
        let unsent = self.registers(described, COLUMN_UNSENT, &states).await?;
        let held: Vec<_> = columns
            .into_iter()
            .zip(unsent)
            .map(|((command, column), unsent)| {
                let pipe = self.pipe_of_pair(column.pair);
                (command, value_in_pipe(&unsent, pipe), pipe, column)
            })
            .filter(|(_, unsent, _, _)| *unsent != 0)
            .collect();
        let states: Vec<u32> = held.iter().map(|(_, _, _, column)| column.state).collect();
        let epochs = self.registers(described, COLUMN_EPOCH, &states).await?;
        let look = |((command, unsent, pipe, column), epochs): ((&Command, _, _, _), Vec<u32>)| {
            let column: ColumnCommand = column;
            let epoch = value_in_pipe(&epochs, pipe);
            let mark = Some([epoch, unsent, 0, 0, 0]);
            let frame = column.frame_for_epoch(epoch);
            PlaceReading { command: *command, pipe, state: column.state, mark, by: None, frame }
        };
        Ok(held.into_iter().zip(epochs).map(look).collect())
    }
}

/// Identifies the contents of a place: another mark means other contents.
type Mark = [u32; 5];

/// A place: its kind, its pipe, and its number there.
type Place = (u8, usize, u32);

/// Since when places hold what they hold: since the first reading that found it, because the switch counts no time.
#[derive(Debug, Default)]
pub(super) struct Ages(BTreeMap<Place, (Mark, Instant)>);

impl Ages {
    /// How long a place has held this, as of a reading at `now`.
    fn observe_age(&mut self, place: Place, mark: Mark, now: Instant) -> Duration {
        let (seen, since) = self.0.entry(place).or_insert((mark, now));
        if *seen != mark {
            (*seen, *since) = (mark, now);
        }
        now.saturating_duration_since(*since)
    }

    fn forget_place(&mut self, place: Place) {
        self.0.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_young_again() {
        let (mut ages, start) = (Ages::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut age = |kind, mark: u32, ms| ages.observe_age((kind, 0, 7), [mark; 5], at(ms)).as_millis();
        assert_eq!([age(3, 1, 0), age(3, 1, 20), age(4, 1, 20), age(3, 1, 50)], [0, 20, 0, 50]);
        // It moved on, and stayed so; the other kind did not.
        assert_eq!([age(3, 2, 60), age(3, 2, 70), age(4, 1, 70)], [0, 10, 50]);
        ages.forget_place((3, 0, 7));
        assert_eq!(ages.observe_age((3, 0, 7), [2; 5], at(80)), Duration::ZERO);
        assert_eq!(ages.observe_age((4, 0, 7), [1; 5], at(80)), Duration::from_millis(60));
        // The other pipe's.
        assert_eq!(ages.observe_age((4, 1, 7), [1; 5], at(80)), Duration::ZERO);
        // A clock that the caller read before.
        assert_eq!(ages.observe_age((4, 0, 7), [1; 5], start), Duration::ZERO);
    }
}
