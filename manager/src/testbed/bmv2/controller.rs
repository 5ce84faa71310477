//! As much of a P4Runtime controller as fills a switch once: a program, entries, clone sessions and counters by the
//! names that the compiled program gives them.

use anyhow::{Context, anyhow, bail};
use p4runtime_proto::config::{P4Info, Preamble};
use p4runtime_proto::v1::p4_runtime_client::P4RuntimeClient;
use p4runtime_proto::v1::*;
use p4runtime_proto::{read_p4info, to_bytes, update_errors};
use tokio::sync::mpsc::Sender;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// The only controller there is: any id will do.
const ELECTION: Uint128 = Uint128 { high: 0, low: 1 };

/// What a field of a key has to be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Is {
    /// This number.
    Exactly(u128),
    /// This number where the mask has ones.
    Masked(u128, u128),
    /// From the first number to the second.
    Between(u128, u128),
}

/// A row of a table. What is not named in its key matches everything.
#[derive(Clone, Debug)]
pub(super) struct Row<'a> {
    pub(super) table: &'a str,
    pub(super) key: &'a [(&'a str, Is)],
    pub(super) action: &'a str,
    pub(super) params: &'a [(&'a str, u128)],
    /// Of ternary and range tables; the highest wins.
    pub(super) priority: i32,
}

/// A switch, of which this is the controller as long as it lives.
pub(super) struct Controller {
    client: P4RuntimeClient<Channel>,
    info: P4Info,
    _stream: Sender<StreamMessageRequest>,
}

