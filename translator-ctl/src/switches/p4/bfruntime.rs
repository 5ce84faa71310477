//! Switches that speak BfRuntime: Tofino.
//!
//! The switch tells the tables of its program, and its own ones, as `bfrt.json`; nothing of them is built in. Loading
//! a program is the switch's own affair (`bf_switchd --conf-file`): this control plane binds to it by name.

mod commands;

use std::time::{Duration, Instant};

use bfruntime_proto::bfrt::bf_runtime_client::BfRuntimeClient;
use bfruntime_proto::bfrt::*;
use bfruntime_proto::update_errors;
use dta_grpc::dial;
use dta_proto::store::StoreKind;
use tokio::sync::mpsc::Sender;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tracing::info;

use super::ages::Ages;
use super::bfrt_json::{BfrtInfo, BfrtTable, last};
use super::counters::Counts;
use super::cpu_port;
use super::pipeline::Pipeline;
use super::places::Room;
use super::schema::{Action, Counter, Field, KeyField, MatchKind, Schema, Table, Used};
use super::tables::{Holds, Item, Match, Mirror, Side, Tables, Towards, Update as Step};
use super::tofino::{self, COLUMN_UNSENT, COLUMN_USED, LIST_SEQUENCE, NEXT_PSN, ROW_HEAD};
use super::translator::{
    Command, FLUSH_COLUMN, FLUSH_LIST, FLUSH_ROW, FORGET_COLUMN, FORGET_ROW, PROBE, SET_LIST, SET_PSN,
};
use super::{TargetError, Wire, WriteError};
use crate::config::{P4, Profile, pipe_of};

/// Longest time for one call.
const CALL: Duration = Duration::from_secs(30);
/// Longest time until a switch knows that its client before has gone, and how often it is asked.
const GONE: Duration = Duration::from_secs(2);
const ASK: Duration = Duration::from_millis(50);
const MAX_ANSWER: usize = 64 << 20;
/// All pipes, directions and parsers.
const EVERYWHERE: (u32, u32, u32) = (0xffff, 0xff, 0xff);

/// Tables that every switch has.
const NODE: &str = "$pre.node";
const GROUP: &str = "$pre.mgid";
const MIRROR: &str = "$mirror.cfg";
const MIRROR_FIELDS: [&str; 8] = [
    "$sid",
    "$session_enable",
    "$direction",
    "$ucast_egress_port",
    "$ucast_egress_port_valid",
    "$mcast_grp_a",
    "$mcast_grp_a_valid",
    "$max_pkt_len",
];

/// Of a pipe: where its traffic manager sends what it would drop. Written as group and queue in it, read as port and queue.
const PIPE: &str = "tf1.tm.pipe.cfg";
const PIPE_FIELDS: [&str; 4] =
    ["mirror_drop_pg_id", "mirror_drop_pg_queue", "mirror_drop_dev_port", "mirror_drop_queue_nr"];
/// Of a port: its group, how many of the group's queues are its own, and for each queue number that ingress can choose,
/// which queue that is, counted in the port and in the group.
const PORT: &str = "tf1.tm.port.cfg";
const PORT_FIELDS: [&str; 5] =
    ["dev_port", "pg_id", "port_queues_count", "ingress_qid_map", "egress_qid_queues"];

/// A switch over BfRuntime.
pub struct BfRuntime {
    client: BfRuntimeClient<Channel>,
    address: String,
    device: u32,
    pipeline: &'static Pipeline,
    profile: Profile,
    /// The port by which each collector is reached.
    ports: Vec<u16>,
    /// Pipes of which it is said where what the traffic manager would drop goes.
    deflecting: Vec<u32>,
    /// How commands go to its CPU port; `None` where nobody said by which interface.
    send: Option<cpu_port::Send>,
    /// Of lists and rows that were looked at.
    ages: Ages,
    /// Whether it was said that rows are where no command reaches them.
    told_of_rows: bool,
    /// What the switch told, once it was asked.
    info: Option<Described>,
    /// Lasts as long as this is bound to the program.
    stream: Option<Sender<StreamMessageRequest>>,
}

#[derive(Clone)]
struct Described {
    program: BfrtInfo,
    own: BfrtInfo,
    schema: Schema,
}

/// The tables of a program that are used by the control plane, as P4Runtime would tell them.
pub fn schema(info: &BfrtInfo) -> Schema {
    let field = |id: u32, name: &str, width: u16| Field { name: last(name).into(), id, width };
    let of = |table: &BfrtTable| Table {
        name: last(&table.name).into(),
        id: table.id,
        size: table.size,
        // A priority is a field of its own in tables of ranges.
        key: table
            .key
            .iter()
            .filter(|key| key.name != PRIORITY)
            .map(|key| KeyField {
                field: field(key.id, &key.name, key.kind.bits()),
                kind: match key.match_type.as_str() {
                    "Exact" => MatchKind::Exact,
                    "LPM" => MatchKind::Prefix,
                    "Range" => MatchKind::Range,
                    "Ternary" => MatchKind::Ternary,
                    _ => MatchKind::Other,
                },
            })
            .collect(),
        actions: table
            .action_specs
            .iter()
            .map(|action| Action {
                name: last(&action.name).into(),
                id: action.id,
                params: action.data.iter().map(|data| field(data.id, &data.name, data.kind.bits())).collect(),
            })
            .collect(),
    };
    let is_counter = |table: &&BfrtTable| table.table_type == "Counter";
    let counter =
        |table: &BfrtTable| Counter { name: last(&table.name).into(), id: table.id, size: table.size };
    Schema {
        tables: info
            .tables
            .iter()
            .filter(|table| table.table_type.starts_with("MatchAction"))
            .map(of)
            .collect(),
        counters: info.tables.iter().filter(is_counter).map(counter).collect(),
        packet_out: Vec::new(),
    }
}

