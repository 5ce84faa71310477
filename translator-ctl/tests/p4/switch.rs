//! A switch that speaks P4Runtime and forwards nothing: it keeps tables, groups and clone sessions, rejects
//! what its program does not describe, and fails on request.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use dta_switch::messages::p4runtime::config::P4Info;
use dta_switch::messages::p4runtime::config::action_ref::Scope;
use dta_switch::messages::p4runtime::config::match_field::MatchType;
use dta_switch::messages::p4runtime::v1::field_match::FieldMatchType as Matched;
use dta_switch::messages::p4runtime::v1::p4_runtime_server::{P4Runtime, P4RuntimeServer};
use dta_switch::messages::p4runtime::v1::*;
use dta_switch::messages::p4runtime::{read_p4info, to_bytes, write_failed};
use prost::Message as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

/// The requests to the switch, and how it answers.
#[derive(Default)]
pub(crate) struct State {
    /// Its pipeline.
    pub(crate) pipeline: Option<ForwardingPipelineConfig>,
    /// What its P4Info says.
    pub(crate) info: Option<Arc<P4Info>>,
    /// How many rows each table has.
    pub(crate) rows: BTreeMap<u32, i64>,
    /// Entities by what makes them unique.
    pub(crate) entities: BTreeMap<Vec<u8>, Entity>,
    /// Default actions by table.
    pub(crate) defaults: BTreeMap<u32, Entity>,
    /// Write requests, and updates in them.
    pub(crate) requests: usize,
    pub(crate) updates: usize,
    /// Updates to apply before the next one fails; without it, none fails.
    pub(crate) fails_after: Option<usize>,
    /// Instead of an error, the connection's answer is lost.
    pub(crate) dies: bool,
    /// Commands that came as packets: the values of their fields.
    pub(crate) commands: Vec<Vec<Vec<u8>>>,
    /// Whether packets are ignored.
    pub(crate) deaf: bool,
    /// How often the pipeline was set.
    pub(crate) loads: usize,
    /// How many groups and clone sessions there were when it was set last.
    pub(crate) copies_at_load: usize,
    /// Counters by number and index.
    pub(crate) counters: BTreeMap<(u32, i64), i64>,
    /// The election id of the one that writes.
    pub(crate) primary: Option<(u64, u64)>,
}

/// The switch. Clones are the same one.
#[derive(Clone)]
pub(crate) struct FakeSwitch {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) address: SocketAddr,
}

fn err(code: Code, message: impl Into<String>) -> Error {
    Error { canonical_code: code.into(), message: message.into(), ..Error::default() }
}

impl FakeSwitch {
    /// Serves until the process ends.
    pub(crate) fn start() -> FakeSwitch {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let switch = FakeSwitch { state: Arc::default(), address: listener.local_addr().unwrap() };
        let served = switch.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let incoming = tokio::net::TcpListener::from_std(listener).unwrap();
                let incoming = tokio_stream::wrappers::TcpListenerStream::new(incoming);
                let service = P4RuntimeServer::new(served).max_decoding_message_size(64 << 20);
                tonic::transport::Server::builder()
                    .add_service(service)
                    .serve_with_incoming(incoming)
                    .await
                    .unwrap();
            });
        });
        switch
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap())
    }

    /// Everything it holds, in an order independent of how it got there.
    pub(crate) fn holds(&self) -> Vec<Entity> {
        self.with(|state| state.entities.values().chain(state.defaults.values()).cloned().collect())
    }

    /// How many rows a table has, by the last part of its name.
    pub(crate) fn rows(&self, table: &str) -> usize {
        self.with(|state| {
            let info = state.info().unwrap();
            let id = info.tables.iter().map(|t| t.preamble.as_ref().unwrap()).find(|p| p.name.ends_with(table));
            let id = id.unwrap_or_else(|| panic!("no table {table}")).id;
            let of = |entity: &&Entity| matches!(&entity.entity, Some(entity::Entity::TableEntry(e)) if e.table_id == id);
            state.entities.values().filter(of).count()
        })
    }
}

