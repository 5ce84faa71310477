//! Switches with BfRuntime: Tofino.
//!
//! The switch describes the tables of its program, and its built-in ones, as `bfrt.json`; none of it is
//! compiled in. The switch loads its program itself (`bf_switchd --conf-file`): this control plane binds to
//! it by name.

mod commands;
mod connection;
mod fields;
mod own_tables;
mod registers;
mod rows;

use std::sync::Arc;

use crate::messages::bfruntime::bfrt::bf_runtime_client::BfRuntimeClient;
use crate::messages::bfruntime::bfrt::*;
use dta_proto::store::StoreKind;
use tokio::sync::mpsc::Sender;
use tonic::transport::Channel;

use self::commands::Ages;
use self::fields::{data_fields, number_in, single_key, table_entity};
use self::own_tables::{GROUP, MIRROR, NODE, PIPE, find_field};
pub use self::rows::schema_from_bfrt;
use crate::TargetError;
use crate::bfrt_json::{BfrtInfo, last_segment};
use crate::counters::SwitchCounts;
use crate::cpu_port;
use crate::options::SwitchOptions;
use crate::pipeline::P4Pipeline;
use crate::places::PlaceCapacity;
use crate::platform::Platform;
use crate::runtime::{self, BATCH, MAX_ANSWER, Runtime, WriteError};
use crate::schema::{Schema, Used};
use crate::tables::{Holds, Item, SwitchUpdate, Tables};
use crate::tofino::{self, Profile};
use crate::translator::{Command, FLUSH_COLUMN, FLUSH_LIST, FLUSH_ROW, PROBE};

pub struct BfRuntime {
    client: BfRuntimeClient<Channel>,
    address: String,
    device: u32,
    pipeline: &'static P4Pipeline,
    profile: Profile,
    /// The port to each collector.
    ports: Vec<u16>,
    /// Pipes whose traffic manager deflects what it would drop.
    deflecting: Vec<u32>,
    /// How commands reach its CPU port; `None` without an interface.
    send: Option<cpu_port::Send>,
    /// The ages of lists and rows that were read.
    ages: Ages,
    /// The switch's description of its tables, once it was requested.
    info: Option<Arc<Described>>,
    /// Alive while bound to the program.
    stream: Option<Sender<StreamMessageRequest>>,
}

/// A switch's description of its tables.
struct Described {
    /// Its program's tables, as described.
    program: BfrtInfo,
    own: BfrtInfo,
    /// Those of its program, as P4Runtime would describe them.
    schema: Schema,
}

impl BfRuntime {
    /// A configured switch. Nothing is requested yet.
    pub fn new(options: &SwitchOptions, pipeline: &'static P4Pipeline) -> Result<BfRuntime, TargetError> {
        let address = options.control.clone();
        let channel = runtime::connect_lazy(&address)?;
        let client = BfRuntimeClient::new(channel)
            .max_decoding_message_size(MAX_ANSWER)
            .max_encoding_message_size(MAX_ANSWER);
        let device = u32::try_from(options.device).unwrap_or(0);
        let profile = options.profile;
        Ok(BfRuntime {
            client,
            address,
            device,
            pipeline,
            profile,
            ports: options.collector_ports.clone(),
            deflecting: options.deflecting.iter().map(|pipe| (*pipe).into()).collect(),
            send: options.cpu_interface.as_deref().map(cpu_port::by_interface),
            ages: Ages::default(),
            info: None,
            stream: None,
        })
    }
}

#[tonic::async_trait]
impl Runtime for BfRuntime {
    fn platform(&self) -> Platform {
        Platform::Tofino
    }