/// Name of the field of a key that is the priority.
const PRIORITY: &str = "$MATCH_PRIORITY";

impl BfRuntime {
    /// The switch of a configuration. Nothing is asked yet.
    ///
    /// # Errors
    /// An address that is none.
    pub fn new(config: &P4, pipeline: &'static Pipeline) -> Result<BfRuntime, TargetError> {
        let address = config.control.clone();
        let endpoint = Endpoint::from_shared(format!("http://{}", address.trim_start_matches("http://")));
        let endpoint = endpoint.map_err(|error| {
            TargetError::Refused(format!("{address:?} is no address of a switch: {error}"))
        })?;
        let channel = dial::connect_lazy(&endpoint.connect_timeout(Duration::from_secs(5)).timeout(CALL));
        let client = BfRuntimeClient::new(channel)
            .max_decoding_message_size(MAX_ANSWER)
            .max_encoding_message_size(MAX_ANSWER);
        let device = u32::try_from(config.device).unwrap_or(0);
        let profile = config.profile.unwrap_or_default();
        Ok(BfRuntime {
            client,
            address,
            device,
            pipeline,
            profile,
            ports: config.collector_ports.clone(),
            deflecting: config
                .reporter
                .iter()
                .flat_map(|reporter| &reporter.deflect)
                .map(|to| pipe_of(to.port).into())
                .collect(),
            send: config.cpu_interface.as_deref().map(cpu_port::by_interface),
            ages: Ages::default(),
            told_of_rows: false,
            info: None,
            stream: None,
        })
    }

    fn error(&self, status: &Status) -> TargetError {
        let text = format!("the switch at {}: {}", self.address, dta_grpc::status_reason(status));
        match status.code() {
            Code::InvalidArgument | Code::Unimplemented | Code::ResourceExhausted | Code::OutOfRange => {
                TargetError::Refused(text)
            }
            _ => TargetError::Failed(text),
        }
    }

    fn failed(&self, what: &str) -> TargetError {
        TargetError::Failed(format!("the switch at {}: {what}", self.address))
    }

    fn target(&self) -> Option<TargetDevice> {
        let (all_pipes, ..) = EVERYWHERE;
        self.pipe(all_pipes)
    }

    /// One pipe of it.
    fn pipe(&self, pipe_id: u32) -> Option<TargetDevice> {
        let (_, direction, prsr_id) = EVERYWHERE;
        Some(TargetDevice { device_id: self.device, pipe_id, direction, prsr_id })
    }

    /// What the switch tells of its program; `None` where it runs another one.
    async fn describe(&mut self) -> Result<Option<Described>, TargetError> {
        if let Some(info) = &self.info {
            return Ok(Some(info.clone()));
        }
        let request = GetForwardingPipelineConfigRequest { device_id: self.device, client_id: CLIENT };
        let answer = self
            .client
            .get_forwarding_pipeline_config(request)
            .await
            .map_err(|status| self.error(&status))?;
        let answer = answer.into_inner();
        let Some(config) = answer.config.iter().find(|config| config.p4_name == self.pipeline.name) else {
            return Ok(None);
        };
        let read = |bytes: &[u8]| -> Result<BfrtInfo, TargetError> {
            let info = serde_json::from_slice(bytes);
            info.map_err(|error| {
                TargetError::Refused(format!("what the switch tells of its tables is no bfrt.json: {error}"))
            })
        };
        let program = read(&config.bfruntime_info)?;
        let own = answer
            .non_p4_config
            .as_ref()
            .map(|own| read(&own.bfruntime_info))
            .transpose()?
            .unwrap_or_default();
        (self.pipeline.tofino.check_profile)(self.profile, &program)
            .map_err(|why| TargetError::Refused(format!("the switch at {}: {why}", self.address)))?;
        let schema = schema(&program);
        schema.check(self.used()).map_err(|error| TargetError::Refused(error.to_string()))?;
        let described = Described { program, own, schema };
        self.check_own(&described)?;
        self.info = Some(described.clone());
        Ok(Some(described))
    }

