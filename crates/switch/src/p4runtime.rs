//! Switches with P4Runtime: bmv2's `simple_switch_grpc`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::messages::p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use crate::messages::p4runtime::v1::*;
use crate::messages::p4runtime::{from_bytes, read_p4info, to_bytes, update_errors};
use tokio::sync::mpsc::Sender;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tracing::{debug, info, warn};

use super::counters::SwitchCounts;
use super::pipeline::P4Pipeline;
use super::runtime::{self, CALL, MAX_ANSWER, Runtime, WriteError};
use super::schema::{KeyField, MatchKind, P4FieldSchema, P4TableSchema, Schema, Used, all_ones};
use super::tables::{Holds, Item, Match, SwitchUpdate, Tables};
use super::translator::Command;
use crate::TargetError;
use crate::options::SwitchOptions;
use crate::platform::Platform;

/// Longest wait for commands to finish.
const COMMANDS: Duration = Duration::from_secs(30);
/// The priority of rows of order 0, in tables that have priorities. The highest applies.
const FIRST: i32 = 1 << 16;

/// A program compiled for bmv2.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Its P4Info, in binary form.
    pub p4info: Vec<u8>,
    pub json: Vec<u8>,
    pub schema: Schema,
}

impl Compiled {
    /// The built-in program, or the one in a directory (`NAME.p4info.bin`, `NAME.json`).
    ///
    /// # Errors
    /// Files that are missing, or belong to another program.
    pub fn load(pipeline: &P4Pipeline, directory: Option<&Path>) -> Result<Compiled, TargetError> {
        let Some(directory) = directory else {
            let (p4info, json) = pipeline.compiled;
            return Compiled::from_file_contents(pipeline, p4info.to_vec(), json.to_vec());
        };
        let read = |ending: &str| {
            let path: PathBuf = directory.join(format!("{}.{ending}", pipeline.name));
            std::fs::read(&path).map_err(|error| {
                TargetError::Refused(format!("cannot read the program {}: {error}", path.display()))
            })
        };
        Compiled::from_file_contents(pipeline, read("p4info.bin")?, read("json")?)
    }

    fn from_file_contents(
        pipeline: &P4Pipeline,
        p4info: Vec<u8>,
        json: Vec<u8>,
    ) -> Result<Compiled, TargetError> {
        let refuse = |error: &dyn std::fmt::Display| TargetError::Refused(error.to_string());
        let info =
            read_p4info(&p4info).map_err(|error| refuse(&format_args!("this is not a P4Info: {error}")))?;
        let schema = Schema::of_p4info(&info);
        schema.check_required(pipeline.used).map_err(|error| refuse(&error))?;
        Ok(Compiled { p4info, json, schema })
    }

    /// Identifies the program that a switch runs.
    fn program_cookie(&self) -> u64 {
        u64::from(dta_proto::crc::crc32(&self.p4info)) << 32 | u64::from(dta_proto::crc::crc32(&self.json))
    }
}

pub struct P4Runtime {
    client: P4RuntimeClient<Channel>,
    address: String,
    device: u64,
    pipeline: &'static P4Pipeline,
    compiled: Compiled,
    /// Set once this is the primary controller.
    stream: Option<Stream>,
}

struct Stream {
    requests: Sender<StreamMessageRequest>,
    election: Uint128,
}

impl P4Runtime {
    /// A configured switch. Nothing is requested yet.
    ///
    /// # Errors
    /// An invalid address or program.
    pub fn new(options: &SwitchOptions, pipeline: &'static P4Pipeline) -> Result<P4Runtime, TargetError> {
        let compiled = Compiled::load(pipeline, options.program.as_deref())?;
        let address = options.control.clone();
        let channel = runtime::connect_lazy(&address)?;
        let client = P4RuntimeClient::new(channel)
            .max_decoding_message_size(MAX_ANSWER)
            .max_encoding_message_size(MAX_ANSWER);
        Ok(P4Runtime { client, address, device: options.device, pipeline, compiled, stream: None })
    }

    fn status_error(&self, status: &Status) -> TargetError {
        let reason = dta_rpc::transport::status_reason(status);
        let text = format!("the switch at {}: {reason}", self.address);
        match status.code() {
            Code::Unavailable => TargetError::Failed(format!(
                "{text}; is it running (`simple_switch_grpc --no-p4 ... -- --grpc-server-addr {}`)?",
                self.address
            )),
            _ => runtime::error_from_status(status, text),
        }
    }