fn is_called(preamble: Option<&Preamble>, name: &str) -> bool {
    preamble
        .is_some_and(|p| p.name == name || p.name.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')))
}

impl Controller {
    /// Connects to a switch, and loads a program into it.
    pub(super) async fn load(address: &str, p4info: &[u8], json: &[u8]) -> anyhow::Result<Controller> {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?;
        let mut client = P4RuntimeClient::new(endpoint.connect().await?).max_decoding_message_size(64 << 20);
        let (requests, queue) = tokio::sync::mpsc::channel(4);
        let hello = MasterArbitrationUpdate { device_id: 0, election_id: Some(ELECTION), status: None };
        let hello = stream_message_request::Update::Arbitration(hello);
        requests.send(StreamMessageRequest { update: Some(hello) }).await.context("the stream ended")?;
        let mut answers = client.stream_channel(ReceiverStream::new(queue)).await?.into_inner();
        answers.message().await?.context("the switch does not answer to arbitration")?;
        // What the switch says later is not used, but has to be taken.
        tokio::spawn(async move { while let Ok(Some(_)) = answers.message().await {} });
        let config = ForwardingPipelineConfig {
            p4info: p4info.to_vec(),
            p4_device_config: json.to_vec(),
            cookie: None,
        };
        let request = SetForwardingPipelineConfigRequest {
            device_id: 0,
            election_id: Some(ELECTION),
            action: set_forwarding_pipeline_config_request::Action::VerifyAndCommit.into(),
            config: Some(config),
        };
        client
            .set_forwarding_pipeline_config(request)
            .await
            .context("the switch does not take the program")?;
        Ok(Controller { client, info: read_p4info(p4info)?, _stream: requests })
    }

    async fn write(&mut self, kind: update::Type, entity: entity::Entity, what: &str) -> anyhow::Result<()> {
        let update = Update { r#type: kind.into(), entity: Some(Entity { entity: Some(entity) }) };
        let request = WriteRequest {
            device_id: 0,
            election_id: Some(ELECTION),
            updates: vec![update],
            ..WriteRequest::default()
        };
        let Err(status) = self.client.write(request).await else { return Ok(()) };
        let errors = update_errors(&status);
        let why = errors.first().map_or_else(|| status.message().to_owned(), |error| error.message.clone());
        Err(anyhow!("the switch does not take {what}: {why}"))
    }

    fn entry(&self, row: &Row<'_>) -> anyhow::Result<TableEntry> {
        let table = self.info.tables.iter().find(|t| is_called(t.preamble.as_ref(), row.table));
        let table = table.with_context(|| format!("the program has no table {}", row.table))?;
        // Two controls have a `forward` or an `append`: the action is one of the table's own.
        let own = |id: u32| table.action_refs.iter().any(|action| action.id == id);
        let action = self.info.actions.iter().find(|action| {
            is_called(action.preamble.as_ref(), row.action)
                && action.preamble.as_ref().is_some_and(|p| own(p.id))
        });
        let action = action.with_context(|| format!("table {} has no action {}", row.table, row.action))?;
        let mut matches = Vec::new();
        for (name, is) in row.key {
            let field = table.match_fields.iter().find(|field| field.name.rsplit('.').next() == Some(name));
            let field = field.with_context(|| format!("table {} has no key {name}", row.table))?;
            use field_match::FieldMatchType as Kind;
            let kind = match *is {
                Is::Exactly(value) => Kind::Exact(field_match::Exact { value: to_bytes(value) }),
                Is::Masked(value, mask) => Kind::Ternary(field_match::Ternary {
                    value: to_bytes(value & mask),
                    mask: to_bytes(mask),
                }),
                Is::Between(low, high) => {
                    Kind::Range(field_match::Range { low: to_bytes(low), high: to_bytes(high) })
                }
            };
            matches.push(FieldMatch { field_id: field.id, field_match_type: Some(kind) });
        }
        if action.params.len() != row.params.len() {
            bail!("action {} has {} parameters", row.action, action.params.len());
        }
        let mut params = Vec::new();
        for param in &action.params {
            let given = row.params.iter().find(|(name, _)| *name == param.name);
            let (_, value) = given.with_context(|| format!("action {} wants {}", row.action, param.name))?;
            params.push(action::Param { param_id: param.id, value: to_bytes(*value) });
        }
        let does = Action { action_id: action.preamble.as_ref().map_or(0, |p| p.id), params };
        Ok(TableEntry {
            table_id: table.preamble.as_ref().map_or(0, |p| p.id),
            r#match: matches,
            action: Some(TableAction { r#type: Some(table_action::Type::Action(does)) }),
            priority: row.priority,
            ..TableEntry::default()
        })
    }

    /// Writes a new row.
    pub(super) async fn insert(&mut self, row: &Row<'_>) -> anyhow::Result<()> {
        let entry = self.entry(row)?;
        self.write(update::Type::Insert, entity::Entity::TableEntry(entry), row.table).await
    }

    /// Takes a row away.
    pub(super) async fn delete(&mut self, row: &Row<'_>) -> anyhow::Result<()> {
        let entry = TableEntry { action: None, ..self.entry(row)? };
        self.write(update::Type::Delete, entity::Entity::TableEntry(entry), row.table).await
    }

    /// Sets what a table does where no row matches.
    pub(super) async fn set_default(&mut self, row: &Row<'_>) -> anyhow::Result<()> {
        let entry = TableEntry { is_default_action: true, ..self.entry(row)? };
        self.write(update::Type::Modify, entity::Entity::TableEntry(entry), row.table).await
    }

    /// A multicast group, or a clone session, of ports and numbers of replicas.
    pub(super) async fn copies(
        &mut self,
        is_clone: bool,
        id: u32,
        copies: &[(u32, u32)],
    ) -> anyhow::Result<()> {
        let replica = |(port, instance): &(u32, u32)| Replica {
            port_kind: Some(replica::PortKind::EgressPort(*port)),
            instance: *instance,
        };
        let replicas: Vec<Replica> = copies.iter().map(replica).collect();
        use packet_replication_engine_entry::Type as Kind;
        let kind = if is_clone {
            Kind::CloneSessionEntry(CloneSessionEntry {
                session_id: id,
                replicas,
                ..CloneSessionEntry::default()
            })
        } else {
            Kind::MulticastGroupEntry(MulticastGroupEntry { multicast_group_id: id, replicas })
        };
        let entry = PacketReplicationEngineEntry { r#type: Some(kind) };
        let entity = entity::Entity::PacketReplicationEngineEntry(entry);
        self.write(update::Type::Insert, entity, "copies").await
    }

    /// Packets that an array of counters counted, by index.
    pub(super) async fn counters(&mut self, name: &str) -> anyhow::Result<Vec<u64>> {
        let counter = self.info.counters.iter().find(|c| is_called(c.preamble.as_ref(), name));
        let counter = counter.with_context(|| format!("the program has no counter {name}"))?;
        let mut cells = vec![0; usize::try_from(counter.size).unwrap_or(0)];
        let id = counter.preamble.as_ref().map_or(0, |p| p.id);
        let entry = CounterEntry { counter_id: id, index: None, data: None };
        let entities = vec![Entity { entity: Some(entity::Entity::CounterEntry(entry)) }];
        let mut answers = self.client.read(ReadRequest { device_id: 0, entities }).await?.into_inner();
        while let Some(part) = answers.message().await? {
            for entity in part.entities {
                let Some(entity::Entity::CounterEntry(entry)) = entity.entity else { continue };
                let index = usize::try_from(entry.index.map_or(0, |index| index.index)).unwrap_or(usize::MAX);
                if let (Some(cell), Some(data)) = (cells.get_mut(index), entry.data) {
                    *cell = u64::try_from(data.packet_count).unwrap_or(0);
                }
            }
        }
        Ok(cells)
    }
}
