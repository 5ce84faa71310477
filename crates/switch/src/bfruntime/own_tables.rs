//! The built-in tables of every switch: multicast nodes and groups, mirror sessions, and the traffic
//! manager's deflection.

use crate::messages::bfruntime::bfrt::*;

use super::fields::{
    data_fields, exact_key_field, number_in, single_key, stream_data_field, table_entity, table_update,
};
use super::{BfRuntime, Described};
use crate::TargetError;
use crate::bfrt_json::BfrtTable;
use crate::tables::{Holds, Item, Mirror, MirrorSide, Towards};

pub(super) const NODE: &str = "$pre.node";
pub(super) const GROUP: &str = "$pre.mgid";
pub(super) const MIRROR: &str = "$mirror.cfg";
/// Tables that each switch must have, and their fields.
const NEEDED: [(&str, &[&str]); 3] = [
    (NODE, &["$MULTICAST_NODE_ID", "$MULTICAST_RID", "$DEV_PORT"]),
    (GROUP, &["$MGID", "$MULTICAST_NODE_ID", "$MULTICAST_NODE_L1_XID_VALID", "$MULTICAST_NODE_L1_XID"]),
    (
        MIRROR,
        &[
            "$sid",
            "$session_enable",
            "$direction",
            "$ucast_egress_port",
            "$ucast_egress_port_valid",
            "$mcast_grp_a",
            "$mcast_grp_a_valid",
            "$max_pkt_len",
        ],
    ),
];

/// Per pipe: where its traffic manager sends what it would drop. Written as group and queue in it, read as port and queue.
pub(super) const PIPE: &str = "tf1.tm.pipe.cfg";
/// Per port: its group, how many of the group's queues are its own, and for each queue number that ingress
/// can choose, which queue that is, counted within the port and within the group.
const PORT: &str = "tf1.tm.port.cfg";
/// Tables that a switch with deflection must have, and their fields.
const TO_DEFLECT: [(&str, &[&str]); 2] = [
    (PIPE, &["mirror_drop_pg_id", "mirror_drop_pg_queue", "mirror_drop_dev_port", "mirror_drop_queue_nr"]),
    (PORT, &["dev_port", "pg_id", "port_queues_count", "ingress_qid_map", "egress_qid_queues"]),
];

/// The number of a key or data field; for data of actions, the first with that name.
pub(super) fn find_field(table: &BfrtTable, name: &str) -> Option<(u32, u16)> {
    let key = table.key.iter().find(|key| key.name == name).map(|key| (key.id, key.kind.bit_width()));
    let data =
        table.data.iter().map(|data| &data.singleton).chain(table.action_specs.iter().flat_map(|a| &a.data));
    let mut data = data.filter(|field| field.name == name).map(|field| (field.id, field.kind.bit_width()));
    key.or_else(|| data.next())
}

/// Where copies are made, in the switch's terms.
fn direction_of(side: MirrorSide) -> &'static str {
    match side {
        MirrorSide::Ingress => "INGRESS",
        MirrorSide::Egress => "EGRESS",
        MirrorSide::Both => "BOTH",
    }
}

fn int_array(val: Vec<u32>) -> data_field::Value {
    data_field::Value::IntArrVal(data_field::IntArray { val })
}