    fn required_schema(&self) -> &'static Used {
        (self.pipeline.tofino.used)(self.profile)
    }

    fn table_capacity(&self, table: &str) -> Option<u64> {
        self.info.as_ref().and_then(|info| info.schema.table_by_name(table)).map(|table| table.size)
    }

    fn place_capacity(&self) -> PlaceCapacity {
        tofino::place_capacity(self.profile)
    }

    fn cannot_write(&self, kind: &StoreKind) -> Option<String> {
        tofino::cannot_write(self.profile, kind)
    }

    async fn read(&mut self) -> Result<Option<Tables>, TargetError> {
        let Some(described) = self.fetch_description().await? else { return Ok(None) };
        self.bind().await?;
        let used = self
            .required_schema()
            .tables
            .iter()
            .filter_map(|used| described.schema.table_by_name(used.name))
            .map(|table| table.id);
        let own = [NODE, GROUP, MIRROR]
            .iter()
            .filter_map(|name| described.own.table_by_name(name))
            .map(|table| table.id);
        let rows = used.chain(own).map(|table_id| TableEntry { table_id, ..TableEntry::default() });
        let default = |table_id| TableEntry { table_id, is_default_entry: true, ..TableEntry::default() };
        let defaults = self.pipeline.defaults.iter().filter_map(|name| described.schema.table_by_name(name));
        let defaults = defaults.map(|table| default(table.id));
        let deflections = self.deflecting.iter().filter_map(|pipe| {
            let table = described.own.table_by_name(PIPE)?;
            Some(TableEntry { entry_tgt: self.pipe_target(*pipe), ..default(table.id) })
        });
        let asked = rows.chain(defaults).chain(deflections).map(table_entity).collect();
        let mut tables = Tables::default();
        for entry in self.read_entities(asked).await? {
            let (item, holds) = described
                .decode_entry(&entry)
                .ok_or_else(|| self.switch_failure("it holds an entry that its program does not describe"))?;
            // A default that the program itself sets is not an entry of ours.
            let is_own =
                matches!(&item, Item::Default { table } if !self.pipeline.defaults.contains(&table.as_str()));
            if !is_own {
                tables.set(item, holds);
            }
        }
        Ok(Some(tables))
    }

    /// The switch loads its program itself. Whether its registers kept their values is not visible.
    async fn load(&mut self) -> Result<bool, TargetError> {
        self.described().await?;
        self.bind().await?;
        Ok(false)
    }

    async fn write_updates(&mut self, steps: &[SwitchUpdate]) -> Result<(), WriteError> {
        let nothing = |error| WriteError { made: Some(0), error };
        let described = self.described().await.map_err(nothing)?;
        let mut updates = Vec::with_capacity(steps.len());
        for step in steps {
            let update = match step {
                SwitchUpdate::Modify(Item::Deflection(pipe), Holds::Queue { port, queue }) => {
                    self.deflect_to(&described, *pipe, *port, *queue).await
                }
                _ => described.encode_update(step).ok_or_else(|| {
                    TargetError::Refused(format!(
                        "the switch's program cannot hold {:?}",
                        step.updated_item()
                    ))
                }),
            };
            updates.push(update.map_err(nothing)?);
        }
        self.send(updates).await.map_err(|(errors, error)| WriteError {
            made: errors.map(|errors| errors.iter().filter(|error| error.canonical_code == 0).count()),
            error,
        })
    }

    fn cannot_command(&self) -> Option<String> {
        self.send.is_none().then(|| commands::NO_INTERFACE.into())
    }

    /// Commands that set or forget something write registers here; those that make something leave are frames to the CPU port.
    async fn run_commands(&mut self, commands: &[Command], rows: &Tables) -> Result<(), TargetError> {
        let described = self.described().await?;
        let (mut updates, mut flushes, mut probes) = (Vec::new(), Vec::new(), Vec::new());
        for command in commands {
            match command.command {
                FLUSH_LIST | FLUSH_ROW | FLUSH_COLUMN => flushes.push(*command),
                PROBE => probes.push(command.pair),
                other => match described.register_updates(command) {
                    Some(registers) => updates.extend(registers),
                    None => return Err(self.switch_failure(&format!("its program has no command {other}"))),
                },
            }
        }
        for batch in updates.chunks(BATCH) {
            self.send(batch.to_vec()).await.map_err(|(_, error)| error)?;
        }
        if !flushes.is_empty() {
            self.flush_due(&described, &flushes, rows).await?;
        }
        if !probes.is_empty() {
            self.probe_queue_pairs(&described, &probes, rows).await?;
        }
        Ok(())
    }

    async fn read_counters(&mut self) -> Result<SwitchCounts, TargetError> {
        let described = self.described().await?;
        self.bind().await?;
        let mut counts = SwitchCounts::default();
        let ids: Vec<u32> = described.schema.counters.iter().map(|counter| counter.id).collect();
        for entry in self.read_counts(&ids).await? {
            let (Some(table), Some(index)) =
                (described.program.table_by_id(entry.table_id), single_key(&entry))
            else {
                continue;
            };
            let packets = find_field(table, "$COUNTER_SPEC_PKTS").map(|(id, _)| id);
            let value = data_fields(&entry).find(|field| Some(field.field_id) == packets).and_then(number_in);
            let size = usize::try_from(table.size).unwrap_or(0);
            let cells = counts.0.entry(last_segment(&table.name).into()).or_insert_with(|| vec![0; size]);
            if let (Some(cell), Some(count)) = (cells.get_mut(index as usize), value) {
                *cell = u64::try_from(count).unwrap_or(u64::MAX);
            }
        }
        let nacked = self.nacked_sequences(&described).await?;
        (self.pipeline.tofino.name_counts)(&mut counts, nacked);
        Ok(counts)
    }
}
