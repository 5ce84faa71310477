//! Displays a reporter's table rows as text or JSON. Numbers are the switch's.

use std::net::Ipv4Addr;

use dta_cli::table::TextTable;
use dta_proto::program::Mac;
use serde_json::{Map, Value, json};

use dta_switch::schema::{Used, UsedTable, all_ones};
use dta_switch::tables::{Holds, Item, Match, MirrorSide, SwitchUpdate, Tables, Towards};

/// A description of one item: table, key, and contents.
struct Words {
    table: String,
    key: Vec<(String, Value)>,
    holds: Map<String, Value>,
}

/// A number in its usual notation, by field name and width.
fn number_json(name: &str, width: u16, value: u128) -> Value {
    let is_mac = width == 48;
    let is_ip = width == 32 && ["source", "destination", "source_ip", "destination_ip"].contains(&name);
    match u64::try_from(value) {
        Ok(value) if is_mac => {
            let mut mac = [0; 6];
            mac.copy_from_slice(&value.to_be_bytes()[2..]);
            json!(Mac(mac).to_string())
        }
        Ok(value) if is_ip => json!(Ipv4Addr::from(u32::try_from(value).unwrap_or_default()).to_string()),
        Ok(value) if name.ends_with("mask") => json!(format!("{value:#x}")),
        Ok(value) => json!(value),
        Err(_) => json!(value.to_string()),
    }
}

fn match_json(name: &str, width: u16, of: Match) -> Option<Value> {
    let number = |value| number_json(name, width, value);
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let all = all_ones(width);
    Some(match of {
        Match::Exact(value) => number(value),
        Match::Prefix { value, len } => json!(format!("{}/{len}", text(number(value)))),
        Match::Masked { mask: 0, .. } => return None,
        Match::Masked { value, mask } if mask == all => number(value),
        Match::Masked { value, mask } => json!(format!("{}&{}", text(number(value)), text(number(mask)))),
        Match::Range { low: 0, high } if high == all => return None,
        Match::Range { low, high } if low == high => number(low),
        Match::Range { low, high } => json!(format!("{low}-{high}")),
    })
}