    /// What is used of its program.
    fn used(&self) -> &'static Used {
        (self.pipeline.tofino.used)(self.profile)
    }

    /// Whether the tables are there that are not of the program.
    fn check_own(&self, described: &Described) -> Result<(), TargetError> {
        for (name, fields) in [
            (NODE, &["$MULTICAST_NODE_ID", "$MULTICAST_RID", "$DEV_PORT"][..]),
            (
                GROUP,
                &["$MGID", "$MULTICAST_NODE_ID", "$MULTICAST_NODE_L1_XID_VALID", "$MULTICAST_NODE_L1_XID"],
            ),
            (MIRROR, &MIRROR_FIELDS),
        ] {
            let table = described.own.table(name);
            let missing =
                fields.iter().find(|field| table.and_then(|table| field_of(table, field)).is_none());
            if let Some(field) = missing {
                return Err(TargetError::Refused(format!(
                    "the switch at {} has no {field} in {name}",
                    self.address
                )));
            }
        }
        for (name, fields) in [(PIPE, &PIPE_FIELDS[..]), (PORT, &PORT_FIELDS)] {
            let table = described.own.table(name);
            let has = |field: &&str| table.is_some_and(|table| field_of(table, field).is_some());
            if !self.deflecting.is_empty() && !fields.iter().all(has) {
                return Err(TargetError::Refused(format!(
                    "the switch at {} has no table {name} with {}: leave `deflect` out of [switch.NAME.reporter], or use an SDE that has it",
                    self.address,
                    fields.join(", ")
                )));
            }
        }
        for name in (self.pipeline.tofino.registers)(self.profile) {
            if register(&described.program, name).is_none() {
                return Err(TargetError::Refused(format!("the switch's program has no registers {name}")));
            }
        }
        Ok(())
    }

    /// Becomes a client of the program: who is bound to it writes. One at a time can be, and who went just now may
    /// still be known as one.
    async fn bind(&mut self) -> Result<(), TargetError> {
        if self.stream.as_ref().is_some_and(|stream| !stream.is_closed()) {
            return Ok(());
        }
        let until = Instant::now() + GONE;
        loop {
            let is_taken =
                |status: &Status| matches!(status.code(), Code::AlreadyExists | Code::InvalidArgument);
            match self.try_bind().await {
                Ok(()) => return Ok(()),
                Err(status) if is_taken(&status) && Instant::now() < until => tokio::time::sleep(ASK).await,
                Err(status) if is_taken(&status) => {
                    return Err(self.failed(&format!(
                        "it does not take this control plane as a client; one at a time can be, does another one run \
                         (dta-translator watch)? {}",
                        dta_grpc::status_reason(&status)
                    )));
                }
                Err(status) => return Err(self.error(&status)),
            }
        }
    }

    async fn try_bind(&mut self) -> Result<(), Status> {
        let (requests, queue) = tokio::sync::mpsc::channel(16);
        let notifications = subscribe::Notifications::default();
        let subscribe =
            Subscribe { device_id: self.device, notifications: Some(notifications), status: None };
        let first = stream_message_request::Update::Subscribe(subscribe);
        if requests.send(StreamMessageRequest { client_id: CLIENT, update: Some(first) }).await.is_err() {
            return Err(Status::unavailable("the stream ended"));
        }
        // The stream lasts as long as the connection: it has no limit of time.
        let mut request = tonic::Request::new(ReceiverStream::new(queue));
        request.set_timeout(Duration::from_secs(u64::from(u32::MAX)));
        let mut answers = self.client.stream_channel(request).await?.into_inner();
        let first = tokio::time::timeout(CALL, answers.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("it does not answer to a subscription"))?;
        match first?.and_then(|message| message.update) {
            Some(stream_message_response::Update::Subscribe(told)) => match told.status {
                Some(status) if status.code != 0 => {
                    return Err(Status::new(Code::from_i32(status.code), status.message));
                }
                _ => {}
            },
            _ => return Err(Status::unavailable("it does not answer to a subscription")),
        }
        let config = ForwardingPipelineConfig {
            p4_name: self.pipeline.name.into(),
            ..ForwardingPipelineConfig::default()
        };
        let request = SetForwardingPipelineConfigRequest {
            device_id: self.device,
            client_id: CLIENT,
            action: set_forwarding_pipeline_config_request::Action::Bind.into(),
            base_path: String::new(),
            config: vec![config],
        };
        self.client.set_forwarding_pipeline_config(request).await?;
        info!(switch = self.address, program = self.pipeline.name, "bound to the program");
        tokio::spawn(async move { while let Ok(Some(_)) = answers.message().await {} });
        self.stream = Some(requests);
        Ok(())
    }

    async fn described(&mut self) -> Result<Described, TargetError> {
        let described = self.describe().await?;
        described.ok_or_else(|| self.failed(&format!("it does not run the program {}", self.pipeline.name)))
    }

    /// All that counters or registers of these numbers hold.
    async fn read_counts(&mut self, ids: &[u32]) -> Result<Vec<TableEntry>, TargetError> {
        let asked = |table_id: &u32| {
            entity(TableEntry { table_id: *table_id, table_flags: FROM_HARDWARE, ..TableEntry::default() })
        };
        self.read_entities(ids.iter().map(asked).collect()).await
    }

    /// The update by which the traffic manager of a pipe deflects to a queue of a port of it.
    async fn deflect_to(
        &mut self,
        described: &Described,
        pipe: u32,
        port: u32,
        queue: u32,
    ) -> Result<Update, TargetError> {
        let asked = described.port_entry(port).map(entity).into_iter().collect();
        let of_port = self.read_entities(asked).await?;
        let update = of_port.first().and_then(|entry| described.deflection(entry, queue)).map(|mut entry| {
            entry.entry_tgt = self.pipe(pipe);
            update(update::Type::Modify, entry)
        });
        update.ok_or_else(|| {
            TargetError::Refused(format!(
                "the switch at {} has no queue {queue} of port {port}, which `deflect` names",
                self.address
            ))
        })
    }

    async fn read_entities(&mut self, entities: Vec<Entity>) -> Result<Vec<TableEntry>, TargetError> {
        let request = ReadRequest {
            target: self.target(),
            client_id: CLIENT,
            entities,
            p4_name: self.pipeline.name.into(),
        };
        let mut answer = self.client.read(request).await.map_err(|status| self.error(&status))?.into_inner();
        let mut entries = Vec::new();
        while let Some(part) = answer.message().await.map_err(|status| self.error(&status))? {
            for entity in part.entities {
                if let Some(entity::Entity::TableEntry(entry)) = entity.entity {
                    entries.push(entry);
                }
            }
        }
        Ok(entries)
    }

    /// Sequences asked for by NACKs, of all pipes.
    async fn nacked_sequences(&mut self, described: &Described) -> Result<u64, TargetError> {
        let Some((table, _, value_id, _)) = register(&described.program, tofino::NACKED) else {
            return Ok(0);
        };
        let entries = self.read_counts(&[table.id]).await?;
        let fields = entries.iter().flat_map(|entry| &entry.data).flat_map(|data| &data.fields);
        let values =
            fields.filter(|field| field.field_id == value_id).filter_map(|field| match &field.value {
                Some(data_field::Value::Stream(bytes)) => u64::try_from(number(bytes)?).ok(),
                _ => None,
            });
        Ok(values.sum())
    }

    async fn send(&mut self, updates: Vec<Update>) -> Result<(), (Option<Vec<Error>>, TargetError)> {
        let request = WriteRequest {
            target: self.target(),
            client_id: CLIENT,
            updates,
            atomicity: write_request::Atomicity::ContinueOnError.into(),
            p4_name: self.pipeline.name.into(),
        };
        let Err(status) = self.client.write(request).await else { return Ok(()) };
        let errors = update_errors(&status);
        match errors.iter().find(|error| error.canonical_code != 0) {
            Some(first) => {
                let told = Status::new(Code::from_i32(first.canonical_code), first.message.clone());
                let error = self.error(&told);
                Err((Some(errors), error))
            }
            None => Err((None, self.error(&status))),
        }
    }
}

