//! A Tofino as `dta-translator setup --switch` programs it: a server of the real gRPC protocol, driven by the
//! compiled program's `bfrt.json`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use dta_switch::bfrt_json::{BfrtInfo, BfrtTable, last_segment};
use dta_switch::messages::bfruntime::bfrt::bf_runtime_server::{BfRuntime, BfRuntimeServer};
use dta_switch::messages::bfruntime::bfrt::*;
use dta_switch::messages::bfruntime::write_failed;
use dta_switch::tofino::Profile;
use prost::Message as _;
use serde_json::{Value, json};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

/// The tables of the translator's program, as its compiler writes them.
pub(crate) fn program() -> Value {
    program_of("translator")
}

/// The tables that a profile of it has.
pub(crate) fn program_of_profile(profile: Profile) -> Value {
    compiled(match profile {
        Profile::Postcards => "translator-p4/compiled/tna",
        Profile::Sketches => "translator-p4/compiled/tna-sketches",
        Profile::Batches => "translator-p4/compiled/tna-batches",
    })
}

/// The tables of a program.
pub(crate) fn program_of(name: &str) -> Value {
    compiled(&format!("{name}-p4/compiled/tna"))
}

fn compiled(folder: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder).join("bfrt.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A table of a program, to change it.
pub(crate) fn table_of<'a>(program: &'a mut Value, name: &str) -> &'a mut Value {
    let tables = program["tables"].as_array_mut().unwrap();
    tables.iter_mut().find(|table| table["name"].as_str().unwrap().rsplit('.').next() == Some(name)).unwrap()
}

/// The tables that every switch has.
fn own() -> Value {
    let key =
        |name: &str, kind: Value| json!([{ "id": 1, "name": name, "match_type": "Exact", "type": kind }]);
    let field = |id: u32, name: &str, kind: Value| json!({ "id": id, "name": name, "type": kind });
    let data = |fields: Vec<Value>| {
        fields.into_iter().map(|field| json!({ "singleton": field })).collect::<Vec<_>>()
    };
    let of = |name: &str| json!({ "type": name });
    json!({ "tables": [
        { "name": "$pre.node", "id": 0x0700_0001, "table_type": "PreNode", "size": 4096, "key": key("$MULTICAST_NODE_ID", of("uint32")),
          "data": data(vec![field(2, "$MULTICAST_RID", of("uint16")), field(3, "$MULTICAST_LAG_ID", of("uint32")), field(4, "$DEV_PORT", of("uint32"))]) },
        { "name": "$pre.mgid", "id": 0x0700_0002, "table_type": "PreMgid", "size": 4096, "key": key("$MGID", of("uint16")),
          "data": data(vec![field(2, "$MULTICAST_NODE_ID", of("uint32")), field(3, "$MULTICAST_NODE_L1_XID_VALID", of("bool")),
                            field(4, "$MULTICAST_NODE_L1_XID", of("uint16"))]) },
        { "name": "$mirror.cfg", "id": 0x0700_0003, "table_type": "MirrorCfg", "size": 1024, "key": key("$sid", of("uint16")),
          "action_specs": [{ "id": 3, "name": "$normal", "data": [field(1, "$session_enable", of("bool")), field(2, "$direction", of("string")),
                             field(3, "$ucast_egress_port", of("uint32")), field(4, "$ucast_egress_port_valid", of("bool")),
                             field(5, "$max_pkt_len", of("uint16")), field(6, "$mcast_grp_a", of("uint16")),
                             field(7, "$mcast_grp_a_valid", of("bool"))] }] },
        { "name": PIPE, "id": 0xff05_0050_u32, "table_type": "TmPipeCfg", "size": 4, "key": [],
          "data": data(vec![field(1, "mirror_drop_pg_id", of("uint8")), field(2, "mirror_drop_pg_queue", of("uint8")),
                            field(3, "mirror_drop_dev_port", of("uint32")), field(4, "mirror_drop_queue_nr", of("uint8"))]) },
        { "name": PORT, "id": 0xff05_0010_u32, "table_type": "TmPortCfg", "size": 288, "key": key("dev_port", of("uint32")),
          "data": data(vec![field(1, "pg_id", of("uint8")), field(3, "port_queues_count", of("uint8")), field(4, "ingress_qid_map", of("uint8")),
                            field(5, "egress_qid_queues", of("uint8"))]) },
    ] })
}

