//! Tables, conditions and actions as the assembly writes them.

use std::collections::BTreeMap;

use super::ones;
use crate::p4_suite::assembly::{Block, Slice, hex, pairs, pattern, range};

/// A condition before a table, or by itself.
#[derive(Clone, Debug)]
pub(super) struct Gateway {
    /// Bits that are compared, and those that are added (XOR) before, by where they lie.
    pub(super) bits: Vec<(usize, Slice)>,
    pub(super) xor: Vec<(usize, Slice)>,
    /// Value, mask, and what follows.
    pub(super) rows: Vec<(u64, u64, Follows)>,
    pub(super) miss: Follows,
    /// The code of the action that a condition runs instead of the table.
    pub(super) payload: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Follows {
    /// The table is asked.
    Table,
    /// Another one is next.
    Next(String),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Field, mask, and the least and greatest value behind the mask.
    pub(super) keys: Vec<(Slice, u64, u64, u64)>,
    pub(super) handle: u64,
    pub(super) parameters: BTreeMap<String, u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Action {
    pub(super) name: String,
    /// What the table says to run it.
    pub(super) code: i64,
    pub(super) handle: u64,
    pub(super) next: usize,
    /// Names of the action's data, and what they are or where they lie.
    pub(super) data: Vec<(String, String)>,
    pub(super) steps: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) stage: usize,
    pub(super) kind: String,
    /// Its name in the program.
    pub(super) p4: String,
    pub(super) has_key: bool,
    pub(super) gateway: Option<Gateway>,
    pub(super) entries: Vec<Entry>,
    pub(super) actions: Vec<Action>,
    pub(super) default_action: Option<String>,
    pub(super) default_parameters: BTreeMap<String, u64>,
    pub(super) hit: Vec<String>,
    pub(super) miss: Option<String>,
    /// Where the index of its register comes from: bits of a hash that are fields as they are.
    pub(super) index: Option<Index>,
}

#[derive(Clone, Debug)]
pub(super) struct Index {
    pub(super) bits: Vec<(usize, Slice)>,
    pub(super) from: usize,
    pub(super) expand: bool,
    pub(super) mask: u64,
    pub(super) shift: usize,
}

/// `[  a, b ]` or `a`: names of tables.
pub(super) fn names(text: &str) -> Vec<String> {
    let text = text.trim_start_matches('[').trim_end_matches(']');
    text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

pub(super) fn unquoted(text: &str) -> u64 {
    hex(text.trim_matches('"'))
}

/// `0: field, 8: field(0..7)`: by bit.
pub(super) fn by_bit(text: Option<&str>) -> Vec<(usize, Slice)> {
    pairs(text.unwrap_or_default()).into_iter().map(|(bit, field)| (range(bit).0, Slice::of(field))).collect()
}

impl Gateway {
    pub(super) fn of(block: &Block) -> Gateway {
        let (mut rows, mut miss) = (Vec::new(), None);
        for row in &block.blocks {
            let Some((text, inline)) = row.line.split_once(':') else { continue };
            let follows = || match (inline.trim(), row.get("next")) {
                ("", Some(next)) => Follows::Next(next.to_owned()),
                ("", None) => Follows::Table,
                (next, _) => Follows::Next(next.to_owned()),
            };
            match pattern(text) {
                Some((value, mask)) => rows.push((value, mask, follows())),
                None if text == "miss" => miss = Some(follows()),
                None => {}
            }
        }
        // The code of the action is in the lowest bits.
        let code = block.get("format").map(|format| range(pairs(format)[0].1).1 + 1);
        let payload = block.get("payload").zip(code).map(|(value, bits)| hex(value) & ones(bits));
        let miss = miss.unwrap_or_else(|| panic!("a condition without an end: {block:?}"));
        // The patterns begin at the lowest bit that is compared.
        let (mut bits, mut xor) = (by_bit(block.get("match")), by_bit(block.get("xor")));
        let lowest = bits.iter().map(|(bit, _)| *bit).min().unwrap_or(0);
        for (bit, _) in bits.iter_mut().chain(&mut xor) {
            *bit -= lowest;
        }
        Gateway { bits, xor, rows, miss, payload }
    }
}

impl Entry {
    pub(super) fn of(block: &Block, order: Option<&Block>) -> Entry {
        let parameters = block.under("action_parameters_values").iter().map(|one| {
            (one.value("parameter_name").unwrap_or_default().to_owned(), unquoted(one.get("value").unwrap()))
        });
        let keys = block.under("match_key_fields_values").iter().map(|key| {
            let name = key.value("field_name").unwrap();
            // Fields of the table, or names that the program gives them there.
            let called = format!("key_name: \"{name}\"");
            let is = |field: &&Block| field.value(name).is_some() || field.line.contains(&called);
            let field = order.and_then(|order| order.blocks.iter().find(is));
            let field = field.unwrap_or_else(|| panic!("{name} is no key: {order:?}"));
            let (name, about) = field.line.split_once(": ").unwrap();
            let about = pairs(about);
            let of = |what: &str| about.iter().find(|(name, _)| *name == what).map(|(_, value)| *value);
            let size: usize = of("size").unwrap_or_else(|| panic!("{name} has no size")).parse().unwrap();
            let from: usize = of("start_bit").map_or(0, |bit| bit.parse().unwrap());
            let bits = (size > 1 || from > 0).then_some((from, from + size - 1));
            let mask = key.get("mask").map_or(ones(size), unquoted);
            let of = |name: &str| unquoted(key.get(name).unwrap_or_else(|| panic!("no {name}: {key:?}")));
            let is_range = key.get("range_start").is_some();
            let (low, high) = if is_range { ("range_start", "range_end") } else { ("value", "value") };
            (Slice { name: name.to_owned(), bits }, mask, of(low), of(high))
        });
        Entry {
            keys: keys.collect(),
            handle: hex(block.get("action_handle").unwrap()),
            parameters: parameters.collect(),
        }
    }
}

impl Action {
    /// Of `NAME(CODE, ADDRESS):`, or of `NAME:` in a table of one action.
    pub(super) fn of(block: &Block) -> Action {
        let line = block.line.trim_end_matches(':');
        let (name, rest) = line.split_once('(').unwrap_or((line, "0"));
        let mut action = Action {
            name: name.to_owned(),
            code: rest.split([',', ')']).next().unwrap().trim().parse().unwrap(),
            handle: 0,
            next: 0,
            data: Vec::new(),
            steps: Vec::new(),
        };
        for step in &block.blocks {
            if let Some(handle) = step.value("handle") {
                action.handle = hex(handle);
            } else if let Some(next) = step.value("next_table") {
                action.next = next.parse().unwrap();
            } else if step.line.starts_with('{') {
                let data = pairs(&step.line).into_iter();
                action.data.extend(data.map(|(name, what)| (name.to_owned(), what.to_owned())));
            } else if !step.line.split([' ', '(']).next().unwrap().ends_with(':') {
                action.steps.push(step.line.clone());
            }
        }
        action
    }
}

impl Index {
    /// Of a table's `stateful: REGISTER(hash_dist UNIT, …)`.
    pub(super) fn of(block: &Block) -> Option<Index> {
        let (_, arguments) = block.get("stateful")?.split_once('(')?;
        let unit = arguments.strip_prefix("hash_dist ")?.split(',').next()?;
        let about = pairs(block.find("hash_dist")?.get(unit)?);
        let of = |what: &str| about.iter().find(|(name, _)| *name == what).map(|(_, value)| *value);
        let xbar = block.find("input_xbar")?;
        let group = xbar.find(&format!("hash group {}", of("hash")?))?;
        assert_eq!(group.get("seed"), Some("0x0"), "{group:?}");
        let hashes = names(group.get("table")?);
        let lines = hashes.iter().flat_map(|hash| {
            let of = move |block: &&Block| block.value(&format!("hash {hash}")).is_some();
            xbar.blocks.iter().filter(of).flat_map(|block| &block.blocks)
        });
        let bits = lines.filter_map(|line| {
            let (bit, field) = line.line.split_once(':')?;
            Some((range(bit).0, Slice::of(field)))
        });
        Some(Index {
            bits: bits.collect(),
            from: 16 * (unit.trim().parse::<usize>().ok()? % 3),
            expand: of("expand").is_some(),
            mask: hex(of("mask")?),
            shift: of("shift")?.parse().ok()?,
        })
    }
}

impl Table {
    /// `data` has its actions: the block itself, or the one that it points to.
    pub(super) fn of(stage: usize, kind: &str, block: &Block, data: &Block) -> Table {
        let order = block.find("p4_param_order");
        let p4 = pairs(block.get("p4").unwrap_or_default());
        let gateway = if kind == "gateway" { Some(block) } else { block.find("gateway") };
        let entries = block.find("context_json").map(|all| all.under("static_entries")).unwrap_or_default();
        let defaults = data.find("default_action_parameters").or(block.find("default_action_parameters"));
        let default_parameters = defaults.into_iter().flat_map(|all| &all.blocks).map(|one| {
            let (name, value) = one.line.split_once(':').unwrap();
            (name.to_owned(), unquoted(value.trim()))
        });
        let of_default = |block: &Block| {
            block.get("default_action").or_else(|| block.get("default_only_action")).map(str::to_owned)
        };
        Table {
            stage,
            kind: kind.to_owned(),
            p4: p4.iter().find(|(name, _)| *name == "name").map_or("", |(_, name)| name).to_owned(),
            has_key: order.is_some(),
            gateway: gateway.map(Gateway::of),
            entries: entries.iter().map(|one| Entry::of(one, order)).collect(),
            actions: data.under("actions").iter().map(Action::of).collect(),
            default_action: of_default(data).or_else(|| of_default(block)),
            default_parameters: default_parameters.collect(),
            hit: block.get("hit").or_else(|| block.get("next")).map(names).unwrap_or_default(),
            miss: block.get("miss").map(str::to_owned),
            index: Index::of(block).or_else(|| Index::of(data)),
        }
    }
}