/// What counts in the chip is read there: the driver's own copy is of the last time somebody asked for it.
const FROM_HARDWARE: Option<TableFlags> = Some(TableFlags { from_hw: true, key_only: false });

/// The number of this control plane among the switch's clients.
const CLIENT: u32 = 1;

/// Registers of a name: table, number of the index, number and width of the value.
fn register<'a>(info: &'a BfrtInfo, name: &str) -> Option<(&'a BfrtTable, u32, u32, u16)> {
    let table = info.tables.iter().find(|t| t.table_type == "Register" && last(&t.name) == name)?;
    let index = table.key.iter().find(|key| key.name == "$REGISTER_INDEX")?;
    let value = &table.data.first()?.singleton;
    Some((table, index.id, value.id, value.kind.bits()))
}

/// The number of a field of a key or of data; of data of actions, the first of that name.
fn field_of(table: &BfrtTable, name: &str) -> Option<(u32, u16)> {
    let key = table.key.iter().find(|key| key.name == name).map(|key| (key.id, key.kind.bits()));
    let data =
        table.data.iter().map(|data| &data.singleton).chain(table.action_specs.iter().flat_map(|a| &a.data));
    let mut data = data.filter(|field| field.name == name).map(|field| (field.id, field.kind.bits()));
    key.or_else(|| data.next())
}

/// Where copies are made, as the switch calls it.
fn direction_of(side: Side) -> &'static str {
    match side {
        Side::Ingress => "INGRESS",
        Side::Egress => "EGRESS",
        Side::Both => "BOTH",
    }
}

/// A number in as many bytes as its width takes.
fn bytes(value: u128, width: u16) -> Vec<u8> {
    let len = usize::from(width.div_ceil(8)).clamp(1, 16);
    value.to_be_bytes()[16 - len..].to_vec()
}

fn number(bytes: &[u8]) -> Option<u128> {
    (bytes.len() <= 16).then(|| bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte)))
}

fn all_ones(width: u16) -> u128 {
    if width >= 128 { u128::MAX } else { (1 << width) - 1 }
}

fn exact(field_id: u32, value: u128, width: u16) -> KeyField_ {
    let value = key_field::Exact { value: bytes(value, width) };
    KeyField_ { field_id, match_type: Some(key_field::MatchType::Exact(value)) }
}

type KeyField_ = bfruntime_proto::bfrt::KeyField;

fn stream(field_id: u32, value: u128, width: u16) -> DataField {
    DataField { field_id, value: Some(data_field::Value::Stream(bytes(value, width))) }
}

fn entity(entry: TableEntry) -> Entity {
    Entity { entity: Some(entity::Entity::TableEntry(entry)) }
}