/// Tables of the traffic manager, which name it as it is on this chip.
const PIPE: &str = "tf1.tm.pipe.cfg";
const PORT: &str = "tf1.tm.port.cfg";
/// Four ports are a group here, and each has this many of its queues.
const QUEUES: u32 = 8;

/// A number of this many bytes.
fn stream(field_id: u32, len: usize, value: u32) -> DataField {
    let bytes = value.to_be_bytes()[4 - len..].to_vec();
    DataField { field_id, value: Some(data_field::Value::Stream(bytes)) }
}

/// The requests to the switch, and how it answers.
#[derive(Default)]
pub(crate) struct State {
    /// Entries by table and key.
    pub(crate) entries: BTreeMap<(u32, Vec<u8>), TableEntry>,
    /// Write requests, and updates in them.
    pub(crate) requests: usize,
    pub(crate) updates: usize,
    /// Updates to apply before the next one fails; without it, none fails.
    pub(crate) fails_after: Option<usize>,
    /// How many pipes the chip has; 0 stands for 1.
    pub(crate) pipes: usize,
    /// A table that its SDE lacks.
    pub(crate) lacks: Option<&'static str>,
    /// Registers that were asked for by their number: name and index.
    pub(crate) asked: Vec<(String, u32)>,
    /// Clients that are there, and which of them is bound to the program.
    clients: Vec<u32>,
    bound: Option<u32>,
}

/// The switch. Clones are the same one.
#[derive(Clone)]
pub(crate) struct FakeTofino {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) address: SocketAddr,
    /// Name of the program that it runs, and its bfrt.json.
    name: &'static str,
    program: Arc<Vec<u8>>,
    tables: Arc<BfrtInfo>,
    own: Arc<BfrtInfo>,
}

fn err(code: Code, message: impl Into<String>) -> Error {
    Error { canonical_code: code.into(), message: message.into(), ..Error::default() }
}

fn invalid<T>(message: impl Into<String>) -> Result<T, Error> {
    Err(err(Code::InvalidArgument, message))
}

/// Whether bytes are a number of this width, in as many bytes as that needs.
fn fits(bytes: &[u8], width: u16) -> Result<(), Error> {
    let spare = bytes.len() * 8 - usize::from(width).min(bytes.len() * 8);
    if bytes.len() != usize::from(width.div_ceil(8))
        || bytes.first().is_some_and(|first| usize::from(8 - first.leading_zeros() as u16) > 8 - spare)
    {
        return invalid(format!("{bytes:?} is no number of {width} bits"));
    }
    Ok(())
}

impl FakeTofino {
    /// Serves the translator's program until the process ends.
    pub(crate) fn start(program: &Value) -> FakeTofino {
        FakeTofino::start_as("translator", program)
    }

    /// Serves a program under a name.
    pub(crate) fn start_as(name: &'static str, program: &Value) -> FakeTofino {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let switch = FakeTofino {
            state: Arc::default(),
            address: listener.local_addr().unwrap(),
            name,
            program: Arc::new(program.to_string().into_bytes()),
            tables: Arc::new(serde_json::from_value(program.clone()).unwrap()),
            own: Arc::new(serde_json::from_value(own()).unwrap()),
        };
        let served = switch.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let incoming = tokio::net::TcpListener::from_std(listener).unwrap();
                let incoming = tokio_stream::wrappers::TcpListenerStream::new(incoming);
                let service = BfRuntimeServer::new(served).max_decoding_message_size(64 << 20);
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

    fn table(&self, id: u32) -> Option<&BfrtTable> {
        self.tables.table_by_id(id).or_else(|| self.own.table_by_id(id))
    }

    /// How many rows a table has.
    pub(crate) fn rows(&self, name: &str) -> usize {
        let id = self.id(name);
        self.with(|state| state.entries.keys().filter(|(table, key)| *table == id && !key.is_empty()).count())
    }

    /// The number of a table, of the program or of every switch.
    pub(crate) fn id(&self, name: &str) -> u32 {
        self.tables.table_by_name(name).or_else(|| self.own.table_by_name(name)).unwrap().id
    }

    /// What a register holds: a field for each pipe that it was written in.
    fn held(&self, name: &str, index: u32) -> Option<Vec<Vec<u8>>> {
        let id = self.tables.table_by_name(name).unwrap().id;
        self.with(|state| {
            let index = index.to_be_bytes().to_vec();
            let of = |entry: &&TableEntry| {
                entry.table_id == id
                    && matches!(&entry.key.as_ref().unwrap().fields[0].match_type,
                Some(key_field::MatchType::Exact(exact)) if exact.value == index)
            };
            let fields = &state.entries.values().find(of)?.data.as_ref().unwrap().fields;
            let bytes = |field: &DataField| match field.value.clone() {
                Some(data_field::Value::Stream(value)) => Some(value),
                _ => None,
            };
            fields.iter().map(bytes).collect()
        })
    }