fn describe_item(used: &Used, item: &Item, holds: &Holds) -> Words {
    let table = |name: &str| used.tables.iter().find(|table| table.name == name);
    let numbered = |table: &str, number: u32| (table.to_owned(), vec![("number".to_owned(), json!(number))]);
    let (name, key) = match item {
        Item::Node(id) => numbered("multicast-node", *id),
        Item::Group(id) => numbered("multicast-group", *id),
        Item::Clone(id) => numbered("clone-session", *id),
        Item::Deflection(pipe) => ("deflection".into(), vec![("pipe".into(), json!(pipe))]),
        Item::Default { table } => (table.clone(), vec![]),
        Item::Row { table: name, key, order } => {
            let fields = table(name).map_or(&[][..], |table| table.key);
            let of = |((name, _, width), field): (&(&'static str, _, u16), &Match)| {
                Some(((*name).to_owned(), match_json(name, *width, *field)?))
            };
            let mut words: Vec<_> = fields.iter().zip(key).filter_map(of).collect();
            if *order != 0 {
                words.push(("order".into(), json!(order)));
            }
            (name.clone(), words)
        }
    };
    Words { holds: contents_json(table(&name), holds), table: name, key }
}

fn contents_json(table: Option<&UsedTable>, holds: &Holds) -> Map<String, Value> {
    let mut words = Map::new();
    match holds {
        Holds::Copies(copies) => {
            let copy = |(port, replica): &(u32, u32)| json!({ "port": port, "replica": replica });
            words.insert("copies".into(), copies.iter().map(copy).collect());
        }
        Holds::Mirror(mirror) => {
            let (to, number) = match mirror.to {
                Towards::Port(port) => ("port", port),
                Towards::Group(group) => ("group", group),
            };
            let at = match mirror.at {
                MirrorSide::Ingress => "ingress",
                MirrorSide::Egress => "egress",
                MirrorSide::Both => "both",
            };
            words.insert(to.into(), json!(number));
            words.insert("at".into(), json!(at));
            words.insert("longest".into(), json!(mirror.longest));
        }
        Holds::Queue { port, queue } => {
            words.insert("port".into(), json!(port));
            words.insert("queue".into(), json!(queue));
        }
        Holds::Action { name, params } => {
            let action = table.and_then(|table| table.actions.iter().find(|action| action.name == name));
            let fields = action.map_or(&[][..], |action| action.params);
            let of = |((name, width), value): (&(&'static str, u16), &u128)| {
                ((*name).to_owned(), number_json(name, *width, *value))
            };
            words.insert("action".into(), json!(name));
            let params: Map<String, Value> = fields.iter().zip(params).map(of).collect();
            words.insert("params".into(), Value::Object(params));
        }
    }
    words
}

impl Words {
    fn into_json(self) -> Value {
        let mut object = Map::new();
        object.insert("table".into(), json!(self.table));
        object.insert("key".into(), Value::Object(self.key.into_iter().collect()));
        object.extend(self.holds);
        Value::Object(object)
    }

    fn into_row(self) -> [String; 3] {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let pairs = |all: &mut dyn Iterator<Item = (&String, &Value)>| {
            all.map(|(name, value)| format!("{name} {}", text(value))).collect::<Vec<_>>().join(", ")
        };
        let key = pairs(&mut self.key.iter().map(|(name, value)| (name, value)));
        let holds = match (self.holds.get("action"), self.holds.get("params"), self.holds.get("copies")) {
            (Some(action), Some(Value::Object(params)), _) => {
                let params = pairs(&mut params.iter());
                let dash = if params.is_empty() { "" } else { ": " };
                format!("{}{dash}{params}", text(action))
            }
            (_, _, Some(Value::Array(copies))) => {
                let copy = |copy: &Value| format!("{} at port {}", copy["replica"], copy["port"]);
                copies.iter().map(copy).collect::<Vec<_>>().join(", ")
            }
            _ => pairs(&mut self.holds.iter()),
        };
        [self.table, key, holds]
    }
}

pub(crate) fn tables_json(used: &Used, tables: &Tables) -> Value {
    tables.iter().map(|(item, holds)| describe_item(used, item, holds).into_json()).collect()
}

/// Rows as a table; a sentence if there are none.
pub(crate) fn tables_table(used: &Used, tables: &Tables) -> String {
    if tables.is_empty() {
        return "the switch holds no reporter entries".into();
    }
    let mut shown = TextTable::new(&["table", "key", "holds"], &[]);
    for (item, holds) in tables.iter() {
        shown.add_row(describe_item(used, item, holds).into_row());
    }
    shown.to_string()
}

/// An update, in the terms used for a program's changes, and the resulting contents.
fn describe_update(update: &SwitchUpdate) -> (&'static str, &'static str, Option<&Holds>) {
    match update {
        SwitchUpdate::Insert(_, holds) => ("insert", "+", Some(holds)),
        SwitchUpdate::Modify(_, holds) => ("modify", "~", Some(holds)),
        SwitchUpdate::Delete(_) => ("delete", "-", None),
    }
}

/// Updates as a JSON array. Deletions have only table and key.
pub(crate) fn updates_json(used: &Used, updates: &[SwitchUpdate]) -> Value {
    let one = |update: &SwitchUpdate| {
        let (change, _, holds) = describe_update(update);
        let nothing = Holds::Copies(Vec::new());
        let mut entry = describe_item(used, update.updated_item(), holds.unwrap_or(&nothing)).into_json();
        if let (None, Some(entry)) = (holds, entry.as_object_mut()) {
            entry.remove("copies");
        }
        json!({ "change": change, "entry": entry })
    };
    updates.iter().map(one).collect()
}

/// Updates as a table; a sentence if there are none.
pub(crate) fn updates_table(used: &Used, updates: &[SwitchUpdate]) -> String {
    if updates.is_empty() {
        return "nothing to change: the switch holds what it should".into();
    }
    let mut shown = TextTable::new(&["", "table", "key", "holds"], &[]);
    for update in updates {
        let (_, sign, holds) = describe_update(update);
        let nothing = Holds::Copies(Vec::new());
        let [table, key, holds] =
            describe_item(used, update.updated_item(), holds.unwrap_or(&nothing)).into_row();
        shown.add_row([sign.to_owned(), table, key, holds]);
    }
    shown.to_string()
}