fn update(kind: update::Type, entry: TableEntry) -> Update {
    Update { r#type: kind.into(), entity: Some(entity(entry)) }
}

impl Described {
    fn own_field(&self, table: &str, field: &str) -> Option<(u32, u32, u16)> {
        let table = self.own.table(table)?;
        let (id, width) = field_of(table, field)?;
        Some((table.id, id, width))
    }

    /// What an entry of one of the switch's own tables says in a field.
    fn own_value<'a>(
        &self,
        entry: &'a TableEntry,
        table: &str,
        field: &str,
    ) -> Option<&'a data_field::Value> {
        let (_, id, _) = self.own_field(table, field)?;
        entry.data.as_ref()?.fields.iter().find(|field| field.field_id == id)?.value.as_ref()
    }

    /// The same of a field that is a number.
    fn own_number(&self, entry: &TableEntry, table: &str, field: &str) -> Option<u32> {
        match self.own_value(entry, table, field)? {
            data_field::Value::Stream(bytes) => u32::try_from(number(bytes)?).ok(),
            _ => None,
        }
    }

    /// The same of a field that is several numbers.
    fn own_numbers<'a>(&self, entry: &'a TableEntry, table: &str, field: &str) -> Option<&'a [u32]> {
        match self.own_value(entry, table, field)? {
            data_field::Value::IntArrVal(ints) => Some(&ints.val),
            _ => None,
        }
    }

    /// A node: all ports that get a copy with its replication id.
    fn node_entry(&self, id: u32, copies: Option<&Vec<(u32, u32)>>) -> Option<TableEntry> {
        let (table_id, key, width) = self.own_field(NODE, "$MULTICAST_NODE_ID")?;
        let data = copies.map(|copies| {
            let (_, rid) = copies.first()?;
            let (_, rid_id, rid_width) = self.own_field(NODE, "$MULTICAST_RID")?;
            let (_, port_id, _) = self.own_field(NODE, "$DEV_PORT")?;
            let ports = data_field::IntArray { val: copies.iter().map(|(port, _)| *port).collect() };
            let ports = DataField { field_id: port_id, value: Some(data_field::Value::IntArrVal(ports)) };
            Some(TableData { action_id: 0, fields: vec![stream(rid_id, u128::from(*rid), rid_width), ports] })
        });
        let data = match data {
            Some(data) => Some(data?),
            None => None,
        };
        let key = Some(TableKey { fields: vec![exact(key, id.into(), width)] });
        Some(TableEntry { table_id, key, data, ..TableEntry::default() })
    }

    fn group_entry(&self, id: u32, nodes: Option<Vec<u32>>) -> Option<TableEntry> {
        let (table_id, key, width) = self.own_field(GROUP, "$MGID")?;
        let key = Some(TableKey { fields: vec![exact(key, id.into(), width)] });
        let mut data = None;
        if let Some(nodes) = nodes {
            let field = |name: &str| self.own_field(GROUP, name).map(|(_, id, _)| id);
            let ints = |val| Some(data_field::Value::IntArrVal(data_field::IntArray { val }));
            let (of_none, none) = (vec![false; nodes.len()], vec![0; nodes.len()]);
            let of_none = data_field::Value::BoolArrVal(data_field::BoolArray { val: of_none });
            data = Some(TableData {
                action_id: 0,
                fields: vec![
                    DataField { field_id: field("$MULTICAST_NODE_ID")?, value: ints(nodes) },
                    DataField { field_id: field("$MULTICAST_NODE_L1_XID_VALID")?, value: Some(of_none) },
                    DataField { field_id: field("$MULTICAST_NODE_L1_XID")?, value: ints(none) },
                ],
            });
        }
        Some(TableEntry { table_id, key, data, ..TableEntry::default() })
    }

    fn mirror_entry(&self, id: u32, mirror: Option<&Mirror>) -> Option<TableEntry> {
        let (table_id, key, width) = self.own_field(MIRROR, "$sid")?;
        let key = Some(TableKey { fields: vec![exact(key, id.into(), width)] });
        let mut data = None;
        if let Some(mirror) = mirror {
            let action =
                self.own.table(MIRROR)?.action_specs.iter().find(|action| action.name == "$normal")?;
            let flag = |name: &str| {
                let (_, field_id, _) = self.own_field(MIRROR, name)?;
                Some(DataField { field_id, value: Some(data_field::Value::BoolVal(true)) })
            };
            let number = |name: &str, value: u32| {
                let (_, field_id, width) = self.own_field(MIRROR, name)?;
                Some(stream(field_id, value.into(), width))
            };
            let (_, direction, _) = self.own_field(MIRROR, "$direction")?;
            let (name, valid, to) = match mirror.to {
                Towards::Port(port) => ("$ucast_egress_port", "$ucast_egress_port_valid", port),
                Towards::Group(group) => ("$mcast_grp_a", "$mcast_grp_a_valid", group),
            };
            data = Some(TableData {
                action_id: action.id,
                fields: vec![
                    flag("$session_enable")?,
                    DataField {
                        field_id: direction,
                        value: Some(data_field::Value::StrVal(direction_of(mirror.at).into())),
                    },
                    number(name, to)?,
                    flag(valid)?,
                    number("$max_pkt_len", mirror.longest.into())?,
                ],
            });
        }
        Some(TableEntry { table_id, key, data, ..TableEntry::default() })
    }

    /// What the traffic manager tells of a port, by its number.
    fn port_entry(&self, port: u32) -> Option<TableEntry> {
        let (table_id, key, width) = self.own_field(PORT, "dev_port")?;
        let key = Some(TableKey { fields: vec![exact(key, port.into(), width)] });
        Some(TableEntry { table_id, key, ..TableEntry::default() })
    }

    /// What a pipe holds that deflects to a queue of a port; `None` where the port has no such queue.
    fn deflection(&self, port: &TableEntry, queue: u32) -> Option<TableEntry> {
        let group = self.own_number(port, PORT, "pg_id")?;
        if queue >= self.own_number(port, PORT, "port_queues_count")? {
            return None;
        }
        let first_of = |name: &str| self.own_numbers(port, PORT, name)?.first().copied();
        // The same queue twice, in the group and in the port: so the port's first queue in the group is known.
        let before = first_of("egress_qid_queues")?.checked_sub(first_of("ingress_qid_map")?)?;
        let (table_id, group_id, group_width) = self.own_field(PIPE, "mirror_drop_pg_id")?;
        let (_, queue_id, queue_width) = self.own_field(PIPE, "mirror_drop_pg_queue")?;
        let fields = vec![
            stream(group_id, group.into(), group_width),
            stream(queue_id, u128::from(before + queue), queue_width),
        ];
        let data = Some(TableData { action_id: 0, fields });
        Some(TableEntry { table_id, data, is_default_entry: true, ..TableEntry::default() })
    }

    /// A row, by its key and order, or without them what the table does by default.
    fn row_entry(
        &self,
        table: &str,
        key: Option<(&[Match], u32)>,
        holds: Option<&Holds>,
    ) -> Option<TableEntry> {
        let table = self.schema.table(table)?;
        let mut fields = Vec::new();
        for (of, matched) in table.key.iter().zip(key.map_or(&[][..], |(key, _)| key)) {
            let (id, width) = (of.field.id, of.field.width);
            let fits = |value: u128| value <= all_ones(width);
            let kind = match (of.kind, *matched) {
                (MatchKind::Exact, Match::Exact(value)) if fits(value) => {
                    key_field::MatchType::Exact(key_field::Exact { value: bytes(value, width) })
                }
                (MatchKind::Prefix, Match::Prefix { value, len }) if fits(value) => {
                    key_field::MatchType::Lpm(key_field::Lpm {
                        value: bytes(value, width),
                        prefix_len: len.into(),
                    })
                }
                (MatchKind::Ternary, Match::Masked { value, mask }) if fits(mask) && value & !mask == 0 => {
                    key_field::MatchType::Ternary(key_field::Ternary {
                        value: bytes(value, width),
                        mask: bytes(mask, width),
                    })
                }
                (MatchKind::Range, Match::Range { low, high }) if low <= high && fits(high) => {
                    key_field::MatchType::Range(key_field::Range {
                        low: bytes(low, width),
                        high: bytes(high, width),
                    })
                }
                _ => return None,
            };
            fields.push(KeyField_ { field_id: id, match_type: Some(kind) });
        }
        let info = self.program.table_of(table.id)?;
        if let Some(priority) = info.key.iter().find(|key| key.name == PRIORITY) {
            // The least one counts.
            let order = key.map_or(0, |(_, order)| order);
            fields.push(exact(priority.id, order.into(), priority.kind.bits()));
        }
        let data = match holds {
            Some(Holds::Action { name, params }) => {
                let action = table.action(name)?;
                let param = |(field, value): (&Field, &u128)| {
                    (*value <= all_ones(field.width)).then(|| stream(field.id, *value, field.width))
                };
                let fields = action.params.iter().zip(params).map(param).collect::<Option<Vec<_>>>()?;
                (fields.len() == params.len() && fields.len() == action.params.len())
                    .then_some(Some(TableData { action_id: action.id, fields }))?
            }
            Some(Holds::Copies(_) | Holds::Mirror(_) | Holds::Queue { .. }) => return None,
            None => None,
        };
        let is_default_entry = key.is_none();
        let key = key.map(|_| TableKey { fields });
        Some(TableEntry { table_id: table.id, key, data, is_default_entry, ..TableEntry::default() })
    }

    /// The update that makes a step.
    fn update(&self, step: &Step) -> Option<Update> {
        use update::Type::{Delete, Insert, Modify};
        let (kind, item, holds) = match step {
            Step::Insert(item, holds) => (Insert, item, Some(holds)),
            Step::Modify(item, holds) => (Modify, item, Some(holds)),
            Step::Delete(item) => (Delete, item, None),
        };
        let copies = match holds {
            Some(Holds::Copies(copies)) => Some(copies),
            Some(Holds::Action { .. } | Holds::Mirror(_) | Holds::Queue { .. }) | None => None,
        };
        Some(match item {
            Item::Node(id) => update(kind, self.node_entry(*id, copies)?),
            Item::Group(id) => {
                let nodes = copies.map(|copies| copies.iter().map(|(node, _)| *node).collect());
                update(kind, self.group_entry(*id, nodes)?)
            }
            Item::Clone(id) => {
                let mirror = match holds {
                    Some(Holds::Mirror(mirror)) => Some(mirror),
                    _ => None,
                };
                update(kind, self.mirror_entry(*id, mirror)?)
            }
            Item::Row { table, key, order } => {
                update(kind, self.row_entry(table, Some((key, *order)), holds)?)
            }
            Item::Default { table } => update(Modify, self.row_entry(table, None, holds)?),
            // The switch is asked for its queue first.
            Item::Deflection(_) => return None,
        })
    }

    /// The registers that a command sets; `None` for commands that are no registers.
    fn register_updates(&self, command: &Command) -> Option<Vec<Update>> {
        let of_state = |name, value| self.register_update(name, command.state, value);
        match command.command {
            SET_PSN => Some(vec![self.register_update(NEXT_PSN, command.pair.into(), command.value)?]),
            SET_LIST => Some(vec![of_state(LIST_SEQUENCE, tofino::newest(command.value))?]),
            FORGET_ROW => Some(vec![of_state(ROW_HEAD, 0)?]),
            FORGET_COLUMN => Some(vec![of_state(COLUMN_USED, 0)?, of_state(COLUMN_UNSENT, 0)?]),
            _ => None,
        }
    }

    fn register_update(&self, name: &str, index: u32, value: u32) -> Option<Update> {
        let (table, index_id, value_id, width) = register(&self.program, name)?;
        let key = Some(TableKey { fields: vec![exact(index_id, index.into(), 32)] });
        let data = Some(TableData { action_id: 0, fields: vec![stream(value_id, value.into(), width)] });
        Some(update(
            update::Type::Modify,
            TableEntry { table_id: table.id, key, data, ..TableEntry::default() },
        ))
    }

    /// An entry as an item; `None` for one that nobody described.
    fn decode(&self, entry: &TableEntry) -> Option<(Item, Holds)> {
        let key = entry.key.as_ref().map_or(&[][..], |key| &key.fields);
        let data = entry.data.as_ref();
        let of_key = |id: u32| key.iter().find(|field| field.field_id == id)?.match_type.as_ref();
        let of_data = |id: u32| data?.fields.iter().find(|field| field.field_id == id)?.value.as_ref();
        let only_key = || match key.first()?.match_type.as_ref()? {
            key_field::MatchType::Exact(exact) => u32::try_from(number(&exact.value)?).ok(),
            _ => None,
        };
        let is = |name: &str| self.own.table(name).is_some_and(|table| table.id == entry.table_id);
        if is(NODE) {
            let rid = self.own_number(entry, NODE, "$MULTICAST_RID")?;
            let ports = self.own_numbers(entry, NODE, "$DEV_PORT")?;
            let mut copies: Vec<(u32, u32)> = ports.iter().map(|port| (*port, rid)).collect();
            copies.sort_unstable();
            return Some((Item::Node(only_key()?), Holds::Copies(copies)));
        }
        if is(GROUP) {
            let nodes = self.own_numbers(entry, GROUP, "$MULTICAST_NODE_ID")?;
            let nodes = nodes.iter().map(|node| (*node, 0)).collect();
            return Some((Item::Group(only_key()?), Holds::Copies(nodes)));
        }
        if is(MIRROR) {
            return Some((Item::Clone(only_key()?), Holds::Mirror(self.mirror(entry)?)));
        }
        if is(PIPE) {
            let port = self.own_number(entry, PIPE, "mirror_drop_dev_port")?;
            let queue = self.own_number(entry, PIPE, "mirror_drop_queue_nr")?;
            return Some((Item::Deflection(entry.entry_tgt.as_ref()?.pipe_id), Holds::Queue { port, queue }));
        }
        let table = self.schema.table_of(entry.table_id)?;
        let action = table.action_of(data?.action_id)?;
        let param = |field: &Field| match of_data(field.id)? {
            data_field::Value::Stream(bytes) => number(bytes),
            _ => None,
        };
        let params = action.params.iter().map(param).collect::<Option<Vec<_>>>()?;
        let holds = Holds::Action { name: action.name.clone(), params };
        if entry.is_default_entry {
            return Some((Item::Default { table: table.name.clone() }, holds));
        }
        let matched = |of: &KeyField| {
            Some(match of_key(of.field.id)? {
                key_field::MatchType::Exact(exact) => Match::Exact(number(&exact.value)?),
                key_field::MatchType::Lpm(lpm) => {
                    Match::Prefix { value: number(&lpm.value)?, len: u16::try_from(lpm.prefix_len).ok()? }
                }
                key_field::MatchType::Range(range) => {
                    Match::Range { low: number(&range.low)?, high: number(&range.high)? }
                }
                key_field::MatchType::Ternary(ternary) => {
                    let mask = number(&ternary.mask)?;
                    Match::Masked { value: number(&ternary.value)? & mask, mask }
                }
            })
        };
        let row = table.key.iter().map(matched).collect::<Option<Vec<_>>>()?;
        let priority = self.program.table_of(table.id)?.key.iter().find(|key| key.name == PRIORITY);
        let order = match priority.map(|priority| of_key(priority.id)) {
            Some(Some(key_field::MatchType::Exact(exact))) => u32::try_from(number(&exact.value)?).ok()?,
            Some(_) => return None,
            None => 0,
        };
        Some((Item::Row { table: table.name.clone(), key: row, order }, holds))
    }

    /// A mirror session, of its entry.
    fn mirror(&self, entry: &TableEntry) -> Option<Mirror> {
        let of = |name: &str| self.own_value(entry, MIRROR, name);
        let number_of = |name: &str| self.own_number(entry, MIRROR, name);
        let is_group = matches!(of("$mcast_grp_a_valid"), Some(data_field::Value::BoolVal(true)));
        let to = match is_group {
            true => Towards::Group(number_of("$mcast_grp_a")?),
            false => Towards::Port(number_of("$ucast_egress_port")?),
        };
        let Some(data_field::Value::StrVal(direction)) = of("$direction") else { return None };
        let at = [Side::Ingress, Side::Egress, Side::Both]
            .into_iter()
            .find(|at| direction_of(*at) == direction)?;
        Some(Mirror { to, at, longest: u16::try_from(number_of("$max_pkt_len")?).ok()? })
    }
}