    /// The value of a register.
    pub(crate) fn register(&self, name: &str, index: u32) -> Option<Vec<u8>> {
        self.held(name, index)?.into_iter().next()
    }

    /// The value of a register of 4 bytes in each pipe.
    pub(crate) fn values(&self, name: &str, index: u32) -> Vec<u32> {
        let held = self.held(name, index).unwrap();
        held.into_iter().map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap())).collect()
    }

    /// Lets a register hold a value in each pipe; of one with several fields, the first.
    pub(crate) fn set_register(&self, name: &str, index: u32, values: &[u32]) {
        let table = self.tables.table_by_name(name).unwrap();
        let exact = key_field::Exact { value: index.to_be_bytes().to_vec() };
        let match_type = Some(key_field::MatchType::Exact(exact));
        let key = TableKey { fields: vec![KeyField { field_id: table.key[0].id, match_type }] };
        let of = &table.data[0].singleton;
        let len = usize::from(of.kind.bit_width().div_ceil(8));
        let value = |value: &u32| DataField {
            field_id: of.id,
            value: Some(data_field::Value::Stream(value.to_be_bytes()[4 - len..].to_vec())),
        };
        let entry = TableEntry {
            table_id: table.id,
            key: Some(key.clone()),
            data: Some(TableData { action_id: 0, fields: values.iter().map(value).collect() }),
            ..TableEntry::default()
        };
        self.with(|state| state.entries.insert((table.id, key.encode_to_vec()), entry));
    }

    /// A register that is asked for by its number: a value for each pipe, 0 where nobody wrote one.
    fn register_of(&self, state: &mut State, asked: &TableEntry) -> Result<TableEntry, Status> {
        self.check(asked, false).map_err(|error| Status::invalid_argument(error.message))?;
        let table = self.table(asked.table_id).unwrap();
        let key = asked.key.clone().unwrap();
        let Some(key_field::MatchType::Exact(exact)) = &key.fields[0].match_type else { unreachable!() };
        let index = u32::from_be_bytes(exact.value.clone().try_into().unwrap());
        if u64::from(index) >= table.size {
            return Err(Status::out_of_range(format!("{} has no {index}", table.name)));
        }
        state.asked.push((last_segment(&table.name).into(), index));
        let pipes = state.pipes.max(1);
        let held = state.entries.get(&(table.id, key.encode_to_vec())).and_then(|entry| entry.data.as_ref());
        let mut fields = Vec::new();
        for of in table.data.iter().map(|data| &data.singleton) {
            let zero = vec![0; usize::from(of.kind.bit_width().div_ceil(8))];
            let zero = DataField { field_id: of.id, value: Some(data_field::Value::Stream(zero)) };
            let held = held.iter().flat_map(|data| &data.fields).filter(|field| field.field_id == of.id);
            match held.collect::<Vec<_>>()[..] {
                [] => fields.extend(vec![zero; pipes]),
                // Written by the control plane, in all pipes.
                [only] => fields.extend(vec![only.clone(); pipes]),
                ref each => fields.extend(each.iter().map(|field| (*field).clone())),
            }
        }
        let data = Some(TableData { action_id: 0, fields });
        Ok(TableEntry { table_id: table.id, key: Some(key), data, ..TableEntry::default() })
    }

    /// Group and queue in it of what a pipe deflects.
    fn deflects(&self, state: &State, pipe: u32) -> (u32, u32) {
        let number = |field: &DataField| match &field.value {
            Some(data_field::Value::Stream(bytes)) => u32::from(bytes[0]),
            _ => unreachable!(),
        };
        match state.entries.get(&(self.id(PIPE), pipe.to_be_bytes().to_vec())) {
            Some(entry) => {
                let of = |id| entry.data.iter().flat_map(|data| &data.fields).find(|f| f.field_id == id);
                (of(1).map_or(0, number), of(2).map_or(0, number))
            }
            // Without more, queue 0 of the pipe's first port.
            None => (0, 0),
        }
    }

    /// What the traffic manager says about a pipe.
    fn pipe(&self, state: &State, asked: &TableEntry) -> Result<TableEntry, Status> {
        let target = self.one_pipe(state, asked).map_err(|error| Status::invalid_argument(error.message))?;
        let (group, queue) = self.deflects(state, target.pipe_id);
        let port = 128 * target.pipe_id + 4 * group + queue / QUEUES;
        let fields =
            vec![stream(1, 1, group), stream(2, 1, queue), stream(3, 4, port), stream(4, 1, queue % QUEUES)];
        let data = Some(TableData { action_id: 0, fields });
        Ok(TableEntry { data, ..asked.clone() })
    }

    /// The pipe that is asked for, or written: each by itself.
    fn one_pipe(&self, state: &State, entry: &TableEntry) -> Result<TargetDevice, Error> {
        match entry.entry_tgt {
            Some(target) if entry.is_default_entry && (target.pipe_id as usize) < state.pipes.max(1) => {
                Ok(target)
            }
            _ => invalid("no single pipe"),
        }
    }

    /// What the traffic manager says about a port.
    fn port(&self, asked: &TableEntry) -> Result<TableEntry, Status> {
        self.check(asked, false).map_err(|error| Status::invalid_argument(error.message))?;
        let field = &asked.key.as_ref().unwrap().fields[0];
        let Some(key_field::MatchType::Exact(exact)) = &field.match_type else { unreachable!() };
        let port = u32::from_be_bytes(exact.value.clone().try_into().unwrap()) % 128;
        if port > 71 {
            return Err(Status::not_found("no such port"));
        }
        // Numbers that no queue of the port has stand for its first one.
        let map = |queue: u32| if queue < QUEUES { queue } else { 0 };
        let ints = |field_id, val| DataField {
            field_id,
            value: Some(data_field::Value::IntArrVal(data_field::IntArray { val })),
        };
        let fields = vec![
            stream(1, 1, port / 4),
            stream(3, 1, QUEUES),
            ints(4, (0..4 * QUEUES).map(map).collect()),
            ints(5, (0..4 * QUEUES).map(|queue| port % 4 * QUEUES + map(queue)).collect()),
        ];
        Ok(TableEntry { data: Some(TableData { action_id: 0, fields }), ..asked.clone() })
    }

    /// Lets a counter have counted packets.
    pub(crate) fn count(&self, name: &str, index: u32, packets: u64) {
        let table = self
            .tables
            .tables
            .iter()
            .find(|t| t.table_type == "Counter" && last_segment(&t.name) == name)
            .unwrap();
        let field = table.data.iter().find(|data| data.singleton.name == "$COUNTER_SPEC_PKTS").unwrap();
        let value = key_field::MatchType::Exact(key_field::Exact { value: index.to_be_bytes().to_vec() });
        let key = TableKey { fields: vec![KeyField { field_id: table.key[0].id, match_type: Some(value) }] };
        let value = data_field::Value::Stream(packets.to_be_bytes().to_vec());
        let fields = vec![DataField { field_id: field.singleton.id, value: Some(value) }];
        let entry = TableEntry {
            table_id: table.id,
            key: Some(key.clone()),
            data: Some(TableData { action_id: 0, fields }),
            ..TableEntry::default()
        };
        self.with(|state| state.entries.insert((table.id, key.encode_to_vec()), entry));
    }

    fn check(&self, entry: &TableEntry, with_data: bool) -> Result<(), Error> {
        let Some(table) = self.table(entry.table_id) else {
            return invalid(format!("no table {}", entry.table_id));
        };
        let key = entry.key.as_ref().map_or(&[][..], |key| &key.fields);
        if entry.is_default_entry != key.is_empty() || (!key.is_empty() && key.len() != table.key.len()) {
            return invalid(format!("{} fields of a key of {}", key.len(), table.name));
        }
        for field in key {
            let Some(of) = table.key.iter().find(|of| of.id == field.field_id) else {
                return invalid("no such field of the key");
            };
            let width = of.kind.bit_width();
            match (of.match_type.as_str(), &field.match_type) {
                ("Exact", Some(key_field::MatchType::Exact(exact))) => fits(&exact.value, width)?,
                ("LPM", Some(key_field::MatchType::Lpm(lpm))) => fits(&lpm.value, width)?,
                ("Range", Some(key_field::MatchType::Range(range))) => {
                    fits(&range.low, width)?;
                    fits(&range.high, width)?;
                }
                ("Ternary", Some(key_field::MatchType::Ternary(ternary))) => {
                    fits(&ternary.value, width)?;
                    fits(&ternary.mask, width)?;
                    if ternary.value.iter().zip(&ternary.mask).any(|(value, mask)| value & !mask != 0) {
                        return invalid("bits outside of the mask");
                    }
                }
                _ => return invalid(format!("{} of {} is matched in another way", of.name, table.name)),
            }
        }
        if !with_data {
            return Ok(());
        }
        let Some(data) = &entry.data else { return invalid("no data") };
        let fields = match table.action_specs.iter().find(|action| action.id == data.action_id) {
            Some(action) => action.data.iter().collect::<Vec<_>>(),
            None if table.action_specs.is_empty() => table.data.iter().map(|data| &data.singleton).collect(),
            None => return invalid(format!("no action {} of {}", data.action_id, table.name)),
        };
        // Of what is of no action, some may be left out.
        let is_own = self.own.table_by_id(entry.table_id).is_some();
        if !table.action_specs.is_empty() && !is_own && fields.len() != data.fields.len() {
            return invalid(format!("{} parameters", data.fields.len()));
        }
        for field in &data.fields {
            let Some(of) = fields.iter().find(|of| of.id == field.field_id) else {
                return invalid("no such field of data");
            };
            match (of.kind.name.as_str(), &field.value) {
                ("bytes" | "uint8" | "uint16" | "uint32", Some(data_field::Value::Stream(bytes)))
                    if !of.name.starts_with("$MULTICAST_NODE") =>
                {
                    fits(bytes, of.kind.bit_width())?;
                }
                ("uint16" | "uint32", Some(data_field::Value::IntArrVal(_)))
                | ("bool", Some(data_field::Value::BoolArrVal(_) | data_field::Value::BoolVal(_)))
                | ("string", Some(data_field::Value::StrVal(_))) => {}
                _ => return invalid(format!("{} of {} has another type", of.name, table.name)),
            }
        }
        Ok(())
    }

    fn update(&self, state: &mut State, update: &Update) -> Result<(), Error> {
        if let Some(left) = &mut state.fails_after {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => return Err(err(Code::Internal, "the write failed")),
            }
        }
        let Some(entity::Entity::TableEntry(entry)) =
            update.entity.as_ref().and_then(|entity| entity.entity.as_ref())
        else {
            return invalid("no entry");
        };
        let kind = update.r#type();
        self.check(entry, kind != update::Type::Delete)?;
        let table = self.table(entry.table_id).unwrap();
        if table.name == PIPE {
            let pipe = self.one_pipe(state, entry)?.pipe_id;
            let mut written: Vec<u32> =
                entry.data.iter().flat_map(|data| &data.fields).map(|field| field.field_id).collect();
            written.sort_unstable();
            // Port and queue can be read, but not written; group and queue go together.
            if kind != update::Type::Modify || written != [1, 2] {
                return invalid(format!("{kind:?} of fields {written:?}"));
            }
            state.entries.insert((table.id, pipe.to_be_bytes().to_vec()), entry.clone());
            state.updates += 1;
            return Ok(());
        }
        let key = (entry.table_id, entry.key.as_ref().map_or(Vec::new(), |key| key.encode_to_vec()));
        let there = state.entries.contains_key(&key);
        // A register has all of its rows, and a default is there from the start.
        let always = table.table_type == "Register" || entry.is_default_entry;
        match kind {
            update::Type::Insert if there => return Err(err(Code::AlreadyExists, "it is there")),
            update::Type::Modify if !there && !always => return Err(err(Code::NotFound, "it is not there")),
            update::Type::Delete if !there => return Err(err(Code::NotFound, "it is not there")),
            update::Type::Insert => {
                let first = (entry.table_id, Vec::new());
                let rows =
                    state.entries.range(first..).take_while(|((table, _), _)| *table == entry.table_id);
                // Counted only if the table may be full.
                if state.entries.len() as u64 >= table.size && rows.count() as u64 >= table.size {
                    return Err(err(Code::ResourceExhausted, "the table is full"));
                }
                state.entries.insert(key, entry.clone());
            }
            update::Type::Modify => drop(state.entries.insert(key, entry.clone())),
            update::Type::Delete => drop(state.entries.remove(&key)),
            update::Type::Unspecified | update::Type::ModifyInc => return invalid("no such update"),
        }
        state.updates += 1;
        Ok(())
    }
}