impl BfRuntime {
    /// Whether the switch has the required built-in tables.
    pub(super) fn check_own(&self, described: &Described) -> Result<(), TargetError> {
        let refused = |why| TargetError::Refused(format!("the switch at {} has no {why}", self.address));
        let has = |table, field: &&str| described.own_field(table, field).is_some();
        for (name, fields) in NEEDED {
            if let Some(field) = fields.iter().find(|field| !has(name, field)) {
                return Err(refused(format!("{field} in {name}")));
            }
        }
        let wanted = TO_DEFLECT.into_iter().filter(|_| !self.deflecting.is_empty());
        for (name, fields) in wanted {
            if !fields.iter().all(|field| has(name, field)) {
                return Err(refused(format!(
                    "table {name} with {}: leave `deflect` out of [switch.NAME.reporter], or use an SDE that has it",
                    fields.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// The update that makes a pipe's traffic manager deflect to a queue of a port.
    pub(super) async fn deflect_to(
        &mut self,
        described: &Described,
        pipe: u32,
        port: u32,
        queue: u32,
    ) -> Result<Update, TargetError> {
        let asked = described.own_entry(PORT, "dev_port", port, None).map(table_entity).into_iter().collect();
        let of_port = self.read_entities(asked).await?;
        let update = of_port.first().and_then(|entry| described.deflection(entry, queue)).map(|mut entry| {
            entry.entry_tgt = self.pipe_target(pipe);
            table_update(update::Type::Modify, entry)
        });
        update.ok_or_else(|| {
            TargetError::Refused(format!(
                "the switch at {} has no queue {queue} of port {port}, which `deflect` names",
                self.address
            ))
        })
    }
}

impl Described {
    fn own_field(&self, table: &str, field: &str) -> Option<(u32, u32, u16)> {
        let table = self.own.table_by_name(table)?;
        let (id, width) = find_field(table, field)?;
        Some((table.id, id, width))
    }

    /// An entry's value of a field.
    fn own_field_value<'a>(&self, entry: &'a TableEntry, table: &str, field: &str) -> Option<&'a DataField> {
        let (_, id, _) = self.own_field(table, field)?;
        data_fields(entry).find(|field| field.field_id == id)
    }

    /// The same for a numeric field.
    fn own_number(&self, entry: &TableEntry, table: &str, field: &str) -> Option<u32> {
        u32::try_from(number_in(self.own_field_value(entry, table, field)?)?).ok()
    }

    /// The same for a field with several numbers.
    fn own_numbers<'a>(&self, entry: &'a TableEntry, table: &str, field: &str) -> Option<&'a [u32]> {
        match self.own_field_value(entry, table, field)?.value.as_ref()? {
            data_field::Value::IntArrVal(ints) => Some(&ints.val),
            _ => None,
        }
    }

    /// Data of a table by the names of its fields; `None` if it lacks one.
    fn table_data<const N: usize>(
        &self,
        table: &str,
        action_id: u32,
        fields: [(&str, data_field::Value); N],
    ) -> Option<TableData> {
        let field = |(name, value)| {
            let (_, field_id, _) = self.own_field(table, name)?;
            Some(DataField { field_id, value: Some(value) })
        };
        Some(TableData { action_id, fields: fields.into_iter().map(field).collect::<Option<_>>()? })
    }

    fn encode_number(&self, table: &str, field: &str, value: u32) -> Option<data_field::Value> {
        let (_, id, width) = self.own_field(table, field)?;
        stream_data_field(id, value.into(), width).value
    }

    fn own_entry(&self, table: &str, key: &str, id: u32, data: Option<TableData>) -> Option<TableEntry> {
        let (table_id, key, width) = self.own_field(table, key)?;
        let key = Some(TableKey { fields: vec![exact_key_field(key, id.into(), width)] });
        Some(TableEntry { table_id, key, data, ..TableEntry::default() })
    }

    /// The entry for a node, a group or a mirror session; without contents, only its key.
    pub(super) fn encode_own(&self, item: &Item, holds: Option<&Holds>) -> Option<TableEntry> {
        let data = match (item, holds) {
            (_, None) => None,
            (Item::Node(_), Some(Holds::Copies(copies))) => Some(self.encode_node(copies)?),
            (Item::Group(_), Some(Holds::Copies(nodes))) => Some(self.encode_group(nodes)?),
            (Item::Clone(_), Some(Holds::Mirror(mirror))) => Some(self.encode_mirror(mirror)?),
            _ => return None,
        };
        match item {
            Item::Node(id) => self.own_entry(NODE, "$MULTICAST_NODE_ID", *id, data),
            Item::Group(id) => self.own_entry(GROUP, "$MGID", *id, data),
            Item::Clone(id) => self.own_entry(MIRROR, "$sid", *id, data),
            Item::Row { .. } | Item::Default { .. } | Item::Deflection(_) => None,
        }
    }

    /// A node: all ports that receive a copy with its replication id.
    fn encode_node(&self, copies: &[(u32, u32)]) -> Option<TableData> {
        let (_, rid) = copies.first()?;
        let rid = self.encode_number(NODE, "$MULTICAST_RID", *rid)?;
        let ports = int_array(copies.iter().map(|(port, _)| *port).collect());
        self.table_data(NODE, 0, [("$MULTICAST_RID", rid), ("$DEV_PORT", ports)])
    }

    /// A group: its nodes, without excluded ports.
    fn encode_group(&self, nodes: &[(u32, u32)]) -> Option<TableData> {
        let val = vec![false; nodes.len()];
        let fields = [
            ("$MULTICAST_NODE_ID", int_array(nodes.iter().map(|(node, _)| *node).collect())),
            ("$MULTICAST_NODE_L1_XID_VALID", data_field::Value::BoolArrVal(data_field::BoolArray { val })),
            ("$MULTICAST_NODE_L1_XID", int_array(vec![0; nodes.len()])),
        ];
        self.table_data(GROUP, 0, fields)
    }

    fn encode_mirror(&self, mirror: &Mirror) -> Option<TableData> {
        let action =
            self.own.table_by_name(MIRROR)?.action_specs.iter().find(|action| action.name == "$normal")?;
        let (name, valid, to) = match mirror.to {
            Towards::Port(port) => ("$ucast_egress_port", "$ucast_egress_port_valid", port),
            Towards::Group(group) => ("$mcast_grp_a", "$mcast_grp_a_valid", group),
        };
        let fields = [
            ("$session_enable", data_field::Value::BoolVal(true)),
            ("$direction", data_field::Value::StrVal(direction_of(mirror.at).into())),
            (name, self.encode_number(MIRROR, name, to)?),
            (valid, data_field::Value::BoolVal(true)),
            ("$max_pkt_len", self.encode_number(MIRROR, "$max_pkt_len", mirror.longest.into())?),
        ];
        self.table_data(MIRROR, action.id, fields)
    }

    /// A pipe's entry that deflects to a queue of a port; `None` if the port has no such queue.
    fn deflection(&self, port: &TableEntry, queue: u32) -> Option<TableEntry> {
        let group = self.own_number(port, PORT, "pg_id")?;
        if queue >= self.own_number(port, PORT, "port_queues_count")? {
            return None;
        }
        let first_of = |name: &str| self.own_numbers(port, PORT, name)?.first().copied();
        // The same queue twice, within the group and within the port, gives the port's first queue in the
        // group.
        let before = first_of("egress_qid_queues")?.checked_sub(first_of("ingress_qid_map")?)?;
        let fields = [("mirror_drop_pg_id", group), ("mirror_drop_pg_queue", before + queue)];
        let [group, queue] = fields.map(|(name, value)| Some((name, self.encode_number(PIPE, name, value)?)));
        let data = Some(self.table_data(PIPE, 0, [group?, queue?])?);
        let table_id = self.own.table_by_name(PIPE)?.id;
        Some(TableEntry { table_id, data, is_default_entry: true, ..TableEntry::default() })
    }

    /// An entry of one of these tables as an item; `None` for one of the program, or if not described.
    pub(super) fn decode_own(&self, entry: &TableEntry) -> Option<(Item, Holds)> {
        let table = self.own.table_by_id(entry.table_id)?;
        let is = |name| self.own.table_by_name(name).is_some_and(|own| own.id == table.id);
        let node = |node: &u32| (*node, 0);
        if is(NODE) {
            let rid = self.own_number(entry, NODE, "$MULTICAST_RID")?;
            let ports = self.own_numbers(entry, NODE, "$DEV_PORT")?;
            let mut copies: Vec<(u32, u32)> = ports.iter().map(|port| (*port, rid)).collect();
            copies.sort_unstable();
            return Some((Item::Node(single_key(entry)?), Holds::Copies(copies)));
        }
        if is(GROUP) {
            let nodes = self.own_numbers(entry, GROUP, "$MULTICAST_NODE_ID")?.iter().map(node).collect();
            return Some((Item::Group(single_key(entry)?), Holds::Copies(nodes)));
        }
        if is(MIRROR) {
            return Some((Item::Clone(single_key(entry)?), Holds::Mirror(self.decode_mirror(entry)?)));
        }
        if !is(PIPE) {
            return None;
        }
        let port = self.own_number(entry, PIPE, "mirror_drop_dev_port")?;
        let queue = self.own_number(entry, PIPE, "mirror_drop_queue_nr")?;
        Some((Item::Deflection(entry.entry_tgt.as_ref()?.pipe_id), Holds::Queue { port, queue }))
    }

    fn decode_mirror(&self, entry: &TableEntry) -> Option<Mirror> {
        let of = |name: &str| self.own_field_value(entry, MIRROR, name)?.value.as_ref();
        let number_of = |name: &str| self.own_number(entry, MIRROR, name);
        let to = match of("$mcast_grp_a_valid") {
            Some(data_field::Value::BoolVal(true)) => Towards::Group(number_of("$mcast_grp_a")?),
            _ => Towards::Port(number_of("$ucast_egress_port")?),
        };
        let Some(data_field::Value::StrVal(direction)) = of("$direction") else { return None };
        let at = [MirrorSide::Ingress, MirrorSide::Egress, MirrorSide::Both]
            .into_iter()
            .find(|at| direction_of(*at) == direction)?;
        Some(Mirror { to, at, longest: u16::try_from(number_of("$max_pkt_len")?).ok()? })
    }
}