impl Wire for BfRuntime {
    fn shape(&self, tables: Tables) -> Tables {
        (self.pipeline.tofino.shape)(&tables)
    }

    fn room(&self, table: &str) -> Option<u64> {
        self.info.as_ref().and_then(|info| info.schema.table(table)).map(|table| table.size)
    }

    fn places(&self) -> Room {
        tofino::places(self.profile)
    }

    fn cannot_write(&self, kind: &StoreKind) -> Option<String> {
        tofino::cannot_write(self.profile, kind)
    }

    async fn read(&mut self) -> Result<Option<Tables>, TargetError> {
        let Some(described) = self.describe().await? else { return Ok(None) };
        self.bind().await?;
        let used = self
            .used()
            .tables
            .iter()
            .filter_map(|used| described.schema.table(used.name))
            .map(|table| table.id);
        let own =
            [NODE, GROUP, MIRROR].iter().filter_map(|name| described.own.table(name)).map(|table| table.id);
        let rows = used.chain(own).map(|table_id| TableEntry { table_id, ..TableEntry::default() });
        let default = |table_id| TableEntry { table_id, is_default_entry: true, ..TableEntry::default() };
        let defaults = self.pipeline.defaults.iter().filter_map(|name| described.schema.table(name));
        let defaults = defaults.map(|table| default(table.id));
        let deflections = self.deflecting.iter().filter_map(|pipe| {
            let table = described.own.table(PIPE)?;
            Some(TableEntry { entry_tgt: self.pipe(*pipe), ..default(table.id) })
        });
        let asked = rows.chain(defaults).chain(deflections).map(entity).collect();
        let mut tables = Tables::default();
        for entry in self.read_entities(asked).await? {
            let (item, holds) = described
                .decode(&entry)
                .ok_or_else(|| self.failed("it holds an entry that its program does not describe"))?;
            // A default that the program has by itself is nobody's entry.
            let is_own =
                matches!(&item, Item::Default { table } if !self.pipeline.defaults.contains(&table.as_str()));
            if !is_own {
                tables.set(item, holds);
            }
        }
        Ok(Some(tables))
    }