type Stream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl BfRuntime for FakeTofino {
    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let request = request.into_inner();
        self.with(|state| {
            if state.bound != Some(request.client_id) || request.p4_name != self.name {
                return Err(Status::permission_denied("not bound"));
            }
            state.requests += 1;
            let result = |update| match self.update(state, update) {
                Ok(()) => Error::default(),
                Err(error) => error,
            };
            let errors: Vec<Error> = request.updates.iter().map(result).collect();
            match errors.iter().all(|error| error.canonical_code == 0) {
                true => Ok(Response::new(WriteResponse { status: Vec::new() })),
                false => Err(write_failed(&errors)),
            }
        })
    }

    type ReadStream = Stream<ReadResponse>;

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let mut entities = Vec::new();
        self.with(|state| {
            if state.bound != Some(request.client_id) {
                return Err(Status::permission_denied("not bound"));
            }
            for asked in request.entities {
                let Some(entity::Entity::TableEntry(asked)) = asked.entity else { continue };
                // The driver's own copy of what the chip counts is stale.
                let counts = self
                    .table(asked.table_id)
                    .is_some_and(|table| ["Register", "Counter"].contains(&table.table_type.as_str()));
                if counts && !asked.table_flags.is_some_and(|flags| flags.from_hw) {
                    continue;
                }
                let of_manager = match self.table(asked.table_id).map(|table| table.name.as_str()) {
                    Some(PIPE) => Some(self.pipe(state, &asked)?),
                    Some(PORT) => Some(self.port(&asked)?),
                    _ => None,
                };
                if let Some(entry) = of_manager {
                    entities.push(Entity { entity: Some(entity::Entity::TableEntry(entry)) });
                    continue;
                }
                if counts && asked.key.is_some() {
                    let entry = self.register_of(state, &asked)?;
                    entities.push(Entity { entity: Some(entity::Entity::TableEntry(entry)) });
                    continue;
                }
                // A table's default entry is returned only to a read that asks for it.
                let is_asked = |entry: &&TableEntry| {
                    entry.table_id == asked.table_id && entry.is_default_entry == asked.is_default_entry
                };
                let of = state.entries.values().filter(is_asked);
                entities.extend(
                    of.map(|entry| Entity { entity: Some(entity::Entity::TableEntry(entry.clone())) }),
                );
            }
            Ok(())
        })?;
        let parts: Vec<_> = entities
            .chunks(11)
            .map(|part| Ok(ReadResponse { entities: part.to_vec(), status: Vec::new() }))
            .collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<SetForwardingPipelineConfigResponse>, Status> {
        let request = request.into_inner();
        if request.action() != set_forwarding_pipeline_config_request::Action::Bind
            || request.config[0].p4_name != self.name
        {
            return Err(Status::invalid_argument("only binding"));
        }
        self.with(|state| match state.bound {
            Some(_) => Err(Status::already_exists("another client owns this program")),
            None => {
                state.bound = Some(request.client_id);
                Ok(Response::new(SetForwardingPipelineConfigResponse::default()))
            }
        })
    }

    async fn get_forwarding_pipeline_config(
        &self,
        _: Request<GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<GetForwardingPipelineConfigResponse>, Status> {
        let config = ForwardingPipelineConfig {
            p4_name: self.name.into(),
            bfruntime_info: self.program.to_vec(),
            profiles: Vec::new(),
        };
        let mut own = own();
        if let Some(lacking) = self.with(|state| state.lacks) {
            own["tables"].as_array_mut().unwrap().retain(|table| table["name"] != lacking);
        }
        let own = NonP4Config { bfruntime_info: own.to_string().into_bytes() };
        Ok(Response::new(GetForwardingPipelineConfigResponse {
            config: vec![config],
            non_p4_config: Some(own),
        }))
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
            let mut client = None;
            while let Ok(Some(message)) = requests.message().await {
                let is_new = |state: &mut State| !state.clients.contains(&message.client_id);
                if client.is_none() && !switch.with(is_new) {
                    let _ = answers.send(Err(Status::invalid_argument("two clients of one number"))).await;
                    return;
                }
                if client.is_none() {
                    client = Some(message.client_id);
                    switch.with(|state| state.clients.push(message.client_id));
                }
                if let Some(stream_message_request::Update::Subscribe(mut subscribe)) = message.update {
                    subscribe.status = Some(dta_switch::messages::bfruntime::bfrt::Status::default());
                    let update = Some(stream_message_response::Update::Subscribe(subscribe));
                    let _ = answers.send(Ok(StreamMessageResponse { update })).await;
                }
            }
            // A client that has gone is no longer bound.
            switch.with(|state| {
                state.clients.retain(|there| Some(*there) != client);
                state.bound = state.bound.filter(|bound| Some(*bound) != client);
            });
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answered))))
    }
}