    fn switch_failure(&self, what: &str) -> TargetError {
        TargetError::Failed(format!("the switch at {}: {what}", self.address))
    }

    /// The cookie of the program that the switch runs.
    async fn running_cookie(&mut self) -> Result<Option<u64>, TargetError> {
        let request = GetForwardingPipelineConfigRequest {
            device_id: self.device,
            response_type: get_forwarding_pipeline_config_request::ResponseType::CookieOnly.into(),
        };
        match self.client.get_forwarding_pipeline_config(request).await {
            Ok(answer) => {
                let cookie = answer.into_inner().config.and_then(|config| config.cookie);
                Ok(cookie.map(|cookie| cookie.cookie))
            }
            // It runs no program yet.
            Err(status) if matches!(status.code(), Code::FailedPrecondition | Code::NotFound) => Ok(None),
            Err(status) => Err(self.status_error(&status)),
        }
    }

    /// Becomes the primary controller. The newest wins, and an older one takes over again once it is gone.
    async fn arbitrate(&mut self) -> Result<(), TargetError> {
        if self.stream.as_ref().is_some_and(|stream| !stream.requests.is_closed()) {
            return Ok(());
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let election = Uint128 { high: 1, low: u64::try_from(since.as_millis()).unwrap_or(1) };
        let (requests, queue) = tokio::sync::mpsc::channel(1024);
        let arbitration =
            MasterArbitrationUpdate { device_id: self.device, election_id: Some(election), status: None };
        let first = stream_message_request::Update::Arbitration(arbitration);
        if requests.send(StreamMessageRequest { update: Some(first) }).await.is_err() {
            return Err(self.switch_failure("the stream ended"));
        }
        // The stream lasts as long as the connection: it has no timeout.
        let mut request = tonic::Request::new(ReceiverStream::new(queue));
        request.set_timeout(Duration::from_secs(u64::from(u32::MAX)));
        let answers =
            self.client.stream_channel(request).await.map_err(|status| self.status_error(&status))?;
        let mut answers = answers.into_inner();
        let first = tokio::time::timeout(CALL, answers.message()).await;
        let first = first.map_err(|_| self.switch_failure("it does not answer the arbitration request"))?;
        let first = first.map_err(|status| self.status_error(&status))?.and_then(|message| message.update);
        match first {
            Some(stream_message_response::Update::Arbitration(update))
                if update.status.as_ref().is_none_or(|status| status.code == 0) => {}
            Some(stream_message_response::Update::Arbitration(_)) => {
                return Err(self.switch_failure("another controller programs it, with a higher election id"));
            }
            _ => return Err(self.switch_failure("it does not answer the arbitration request")),
        }
        tokio::spawn(async move {
            while let Ok(Some(message)) = answers.message().await {
                match message.update {
                    Some(stream_message_response::Update::Arbitration(update)) => {
                        let is_mine = update.status.as_ref().is_none_or(|status| status.code == 0);
                        info!(primary = is_mine, "the switch announced which controller programs it");
                    }
                    Some(stream_message_response::Update::Packet(packet)) => {
                        debug!(bytes = packet.payload.len(), "the switch sent a packet");
                    }
                    Some(stream_message_response::Update::Error(error)) => {
                        warn!(error = error.message, "the switch rejected a message");
                    }
                    Some(stream_message_response::Update::Digest(_)) | None => {}
                }
            }
        });
        self.stream = Some(Stream { requests, election });
        Ok(())
    }

    fn election_id(&self) -> Option<Uint128> {
        self.stream.as_ref().map(|stream| stream.election)
    }

    async fn read_entities(&mut self, entities: Vec<Entity>) -> Result<Vec<Entity>, TargetError> {
        let request = ReadRequest { device_id: self.device, entities };
        let answer = self.client.read(request).await.map_err(|status| self.status_error(&status))?;
        let mut answer = answer.into_inner();
        let mut all = Vec::new();
        while let Some(part) = answer.message().await.map_err(|status| self.status_error(&status))? {
            all.extend(part.entities);
        }
        Ok(all)
    }

    /// Deletes the groups and clone sessions of another program. bmv2 forgets them when it loads a program,
    /// but its replication engine does not, so each copy would be sent twice.
    async fn delete_groups(&mut self) -> Result<(), TargetError> {
        let there = match self.read_entities(all_groups()).await {
            Ok(there) => there,
            // It runs no program.
            Err(TargetError::Failed(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        // Sessions first: they refer to groups.
        let is_group = |entity: &Entity| match &entity.entity {
            Some(entity::Entity::PacketReplicationEngineEntry(entry)) => {
                matches!(entry.r#type, Some(packet_replication_engine_entry::Type::MulticastGroupEntry(_)))
            }
            _ => false,
        };
        let (groups, sessions): (Vec<Entity>, Vec<Entity>) = there.into_iter().partition(is_group);
        let delete = |entity| Update { r#type: update::Type::Delete.into(), entity: Some(entity) };
        let updates: Vec<Update> = sessions.into_iter().chain(groups).map(delete).collect();
        if updates.is_empty() {
            return Ok(());
        }
        let request = WriteRequest {
            device_id: self.device,
            election_id: self.election_id(),
            updates,
            atomicity: write_request::Atomicity::ContinueOnError.into(),
        };
        self.client.write(request).await.map(drop).map_err(|status| self.status_error(&status))
    }

    fn encode_entity(&self, item: &Item, holds: Option<&Holds>) -> Result<Entity, TargetError> {
        encode_item(&self.compiled.schema, item, holds)
            .map(|entity| Entity { entity: Some(entity) })
            .ok_or_else(|| {
                TargetError::Refused(format!("the switch's program cannot hold {item:?}: {holds:?}"))
            })
    }

    async fn count_of_commands(&mut self) -> Result<u64, TargetError> {
        let counts = self.counters_named(&["commands"]).await?;
        Ok(counts.counts_named("commands").iter().sum())
    }

    async fn counters_named(&mut self, names: &[&str]) -> Result<SwitchCounts, TargetError> {
        let mut asked = Vec::new();
        for name in names {
            if let Some(counter) = self.compiled.schema.counter_by_name(name) {
                let entry = CounterEntry { counter_id: counter.id, index: None, data: None };
                asked.push(Entity { entity: Some(entity::Entity::CounterEntry(entry)) });
            }
        }
        let mut counts = SwitchCounts::default();
        for answer in self.read_entities(asked).await? {
            let Some(entity::Entity::CounterEntry(entry)) = answer.entity else { continue };
            let Some(counter) = self.compiled.schema.counters.iter().find(|c| c.id == entry.counter_id)
            else {
                continue;
            };
            let index = usize::try_from(entry.index.map_or(0, |index| index.index)).unwrap_or(usize::MAX);
            let size = usize::try_from(counter.size).unwrap_or(0);
            let cells = counts.0.entry(counter.name.clone()).or_insert_with(|| vec![0; size]);
            if let Some(cell) = cells.get_mut(index) {
                *cell = entry.data.map_or(0, |data| u64::try_from(data.packet_count).unwrap_or(0));
            }
        }
        Ok(counts)
    }
}

#[tonic::async_trait]
impl Runtime for P4Runtime {
    fn platform(&self) -> Platform {
        Platform::Bmv2
    }

    fn required_schema(&self) -> &'static Used {
        self.pipeline.used
    }

    fn table_capacity(&self, table: &str) -> Option<u64> {
        self.compiled.schema.table_by_name(table).map(|table| table.size)
    }

    async fn read(&mut self) -> Result<Option<Tables>, TargetError> {
        if self.running_cookie().await? != Some(self.compiled.program_cookie()) {
            return Ok(None);
        }
        let mut asked = Vec::new();
        let mut table = |table_id, is_default_action| {
            let entry = TableEntry { table_id, is_default_action, ..TableEntry::default() };
            asked.push(Entity { entity: Some(entity::Entity::TableEntry(entry)) });
        };
        for used in self.pipeline.used.tables.iter() {
            let Some(id) = self.compiled.schema.table_by_name(used.name).map(|table| table.id) else {
                continue;
            };
            table(id, false);
            if self.pipeline.defaults.contains(&used.name) {
                table(id, true);
            }
        }
        asked.extend(all_groups());
        let mut tables = Tables::default();
        for entity in self.read_entities(asked).await? {
            match entity.entity.as_ref().and_then(|entity| decode_entity(&self.compiled.schema, entity)) {
                Some((item, holds)) => tables.set(item, holds),
                None => {
                    return Err(self.switch_failure("it holds an entry that its program does not describe"));
                }
            }
        }
        Ok(Some(tables))
    }

    async fn load(&mut self) -> Result<bool, TargetError> {
        self.arbitrate().await?;
        if self.running_cookie().await? == Some(self.compiled.program_cookie()) {
            return Ok(false);
        }
        info!(switch = self.address, "loading the program");
        self.delete_groups().await?;
        let config = ForwardingPipelineConfig {
            p4info: self.compiled.p4info.clone(),
            p4_device_config: self.compiled.json.clone(),
            cookie: Some(forwarding_pipeline_config::Cookie { cookie: self.compiled.program_cookie() }),
        };
        let request = SetForwardingPipelineConfigRequest {
            device_id: self.device,
            election_id: self.election_id(),
            action: set_forwarding_pipeline_config_request::Action::VerifyAndCommit.into(),
            config: Some(config),
        };
        self.client
            .set_forwarding_pipeline_config(request)
            .await
            .map_err(|status| self.status_error(&status))?;
        Ok(true)
    }

    async fn write_updates(&mut self, steps: &[SwitchUpdate]) -> Result<(), WriteError> {
        let mut updates = Vec::with_capacity(steps.len());
        for step in steps {
            let (kind, entity) = match step {
                SwitchUpdate::Insert(item, holds) => {
                    (update::Type::Insert, self.encode_entity(item, Some(holds)))
                }
                SwitchUpdate::Modify(item, holds) => {
                    (update::Type::Modify, self.encode_entity(item, Some(holds)))
                }
                SwitchUpdate::Delete(item) => (update::Type::Delete, self.encode_entity(item, None)),
            };
            let entity = entity.map_err(|error| WriteError { made: Some(0), error })?;
            updates.push(Update { r#type: kind.into(), entity: Some(entity) });
        }
        let request = WriteRequest {
            device_id: self.device,
            election_id: self.election_id(),
            updates,
            atomicity: write_request::Atomicity::ContinueOnError.into(),
        };
        let Err(status) = self.client.write(request).await else { return Ok(()) };
        let errors = update_errors(&status);
        let Some((place, first)) = errors.iter().enumerate().find(|(_, error)| error.canonical_code != 0)
        else {
            // Rejected as a whole. If the answer was lost, the outcome is unknown.
            let made = matches!(
                status.code(),
                Code::PermissionDenied | Code::InvalidArgument | Code::FailedPrecondition
            );
            let made = made.then_some(0);
            return Err(WriteError { made, error: self.status_error(&status) });
        };
        let made = errors.iter().filter(|error| error.canonical_code == 0).count();
        let about = steps.get(place).map(|step| format!("{:?}", step.updated_item())).unwrap_or_default();
        let status =
            Status::new(Code::from_i32(first.canonical_code), format!("{} ({about})", first.message));
        Err(WriteError { made: Some(made), error: self.status_error(&status) })
    }

    async fn run_commands(&mut self, commands: &[Command], _: &Tables) -> Result<(), TargetError> {
        if commands.is_empty() {
            return Ok(());
        }
        self.arbitrate().await?;
        let before = self.count_of_commands().await?;
        for command in commands {
            let metadata = self.compiled.schema.packet_out.iter().map(|field| PacketMetadata {
                metadata_id: field.id,
                value: to_bytes(match field.name.as_str() {
                    "command" => command.command.into(),
                    "pair" => command.pair.into(),
                    "store" => command.store.into(),
                    "index" => command.index.into(),
                    _ => command.value.into(),
                }),
            });
            let packet = PacketOut { payload: Vec::new(), metadata: metadata.collect() };
            let message =
                StreamMessageRequest { update: Some(stream_message_request::Update::Packet(packet)) };
            let Some(stream) = &self.stream else { return Err(self.switch_failure("the stream ended")) };
            if stream.requests.send(message).await.is_err() {
                return Err(self.switch_failure("the stream ended"));
            }
        }
        // Packets are not answered, but the program counts them.
        let until = Instant::now() + COMMANDS;
        let wanted = before + commands.len() as u64;
        while self.count_of_commands().await? < wanted {
            if Instant::now() > until {
                return Err(self.switch_failure(
                    "its data plane does not take commands (start it with `--cpu-port 255`)",
                ));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    async fn read_counters(&mut self) -> Result<SwitchCounts, TargetError> {
        if self.running_cookie().await? != Some(self.compiled.program_cookie()) {
            return Ok(SwitchCounts::default());
        }
        let names: Vec<&str> = self.pipeline.used.counters.iter().map(|(name, _)| *name).collect();
        self.counters_named(&names).await
    }
}

/// The request for all multicast groups and clone sessions.
fn all_groups() -> Vec<Entity> {
    use packet_replication_engine_entry::Type as Kind;
    let all = [
        Kind::MulticastGroupEntry(MulticastGroupEntry::default()),
        Kind::CloneSessionEntry(CloneSessionEntry::default()),
    ];
    let entity = |kind| {
        let entry = PacketReplicationEngineEntry { r#type: Some(kind) };
        Entity { entity: Some(entity::Entity::PacketReplicationEngineEntry(entry)) }
    };
    all.map(entity).into()
}

fn encode_match(of: &KeyField, matched: Match) -> Option<Option<FieldMatch>> {
    let fits = |value: u128| value <= all_ones(of.field.width);
    use field_match::FieldMatchType as Kind;
    let kind = match (of.kind, matched) {
        (MatchKind::Exact, Match::Exact(value)) if fits(value) => {
            Kind::Exact(field_match::Exact { value: to_bytes(value) })
        }
        // By the specification, what matches everything is left out.
        (MatchKind::Prefix, Match::Prefix { len: 0, .. }) => return Some(None),
        (MatchKind::Prefix, Match::Prefix { value, len }) if fits(value) => {
            Kind::Lpm(field_match::Lpm { value: to_bytes(value), prefix_len: len.into() })
        }
        (MatchKind::Ternary, Match::Masked { mask: 0, .. }) => return Some(None),
        (MatchKind::Ternary, Match::Masked { value, mask }) if fits(mask) && value & !mask == 0 => {
            Kind::Ternary(field_match::Ternary { value: to_bytes(value), mask: to_bytes(mask) })
        }
        (MatchKind::Range, Match::Range { low: 0, high }) if high == all_ones(of.field.width) => {
            return Some(None);
        }
        (MatchKind::Range, Match::Range { low, high }) if low <= high && fits(high) => {
            Kind::Range(field_match::Range { low: to_bytes(low), high: to_bytes(high) })
        }
        _ => return None,
    };
    Some(Some(FieldMatch { field_id: of.field.id, field_match_type: Some(kind) }))
}

fn encode_action(table: &P4TableSchema, name: &str, params: &[u128]) -> Option<TableAction> {
    let action = table.action_by_name(name)?;
    if action.params.len() != params.len() {
        return None;
    }
    let param = |(field, value): (&P4FieldSchema, &u128)| {
        let param = action::Param { param_id: field.id, value: to_bytes(*value) };
        (*value <= all_ones(field.width)).then_some(param)
    };
    let params = action.params.iter().zip(params).map(param).collect::<Option<Vec<_>>>()?;
    let action = Action { action_id: action.id, params };
    Some(TableAction { r#type: Some(table_action::Type::Action(action)) })
}

/// An item as an entity of the switch; `None` if the program cannot hold it.
fn encode_item(schema: &Schema, item: &Item, holds: Option<&Holds>) -> Option<entity::Entity> {
    let replicas = || match holds {
        Some(Holds::Copies(copies)) => {
            let replica = |(port, instance): &(u32, u32)| Replica {
                port_kind: Some(replica::PortKind::EgressPort(*port)),
                instance: *instance,
            };
            // The copies of a report must be sent in order. P4Runtime leaves the order open, and bmv2's
            // server creates a group's replicas in reverse.
            Some(copies.iter().rev().map(replica).collect())
        }
        None => Some(Vec::new()),
        Some(Holds::Action { .. } | Holds::Mirror(_) | Holds::Queue { .. }) => None,
    };
    let action = |table: &P4TableSchema| match holds {
        Some(Holds::Action { name, params }) => encode_action(table, name, params).map(Some),
        None => Some(None),
        Some(Holds::Copies(_) | Holds::Mirror(_) | Holds::Queue { .. }) => None,
    };
    let copies = |kind| {
        entity::Entity::PacketReplicationEngineEntry(PacketReplicationEngineEntry { r#type: Some(kind) })
    };
    Some(match item {
        Item::Group(id) => {
            copies(packet_replication_engine_entry::Type::MulticastGroupEntry(MulticastGroupEntry {
                multicast_group_id: *id,
                replicas: replicas()?,
            }))
        }
        Item::Clone(id) => {
            copies(packet_replication_engine_entry::Type::CloneSessionEntry(CloneSessionEntry {
                session_id: *id,
                replicas: replicas()?,
                ..CloneSessionEntry::default()
            }))
        }
        // Its copies are in a group, and it deflects nothing.
        Item::Node(_) | Item::Deflection(_) => return None,
        Item::Row { table, key, order } => {
            let table = schema.table_by_name(table)?;
            if table.key.len() != key.len() {
                return None;
            }
            let matches = table.key.iter().zip(key).map(|(of, matched)| encode_match(of, *matched));
            let matches: Vec<Option<FieldMatch>> = matches.collect::<Option<_>>()?;
            entity::Entity::TableEntry(TableEntry {
                table_id: table.id,
                r#match: matches.into_iter().flatten().collect(),
                action: action(table)?,
                priority: if table.has_priority() { FIRST.checked_sub_unsigned(*order)? } else { 0 },
                ..TableEntry::default()
            })
        }
        Item::Default { table } => {
            let table = schema.table_by_name(table)?;
            entity::Entity::TableEntry(TableEntry {
                table_id: table.id,
                action: action(table)?,
                is_default_action: true,
                ..TableEntry::default()
            })
        }
    })
}

fn decode_match(of: &KeyField, found: Option<&FieldMatch>) -> Option<Match> {
    use field_match::FieldMatchType as Kind;
    Some(match (of.kind, found.and_then(|found| found.field_match_type.as_ref())) {
        (MatchKind::Exact, Some(Kind::Exact(exact))) => Match::Exact(from_bytes(&exact.value)?),
        (MatchKind::Prefix, Some(Kind::Lpm(lpm))) => {
            Match::Prefix { value: from_bytes(&lpm.value)?, len: u16::try_from(lpm.prefix_len).ok()? }
        }
        (MatchKind::Prefix, None) => Match::Prefix { value: 0, len: 0 },
        (MatchKind::Ternary, Some(Kind::Ternary(ternary))) => {
            Match::Masked { value: from_bytes(&ternary.value)?, mask: from_bytes(&ternary.mask)? }
        }
        (MatchKind::Ternary, None) => Match::Masked { value: 0, mask: 0 },
        (MatchKind::Range, Some(Kind::Range(range))) => {
            Match::Range { low: from_bytes(&range.low)?, high: from_bytes(&range.high)? }
        }
        (MatchKind::Range, None) => Match::Range { low: 0, high: all_ones(of.field.width) },
        _ => return None,
    })
}

fn copies_of(replicas: &[Replica]) -> Option<Holds> {
    let copy = |replica: &Replica| {
        let port = match replica.port_kind.as_ref()? {
            replica::PortKind::EgressPort(port) => *port,
            replica::PortKind::Port(port) => u32::try_from(from_bytes(port)?).ok()?,
        };
        Some((port, replica.instance))
    };
    let mut copies: Vec<(u32, u32)> = replicas.iter().map(copy).collect::<Option<_>>()?;
    copies.sort_by_key(|(port, instance)| (*instance, *port));
    Some(Holds::Copies(copies))
}

/// An entity of the switch as an item; `None` for one that the program does not describe.
fn decode_entity(schema: &Schema, entity: &entity::Entity) -> Option<(Item, Holds)> {
    match entity {
        entity::Entity::PacketReplicationEngineEntry(entry) => match entry.r#type.as_ref()? {
            packet_replication_engine_entry::Type::MulticastGroupEntry(group) => {
                Some((Item::Group(group.multicast_group_id), copies_of(&group.replicas)?))
            }
            packet_replication_engine_entry::Type::CloneSessionEntry(session) => {
                Some((Item::Clone(session.session_id), copies_of(&session.replicas)?))
            }
        },
        entity::Entity::TableEntry(entry) => {
            let table = schema.table_by_id(entry.table_id)?;
            let table_action::Type::Action(action) = entry.action.as_ref()?.r#type.as_ref()?;
            let of = table.action_of(action.action_id)?;
            let param = |field: &P4FieldSchema| {
                let found = action.params.iter().find(|param| param.param_id == field.id)?;
                from_bytes(&found.value)
            };
            let params = of.params.iter().map(param).collect::<Option<Vec<_>>>()?;
            let holds = Holds::Action { name: of.name.clone(), params };
            if entry.is_default_action {
                return Some((Item::Default { table: table.name.clone() }, holds));
            }
            let matched = |of: &KeyField| {
                let found = entry.r#match.iter().find(|found| found.field_id == of.field.id);
                decode_match(of, found)
            };
            let key = table.key.iter().map(matched).collect::<Option<Vec<_>>>()?;
            let order = match table.has_priority() {
                true => u32::try_from(FIRST.checked_sub(entry.priority)?).ok()?,
                false => 0,
            };
            Some((Item::Row { table: table.name.clone(), key, order }, holds))
        }
        _ => None,
    }
}