    /// The switch loads its program itself. Nobody can tell whether its registers are as they were.
    async fn load(&mut self) -> Result<bool, TargetError> {
        self.described().await?;
        self.bind().await?;
        Ok(false)
    }

    async fn write(&mut self, steps: &[Step]) -> Result<(), WriteError> {
        let nothing = |error| WriteError { made: Some(0), error };
        let described = self.described().await.map_err(nothing)?;
        let mut updates = Vec::with_capacity(steps.len());
        for step in steps {
            let update = match step {
                Step::Modify(Item::Deflection(pipe), Holds::Queue { port, queue }) => {
                    self.deflect_to(&described, *pipe, *port, *queue).await
                }
                _ => described.update(step).ok_or_else(|| {
                    TargetError::Refused(format!("the switch's program cannot hold {:?}", step.item()))
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

    /// What sets or forgets is a register here, and what lets something leave a frame to the CPU port.
    async fn command(&mut self, commands: &[Command], rows: &Tables) -> Result<(), TargetError> {
        let described = self.described().await?;
        let (mut updates, mut flushes, mut probes) = (Vec::new(), Vec::new(), Vec::new());
        for command in commands {
            match command.command {
                FLUSH_LIST | FLUSH_ROW | FLUSH_COLUMN => flushes.push(*command),
                PROBE => probes.push(command.pair),
                other => match described.register_updates(command) {
                    Some(registers) => updates.extend(registers),
                    None => return Err(self.failed(&format!("its program has no command {other}"))),
                },
            }
        }
        for batch in updates.chunks(super::BATCH) {
            self.send(batch.to_vec()).await.map_err(|(_, error)| error)?;
        }
        if !flushes.is_empty() {
            self.flush(&described, &flushes, rows).await?;
        }
        if !probes.is_empty() {
            self.probe(&described, &probes, rows).await?;
        }
        Ok(())
    }

    async fn counters(&mut self) -> Result<Counts, TargetError> {
        let described = self.described().await?;
        self.bind().await?;
        let mut counts = Counts::default();
        let ids: Vec<u32> = described.schema.counters.iter().map(|counter| counter.id).collect();
        for entry in self.read_counts(&ids).await? {
            let Some(table) = described.program.table_of(entry.table_id) else { continue };
            let packets = field_of(table, "$COUNTER_SPEC_PKTS").map(|(id, _)| id);
            let index = entry
                .key
                .as_ref()
                .and_then(|key| key.fields.first())
                .and_then(|field| field.match_type.as_ref());
            let Some(key_field::MatchType::Exact(index)) = index else { continue };
            let index =
                number(&index.value).and_then(|index| usize::try_from(index).ok()).unwrap_or(usize::MAX);
            let fields = entry.data.iter().flat_map(|data| &data.fields);
            let value = fields
                .clone()
                .find(|field| Some(field.field_id) == packets)
                .and_then(|field| field.value.as_ref());
            let size = usize::try_from(table.size).unwrap_or(0);
            let cells = counts.0.entry(last(&table.name).into()).or_insert_with(|| vec![0; size]);
            if let (Some(cell), Some(data_field::Value::Stream(bytes))) = (cells.get_mut(index), value) {
                *cell = number(bytes).and_then(|count| u64::try_from(count).ok()).unwrap_or(u64::MAX);
            }
        }
        let nacked = self.nacked_sequences(&described).await?;
        (self.pipeline.tofino.name_counts)(&mut counts, nacked);
        Ok(counts)
    }
}