/// Whether bytes are a number of this width, in as few bytes as possible.
fn fits(bytes: &[u8], width: i32) -> Result<(), Error> {
    let canonical = !bytes.is_empty() && (bytes.len() == 1 || bytes[0] != 0);
    let bits = bytes.len() * 8 - bytes.first().map_or(0, |first| first.leading_zeros() as usize);
    match canonical && bits <= width as usize {
        true => Ok(()),
        false => Err(err(Code::InvalidArgument, format!("{bytes:?} is no number of {width} bits"))),
    }
}

impl State {
    fn info(&self) -> Result<Arc<P4Info>, Error> {
        self.info.clone().ok_or_else(|| err(Code::FailedPrecondition, "no pipeline"))
    }

    fn check_entry(&self, info: &P4Info, entry: &TableEntry, deleted: bool) -> Result<(), Error> {
        let invalid = |what: String| Err(err(Code::InvalidArgument, what));
        let table = info.tables.iter().find(|t| t.preamble.as_ref().unwrap().id == entry.table_id);
        let Some(table) = table else { return invalid(format!("no table {}", entry.table_id)) };
        if entry.is_default_action {
            if table.const_default_action_id != 0 || !entry.r#match.is_empty() {
                return invalid("this default action cannot change".into());
            }
        } else {
            let of_priority = |f: &dta_switch::messages::p4runtime::config::MatchField| {
                matches!(f.match_type(), MatchType::Range | MatchType::Ternary)
            };
            let has_priority = table.match_fields.iter().any(of_priority);
            if has_priority != (entry.priority > 0) {
                return invalid(format!("priority {}", entry.priority));
            }
            for found in &entry.r#match {
                if !table.match_fields.iter().any(|f| f.id == found.field_id) {
                    return invalid(format!("no field {}", found.field_id));
                }
            }
            for field in &table.match_fields {
                let mut found = entry.r#match.iter().filter(|found| found.field_id == field.id);
                let all = u128::MAX >> (128 - field.bitwidth);
                match (field.match_type(), found.next().and_then(|f| f.field_match_type.as_ref())) {
                    (MatchType::Exact, Some(Matched::Exact(exact))) => fits(&exact.value, field.bitwidth)?,
                    (MatchType::Lpm, Some(Matched::Lpm(lpm))) => {
                        fits(&lpm.value, field.bitwidth)?;
                        let value = dta_switch::messages::p4runtime::from_bytes(&lpm.value).unwrap();
                        if lpm.prefix_len < 1 || value & (all >> lpm.prefix_len) != 0 {
                            return invalid("bits behind the prefix".into());
                        }
                    }
                    (MatchType::Range, Some(Matched::Range(range))) => {
                        fits(&range.low, field.bitwidth)?;
                        fits(&range.high, field.bitwidth)?;
                        let number =
                            |bytes: &[u8]| dta_switch::messages::p4runtime::from_bytes(bytes).unwrap();
                        let (low, high) = (number(&range.low), number(&range.high));
                        if low > high || (low, high) == (0, all) {
                            return invalid("a range that is none, or all".into());
                        }
                    }
                    (MatchType::Ternary, Some(Matched::Ternary(ternary))) => {
                        fits(&ternary.value, field.bitwidth)?;
                        fits(&ternary.mask, field.bitwidth)?;
                        let number =
                            |bytes: &[u8]| dta_switch::messages::p4runtime::from_bytes(bytes).unwrap();
                        let (value, mask) = (number(&ternary.value), number(&ternary.mask));
                        if mask == 0 || value & !mask != 0 {
                            return invalid("bits outside of the mask, or no mask".into());
                        }
                    }
                    (MatchType::Lpm | MatchType::Range | MatchType::Ternary, None) => {}
                    _ => return invalid(format!("field {} is not matched as it should", field.name)),
                }
                if found.next().is_some() {
                    return invalid("a field twice".into());
                }
            }
        }
        let action = entry.action.as_ref().and_then(|action| action.r#type.as_ref());
        let Some(table_action::Type::Action(action)) = action else {
            return if deleted { Ok(()) } else { invalid("no action".into()) };
        };
        let reference = table.action_refs.iter().find(|of| of.id == action.action_id);
        let Some(reference) = reference else { return invalid(format!("no action {}", action.action_id)) };
        if reference.scope() == Scope::DefaultOnly && !entry.is_default_action {
            return invalid("an action for the default alone".into());
        }
        let described =
            info.actions.iter().find(|a| a.preamble.as_ref().unwrap().id == action.action_id).unwrap();
        if described.params.len() != action.params.len() {
            return invalid(format!("{} parameters", action.params.len()));
        }
        for param in &described.params {
            let found = action.params.iter().find(|found| found.param_id == param.id);
            match found {
                Some(found) => fits(&found.value, param.bitwidth)?,
                None => return invalid(format!("no parameter {}", param.name)),
            }
        }
        Ok(())
    }

    fn check_replicas(replicas: &[Replica]) -> Result<(), Error> {
        let mut seen = Vec::new();
        for replica in replicas {
            let key = (replica.port_kind.clone(), replica.instance);
            if seen.contains(&key) {
                return Err(err(Code::InvalidArgument, "a replica twice"));
            }
            seen.push(key);
        }
        Ok(())
    }

    /// What identifies an entity, and its table.
    fn key(&self, entity: &Entity, deleted: bool) -> Result<(Vec<u8>, Option<u32>), Error> {
        let info = self.info()?;
        Ok(match entity.entity.as_ref().ok_or_else(|| err(Code::InvalidArgument, "nothing"))? {
            entity::Entity::TableEntry(entry) => {
                self.check_entry(&info, entry, deleted)?;
                let key = TableEntry { action: None, ..entry.clone() };
                (key.encode_to_vec(), Some(entry.table_id))
            }
            entity::Entity::PacketReplicationEngineEntry(entry) => match entry.r#type.as_ref().unwrap() {
                packet_replication_engine_entry::Type::MulticastGroupEntry(group) => {
                    Self::check_replicas(&group.replicas)?;
                    if group.multicast_group_id == 0 {
                        return Err(err(Code::InvalidArgument, "group 0"));
                    }
                    (format!("group {}", group.multicast_group_id).into_bytes(), None)
                }
                packet_replication_engine_entry::Type::CloneSessionEntry(session) => {
                    Self::check_replicas(&session.replicas)?;
                    (format!("clone {}", session.session_id).into_bytes(), None)
                }
            },
            _ => return Err(err(Code::Unimplemented, "no such entity")),
        })
    }

    fn update(&mut self, update: &Update) -> Result<(), Error> {
        if let Some(left) = &mut self.fails_after {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => return Err(err(Code::Internal, "the write failed")),
            }
        }
        let entity = update.entity.as_ref().ok_or_else(|| err(Code::InvalidArgument, "nothing"))?;
        let kind = update.r#type();
        let (key, table) = self.key(entity, kind == update::Type::Delete)?;
        let is_default = matches!(&entity.entity, Some(entity::Entity::TableEntry(e)) if e.is_default_action);
        if is_default {
            if kind != update::Type::Modify {
                return Err(err(Code::InvalidArgument, "a default action is modified"));
            }
            self.defaults.insert(table.unwrap(), entity.clone());
            self.updates += 1;
            return Ok(());
        }
        let there = self.entities.contains_key(&key);
        match kind {
            update::Type::Insert if there => return Err(err(Code::AlreadyExists, "it is there")),
            update::Type::Modify | update::Type::Delete if !there => {
                return Err(err(Code::NotFound, "it is not there"));
            }
            update::Type::Insert => {
                if let Some(id) = table {
                    let info = self.info()?;
                    let table = info.tables.iter().find(|t| t.preamble.as_ref().unwrap().id == id).unwrap();
                    let rows = self.rows.entry(id).or_default();
                    if *rows >= table.size {
                        return Err(err(Code::ResourceExhausted, "the table is full"));
                    }
                    *rows += 1;
                }
                self.entities.insert(key, entity.clone());
            }
            update::Type::Modify => drop(self.entities.insert(key, entity.clone())),
            update::Type::Delete => {
                self.entities.remove(&key);
                if let Some(rows) = table.and_then(|id| self.rows.get_mut(&id)) {
                    *rows -= 1;
                }
            }
            update::Type::Unspecified => return Err(err(Code::InvalidArgument, "no type")),
        }
        self.updates += 1;
        Ok(())
    }

    fn matches(&self, asked: &Entity) -> Vec<Entity> {
        let all = self.entities.values();
        let like = |one: &&Entity| match (&one.entity, &asked.entity) {
            (Some(entity::Entity::TableEntry(one)), Some(entity::Entity::TableEntry(asked))) => {
                asked.table_id == 0 || one.table_id == asked.table_id
            }
            (
                Some(entity::Entity::PacketReplicationEngineEntry(one)),
                Some(entity::Entity::PacketReplicationEngineEntry(asked)),
            ) => {
                std::mem::discriminant(one.r#type.as_ref().unwrap())
                    == std::mem::discriminant(asked.r#type.as_ref().unwrap())
            }
            _ => false,
        };
        match &asked.entity {
            Some(entity::Entity::TableEntry(entry)) if entry.is_default_action => {
                self.defaults.get(&entry.table_id).cloned().into_iter().collect()
            }
            Some(entity::Entity::CounterEntry(entry)) => {
                let of = self.counters.iter().filter(|((id, _), _)| *id == entry.counter_id);
                of.map(|((id, index), count)| Entity {
                    entity: Some(entity::Entity::CounterEntry(CounterEntry {
                        counter_id: *id,
                        index: Some(Index { index: *index }),
                        data: Some(CounterData { byte_count: 0, packet_count: *count }),
                    })),
                })
                .collect()
            }
            _ => all.filter(like).cloned().collect(),
        }
    }

    fn command(&mut self, packet: &PacketOut) {
        if self.deaf {
            return;
        }
        let info = self.info().unwrap();
        let header = info.controller_packet_metadata.iter();
        let header = header.clone().find(|h| h.preamble.as_ref().unwrap().name == "packet_out").unwrap();
        let value = |id: u32| packet.metadata.iter().find(|m| m.metadata_id == id).unwrap().value.clone();
        let values: Vec<Vec<u8>> = header.metadata.iter().map(|m| value(m.id)).collect();
        for (value, field) in values.iter().zip(&header.metadata) {
            fits(value, field.bitwidth).unwrap();
        }
        let name = |c: &&dta_switch::messages::p4runtime::config::Counter| {
            c.preamble.as_ref().unwrap().name.ends_with(".commands")
        };
        let counter = info.counters.iter().find(name).unwrap().preamble.as_ref().unwrap().id;
        let command = dta_switch::messages::p4runtime::from_bytes(&values[0]).unwrap() as i64;
        *self.counters.entry((counter, command)).or_default() += 1;
        self.commands.push(values);
    }
}

type Stream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl P4Runtime for FakeSwitch {
    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let request = request.into_inner();
        self.with(|state| {
            let election = request.election_id.map(|id| (id.high, id.low));
            if state.primary.is_none() || election != state.primary {
                return Err(Status::permission_denied("not the primary"));
            }
            state.requests += 1;
            let result = |update| match state.update(update) {
                Ok(()) => Error::default(),
                Err(error) => error,
            };
            let errors: Vec<Error> = request.updates.iter().map(result).collect();
            if errors.iter().all(|error| error.canonical_code == 0) {
                Ok(Response::new(WriteResponse {}))
            } else if state.dies {
                Err(Status::unavailable("the connection broke"))
            } else {
                Err(write_failed(&errors))
            }
        })
    }

    type ReadStream = Stream<ReadResponse>;

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let entities: Vec<Entity> =
            self.with(|state| request.entities.iter().flat_map(|asked| state.matches(asked)).collect());
        // In several parts, as a switch may.
        let parts: Vec<_> =
            entities.chunks(7).map(|part| Ok(ReadResponse { entities: part.to_vec() })).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<SetForwardingPipelineConfigResponse>, Status> {
        let request = request.into_inner();
        self.with(|state| {
            if state.primary.is_none() || request.election_id.map(|id| (id.high, id.low)) != state.primary {
                return Err(Status::permission_denied("not the primary"));
            }
            let config = request.config.unwrap();
            assert_eq!(config.p4_device_config.first(), Some(&b'{'));
            let info = read_p4info(&config.p4info).unwrap();
            state.pipeline = Some(config);
            state.info = Some(Arc::new(info.clone()));
            state.loads += 1;
            let copies =
                |e: &&Entity| matches!(e.entity, Some(entity::Entity::PacketReplicationEngineEntry(_)));
            state.copies_at_load = state.entities.values().filter(copies).count();
            state.entities.clear();
            state.rows.clear();
            state.defaults.clear();
            state.counters.clear();
            // The reporter table of a translator permits by default, as its program says.
            let mut all = info.tables.iter().map(|t| t.preamble.as_ref().unwrap());
            let Some(reporter) = all.find(|p| p.name.ends_with(".reporter")) else {
                return Ok(Response::new(SetForwardingPipelineConfigResponse {}));
            };
            let permit = info
                .actions
                .iter()
                .map(|a| a.preamble.as_ref().unwrap())
                .find(|p| p.name.ends_with(".permit"));
            let action = Action { action_id: permit.unwrap().id, params: Vec::new() };
            let entry = TableEntry {
                table_id: reporter.id,
                is_default_action: true,
                action: Some(TableAction { r#type: Some(table_action::Type::Action(action)) }),
                ..TableEntry::default()
            };
            state.defaults.insert(reporter.id, Entity { entity: Some(entity::Entity::TableEntry(entry)) });
            Ok(Response::new(SetForwardingPipelineConfigResponse {}))
        })
    }

    async fn get_forwarding_pipeline_config(
        &self,
        _: Request<GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<GetForwardingPipelineConfigResponse>, Status> {
        let cookie = self.with(|state| state.pipeline.as_ref().map(|pipeline| pipeline.cookie));
        let Some(cookie) = cookie else { return Err(Status::failed_precondition("no pipeline")) };
        let config = Some(ForwardingPipelineConfig { cookie, ..ForwardingPipelineConfig::default() });
        Ok(Response::new(GetForwardingPipelineConfigResponse { config }))
    }

    type StreamChannelStream = Stream<StreamMessageResponse>;

    async fn stream_channel(
        &self,
        request: Request<Streaming<StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        let mut requests = request.into_inner();
        let (answers, answered) = tokio::sync::mpsc::channel(16);
        let switch = self.clone();
        tokio::spawn(async move {
            while let Ok(Some(message)) = requests.message().await {
                match message.update {
                    Some(stream_message_request::Update::Arbitration(mut update)) => {
                        let id = update.election_id.as_ref().map(|id| (id.high, id.low));
                        let is_newest = switch.with(|state| {
                            let newest = id >= state.primary;
                            if newest {
                                state.primary = id;
                            }
                            newest
                        });
                        let code = if is_newest { Code::Ok } else { Code::AlreadyExists };
                        update.status = Some(dta_switch::messages::p4runtime::v1::Status {
                            code: code.into(),
                            ..Default::default()
                        });
                        let update = Some(stream_message_response::Update::Arbitration(update));
                        let _ = answers.send(Ok(StreamMessageResponse { update })).await;
                    }
                    Some(stream_message_request::Update::Packet(packet)) => {
                        switch.with(|state| state.command(&packet))
                    }
                    Some(stream_message_request::Update::DigestAck(_)) | None => {}
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answered))))
    }
}

/// A number as it stands in a message.
pub(crate) fn number(value: u128) -> Vec<u8> {
    to_bytes(value)
}
