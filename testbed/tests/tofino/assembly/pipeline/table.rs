//! Tables, conditions and actions as the assembly writes them.

use std::collections::BTreeMap;

use super::low_bit_mask;
use crate::assembly::{Block, Slice, parse_hex, parse_pairs, parse_pattern, parse_range};

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
    Table,
    Next(String),
}

#[derive(Clone, Debug)]
pub(super) struct AssemblyEntry {
    /// Field, mask, and the least and greatest value behind the mask.
    pub(super) keys: Vec<(Slice, u64, u64, u64)>,
    pub(super) handle: u64,
    pub(super) parameters: BTreeMap<String, u64>,
}

#[derive(Clone, Debug)]
pub(super) struct AssemblyAction {
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
pub(super) struct AssemblyTable {
    pub(super) stage: usize,
    pub(super) kind: String,
    /// Its name in the program.
    pub(super) p4: String,
    pub(super) has_key: bool,
    pub(super) gateway: Option<Gateway>,
    pub(super) entries: Vec<AssemblyEntry>,
    pub(super) actions: Vec<AssemblyAction>,
    pub(super) default_action: Option<String>,
    pub(super) default_parameters: BTreeMap<String, u64>,
    pub(super) hit: Vec<String>,
    pub(super) miss: Option<String>,
    /// Where the index of its register comes from: bits of a hash that are fields as they are.
    pub(super) index: Option<RegisterIndex>,
}

#[derive(Clone, Debug)]
pub(super) struct RegisterIndex {
    pub(super) bits: Vec<(usize, Slice)>,
    pub(super) from: usize,
    pub(super) expand: bool,
    pub(super) mask: u64,
    pub(super) shift: usize,
}

/// `[  a, b ]` or `a`: names of tables.
pub(super) fn parse_names(text: &str) -> Vec<String> {
    let text = text.trim_start_matches('[').trim_end_matches(']');
    text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

pub(super) fn parse_quoted_hex(text: &str) -> u64 {
    parse_hex(text.trim_matches('"'))
}

/// `0: field, 8: field(0..7)`: by bit.
pub(super) fn parse_fields_by_bit(text: Option<&str>) -> Vec<(usize, Slice)> {
    parse_pairs(text.unwrap_or_default())
        .into_iter()
        .map(|(bit, field)| (parse_range(bit).0, Slice::from_text(field)))
        .collect()
}

impl Gateway {
    pub(super) fn from_block(block: &Block) -> Gateway {
        let (mut rows, mut miss) = (Vec::new(), None);
        for row in &block.blocks {
            let Some((text, inline)) = row.line.split_once(':') else { continue };
            let follows = || match (inline.trim(), row.get("next")) {
                ("", Some(next)) => Follows::Next(next.to_owned()),
                ("", None) => Follows::Table,
                (next, _) => Follows::Next(next.to_owned()),
            };
            match parse_pattern(text) {
                Some((value, mask)) => rows.push((value, mask, follows())),
                None if text == "miss" => miss = Some(follows()),
                None => {}
            }
        }
        // The code of the action is in the lowest bits.
        let code = block.get("format").map(|format| parse_range(parse_pairs(format)[0].1).1 + 1);
        let payload =
            block.get("payload").zip(code).map(|(value, bits)| parse_hex(value) & low_bit_mask(bits));
        let miss = miss.unwrap_or_else(|| panic!("a condition without an end: {block:?}"));
        // The patterns begin at the lowest bit that is compared.
        let (mut bits, mut xor) =
            (parse_fields_by_bit(block.get("match")), parse_fields_by_bit(block.get("xor")));
        let lowest = bits.iter().map(|(bit, _)| *bit).min().unwrap_or(0);
        for (bit, _) in bits.iter_mut().chain(&mut xor) {
            *bit -= lowest;
        }
        Gateway { bits, xor, rows, miss, payload }
    }
}

impl AssemblyEntry {
    pub(super) fn from_block(block: &Block, order: Option<&Block>) -> AssemblyEntry {
        let parameters = block.children_under("action_parameters_values").iter().map(|one| {
            (
                one.named_value("parameter_name").unwrap_or_default().to_owned(),
                parse_quoted_hex(one.get("value").unwrap()),
            )
        });
        let keys = block.children_under("match_key_fields_values").iter().map(|key| {
            let name = key.named_value("field_name").unwrap();
            // Fields of the table, or names that the program gives them there.
            let called = format!("key_name: \"{name}\"");
            let is = |field: &&Block| field.named_value(name).is_some() || field.line.contains(&called);
            let field = order.and_then(|order| order.blocks.iter().find(is));
            let field = field.unwrap_or_else(|| panic!("{name} is no key: {order:?}"));
            let (name, about) = field.line.split_once(": ").unwrap();
            let about = parse_pairs(about);
            let of = |what: &str| about.iter().find(|(name, _)| *name == what).map(|(_, value)| *value);
            let size: usize = of("size").unwrap_or_else(|| panic!("{name} has no size")).parse().unwrap();
            let from: usize = of("start_bit").map_or(0, |bit| bit.parse().unwrap());
            let bits = (size > 1 || from > 0).then_some((from, from + size - 1));
            let mask = key.get("mask").map_or(low_bit_mask(size), parse_quoted_hex);
            let of =
                |name: &str| parse_quoted_hex(key.get(name).unwrap_or_else(|| panic!("no {name}: {key:?}")));
            let is_range = key.get("range_start").is_some();
            let (low, high) = if is_range { ("range_start", "range_end") } else { ("value", "value") };
            (Slice { name: name.to_owned(), bits }, mask, of(low), of(high))
        });
        AssemblyEntry {
            keys: keys.collect(),
            handle: parse_hex(block.get("action_handle").unwrap()),
            parameters: parameters.collect(),
        }
    }
}

impl AssemblyAction {
    /// Of `NAME(CODE, ADDRESS):`, or of `NAME:` in a table of one action.
    pub(super) fn from_block(block: &Block) -> AssemblyAction {
        let line = block.line.trim_end_matches(':');
        let (name, rest) = line.split_once('(').unwrap_or((line, "0"));
        let mut action = AssemblyAction {
            name: name.to_owned(),
            code: rest.split([',', ')']).next().unwrap().trim().parse().unwrap(),
            handle: 0,
            next: 0,
            data: Vec::new(),
            steps: Vec::new(),
        };
        for step in &block.blocks {
            if let Some(handle) = step.named_value("handle") {
                action.handle = parse_hex(handle);
            } else if let Some(next) = step.named_value("next_table") {
                action.next = next.parse().unwrap();
            } else if step.line.starts_with('{') {
                let data = parse_pairs(&step.line).into_iter();
                action.data.extend(data.map(|(name, what)| (name.to_owned(), what.to_owned())));
            } else if !step.line.split([' ', '(']).next().unwrap().ends_with(':') {
                action.steps.push(step.line.clone());
            }
        }
        action
    }
}

impl RegisterIndex {
    /// Of a table's `stateful: REGISTER(hash_dist UNIT, …)`.
    pub(super) fn from_block(block: &Block) -> Option<RegisterIndex> {
        let (_, arguments) = block.get("stateful")?.split_once('(')?;
        let unit = arguments.strip_prefix("hash_dist ")?.split(',').next()?;
        let about = parse_pairs(block.find_child("hash_dist")?.get(unit)?);
        let of = |what: &str| about.iter().find(|(name, _)| *name == what).map(|(_, value)| *value);
        let xbar = block.find_child("input_xbar")?;
        let group = xbar.find_child(&format!("hash group {}", of("hash")?))?;
        assert_eq!(group.get("seed"), Some("0x0"), "{group:?}");
        let hashes = parse_names(group.get("table")?);
        let lines = hashes.iter().flat_map(|hash| {
            let of = move |block: &&Block| block.named_value(&format!("hash {hash}")).is_some();
            xbar.blocks.iter().filter(of).flat_map(|block| &block.blocks)
        });
        let bits = lines.filter_map(|line| {
            let (bit, field) = line.line.split_once(':')?;
            Some((parse_range(bit).0, Slice::from_text(field)))
        });
        Some(RegisterIndex {
            bits: bits.collect(),
            from: 16 * (unit.trim().parse::<usize>().ok()? % 3),
            expand: of("expand").is_some(),
            mask: parse_hex(of("mask")?),
            shift: of("shift")?.parse().ok()?,
        })
    }
}

impl AssemblyTable {
    /// `data` has its actions: the block itself, or the one that it points to.
    pub(super) fn from_blocks(stage: usize, kind: &str, block: &Block, data: &Block) -> AssemblyTable {
        let order = block.find_child("p4_param_order");
        let p4 = parse_pairs(block.get("p4").unwrap_or_default());
        let gateway = if kind == "gateway" { Some(block) } else { block.find_child("gateway") };
        let entries = block
            .find_child("context_json")
            .map(|all| all.children_under("static_entries"))
            .unwrap_or_default();
        let defaults =
            data.find_child("default_action_parameters").or(block.find_child("default_action_parameters"));
        let default_parameters = defaults.into_iter().flat_map(|all| &all.blocks).map(|one| {
            let (name, value) = one.line.split_once(':').unwrap();
            (name.to_owned(), parse_quoted_hex(value.trim()))
        });
        let of_default = |block: &Block| {
            block.get("default_action").or_else(|| block.get("default_only_action")).map(str::to_owned)
        };
        AssemblyTable {
            stage,
            kind: kind.to_owned(),
            p4: p4.iter().find(|(name, _)| *name == "name").map_or("", |(_, name)| name).to_owned(),
            has_key: order.is_some(),
            gateway: gateway.map(Gateway::from_block),
            entries: entries.iter().map(|one| AssemblyEntry::from_block(one, order)).collect(),
            actions: data.children_under("actions").iter().map(AssemblyAction::from_block).collect(),
            default_action: of_default(data).or_else(|| of_default(block)),
            default_parameters: default_parameters.collect(),
            hit: block.get("hit").or_else(|| block.get("next")).map(parse_names).unwrap_or_default(),
            miss: block.get("miss").map(str::to_owned),
            index: RegisterIndex::from_block(block).or_else(|| RegisterIndex::from_block(data)),
        }
    }
}
