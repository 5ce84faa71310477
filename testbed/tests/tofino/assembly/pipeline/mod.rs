//! What the tables and registers of an assembly do with a packet.
//!
//! Of the chip this has containers of fields, conditions, tables with constant entries, actions, and the stateful
//! ALUs. All actions of a stage see what was there before it. It has no deparser: fields are taken out, and put in if not by
//! the [`parser`](super::parser). Tables that the control plane fills miss, but for the entries that are put into them. What a hash gives
//! is not computed, and nobody may ask for it.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::parser::Parsed;
use super::{Block, Slice, parse_hex, parse_pairs, parse_range};
use table::{AssemblyAction, AssemblyEntry, AssemblyTable, Follows};

mod register;
mod table;

pub(crate) use register::Register;

/// The stage behind the last one: what the deparser finds.
pub(crate) const DEPARSER: usize = 12;

/// Bits of a container that hold bits of a field, in some of the stages.
#[derive(Clone, Debug)]
struct FieldPart {
    /// The field's bit that is the lowest here.
    first: usize,
    stages: (usize, usize),
    container: String,
    low: usize,
    high: usize,
}

/// What is in a container. Of the bits in `hashed` nobody knows it: they are of a hash.
#[derive(Clone, Copy, Debug, Default)]
struct Content {
    value: u32,
    hashed: u32,
}

type Containers = BTreeMap<String, Content>;

/// One direction of a pipeline: its program and its state.
#[derive(Clone, Debug)]
pub(crate) struct AssemblyPipeline {
    fields: Rc<BTreeMap<String, Vec<FieldPart>>>,
    tables: BTreeMap<String, Rc<AssemblyTable>>,
    /// The table that a packet comes to first.
    first: String,
    /// Those of the stateful ALUs, by the names that the tables call them by.
    pub(crate) registers: BTreeMap<String, Register>,
    /// Those that are not there are 0.
    containers: Containers,
}

fn is_container(name: &str) -> bool {
    let name = name.trim_start_matches(['T', 'M', 'D']);
    name.strip_prefix(['W', 'H', 'B'])
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn container_width(container: &str) -> usize {
    match container.trim_start_matches(['T', 'M', 'D']).as_bytes()[0] {
        b'W' => 32,
        b'H' => 16,
        _ => 8,
    }
}

fn low_bit_mask(bits: usize) -> u64 {
    u64::MAX >> (64 - bits)
}

/// The parts of a text between commas outside of brackets.
fn split_commas(text: &str) -> Vec<&str> {
    let (mut parts, mut from, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    parts
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(_) => Some(parse_hex(text)),
        None => text.parse().ok(),
    }
}

fn asks_for_hash(table: &str, field: &Slice) -> ! {
    panic!("{table} asks for a hash: {field:?}")
}

/// `FIELD: { stage 0..8: H12(0..8) }`, or `FIELD: H12(0..8)`.
fn parse_fields(block: &Block) -> BTreeMap<String, Vec<FieldPart>> {
    let mut fields: BTreeMap<String, Vec<FieldPart>> = BTreeMap::new();
    for line in &block.blocks {
        let Some((name, places)) = line.line.split_once(": ") else { continue };
        let field = Slice::from_text(name);
        let places = places.trim();
        let places =
            if places.starts_with('{') { parse_pairs(places) } else { vec![("stage 0..12", places)] };
        for (stages, place) in places {
            let place = Slice::from_text(place);
            let (low, high) = place.bits.unwrap_or((0, container_width(&place.name) - 1));
            fields.entry(field.name.clone()).or_default().push(FieldPart {
                first: field.bits.map_or(0, |(low, _)| low),
                stages: parse_range(stages.trim_start_matches("stage ")),
                container: place.name,
                low,
                high,
            });
        }
    }
    fields
}

/// What an action computes with.
struct Running<'a> {
    stage: usize,
    action: &'a AssemblyAction,
    parameters: &'a BTreeMap<String, u64>,
    output: u32,
}

impl AssemblyPipeline {
    /// Of `ingress` or `egress`.
    ///
    /// # Panics
    /// The assembly has something that is not known here.
    pub(crate) fn from_assembly(text: &str, direction: &str) -> AssemblyPipeline {
        let blocks = Block::parse_all(text);
        let mut pipeline = AssemblyPipeline {
            fields: Rc::default(),
            tables: BTreeMap::new(),
            first: String::new(),
            registers: BTreeMap::new(),
            containers: BTreeMap::new(),
        };
        for block in &blocks {
            let mut words = block.line.trim_end_matches(':').split(' ');
            match (words.next(), words.next(), words.next()) {
                (Some("phv"), Some(of), None) if of == direction => {
                    pipeline.fields = Rc::new(parse_fields(block))
                }
                (Some("stage"), Some(stage), Some(of)) if of == direction => {
                    pipeline.read_stage(stage.parse().unwrap(), block);
                }
                _ => {}
            }
        }
        assert!(!pipeline.tables.is_empty(), "no {direction}");
        pipeline
    }

    fn read_stage(&mut self, stage: usize, block: &Block) {
        // The lowest number among its tables is the first.
        let mut lowest = u64::MAX;
        for part in &block.blocks {
            let mut words = part.line.trim_end_matches(':').split(' ');
            let (Some(kind), Some(name)) = (words.next(), words.next()) else { continue };
            match kind {
                "stateful" => {
                    self.registers.insert(name.to_owned(), Register::from_block(part));
                }
                "exact_match" | "ternary_match" | "hash_action" | "gateway" => {
                    let indirect = part.get("indirect").and_then(|name| {
                        let of = format!("ternary_indirect {name}:");
                        block.blocks.iter().find(|block| block.line == of)
                    });
                    let table = AssemblyTable::from_blocks(stage, kind, part, indirect.unwrap_or(part));
                    let place = words.next().and_then(parse_number).unwrap_or(u64::MAX);
                    if stage == 0 && place < lowest {
                        (lowest, self.first) = (place, name.to_owned());
                    }
                    self.tables.insert(name.to_owned(), Rc::new(table));
                }
                _ => {}
            }
        }
    }

    /// The table of this name in the program, or the one that has this action.
    ///
    /// # Panics
    /// There is none.
    pub(crate) fn find_table(&self, name: &str) -> String {
        let is = |table: &AssemblyTable| {
            table.p4 == name || table.actions.iter().any(|action| action.name == name)
        };
        let found = self.tables.iter().find(|(_, table)| is(table));
        found.unwrap_or_else(|| panic!("no table or action {name}")).0.clone()
    }

    /// The table that a packet comes to first.
    pub(crate) fn first_table(&self) -> String {
        self.first.clone()
    }

    /// Whether a field lies somewhere in a stage.
    pub(crate) fn has_field(&self, field: &str, stage: usize) -> bool {
        let all = self.fields.get(&Slice::from_text(field).name).map(Vec::as_slice).unwrap_or_default();
        all.iter().any(|part| (part.stages.0..=part.stages.1).contains(&stage))
    }

    /// The stage that a table is in.
    ///
    /// # Panics
    /// There is no such table.
    pub(crate) fn stage_of_table(&self, table: &str) -> usize {
        self.tables[table].stage
    }

    /// The register of this name in the program.
    ///
    /// # Panics
    /// There is none.
    pub(crate) fn register_mut(&mut self, name: &str) -> &mut Register {
        let suffix = format!(".{name}");
        let found = self.registers.iter_mut().find(|(register, _)| register.ends_with(&suffix));
        found.unwrap_or_else(|| panic!("no register {name}")).1
    }

    /// Puts an entry into a table, as the control plane does: its key, its action by the end of its name, and all parameters
    /// of that.
    ///
    /// # Panics
    /// There is no such table or action.
    pub(crate) fn add_table_entry(
        &mut self,
        table: &str,
        key: &[(&str, u64)],
        action: &str,
        parameters: &[(&str, u64)],
    ) {
        let name = self.find_table(table);
        let table = Rc::make_mut(self.tables.get_mut(&name).unwrap());
        let found = table.actions.iter().find(|one| one.name.ends_with(action));
        let handle = found.unwrap_or_else(|| panic!("{name} has no action {action}")).handle;
        table.entries.push(AssemblyEntry {
            keys: key
                .iter()
                .map(|(field, value)| (Slice::from_text(field), u64::MAX, *value, *value))
                .collect(),
            handle,
            parameters: parameters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        });
    }

    /// Empties the containers, as before another packet. Registers stay as they are.
    pub(crate) fn clear_containers(&mut self) {
        self.containers.clear();
    }

    /// Takes a packet from the parser. Registers stay as they are.
    pub(crate) fn load_parsed(&mut self, parsed: &Parsed) {
        let content = |value: &u32| Content { value: *value, hashed: 0 };
        self.containers =
            parsed.containers.iter().map(|(name, value)| (name.clone(), content(value))).collect();
    }

    fn field_parts(&self, name: &str, stage: usize) -> Vec<FieldPart> {
        let all = self.fields.get(name).map(Vec::as_slice).unwrap_or_default();
        let is_here = |part: &&FieldPart| (part.stages.0..=part.stages.1).contains(&stage);
        let parts: Vec<FieldPart> = all.iter().filter(is_here).cloned().collect();
        assert!(!parts.is_empty(), "no field {name} in stage {stage}");
        parts
    }

    /// Puts a value into a field, where it lies in a stage, or into a container.
    ///
    /// # Panics
    /// It is not there in that stage.
    pub(crate) fn set(&mut self, field: &str, stage: usize, value: u64) {
        let slice = Slice::from_text(field);
        if is_container(&slice.name) {
            let content = Content { value: value as u32, hashed: 0 };
            self.containers.insert(slice.name, content);
            return;
        }
        let parts = self.field_parts(&slice.name, stage);
        write_field(&mut self.containers, &parts, slice.bits, Some(value));
    }

    /// What a field has in a stage.
    ///
    /// # Panics
    /// It is not there in that stage, or is of a hash.
    pub(crate) fn get(&self, field: &str, stage: usize) -> u64 {
        self.read(&Slice::from_text(field), stage).unwrap_or_else(|| panic!("{field} is of a hash"))
    }

    /// `None`: of a hash.
    fn read(&self, slice: &Slice, stage: usize) -> Option<u64> {
        let bits = slice.bits.unwrap_or((0, 63));
        if is_container(&slice.name) {
            let there = self.containers.get(&slice.name).copied().unwrap_or_default();
            let of = |value: u32| u64::from(value) >> bits.0 & low_bit_mask(bits.1 - bits.0 + 1);
            return (of(there.hashed) == 0).then(|| of(there.value));
        }
        let (mut value, mut hashed) = (0, 0);
        for part in self.field_parts(&slice.name, stage) {
            let there = self.containers.get(&part.container).copied().unwrap_or_default();
            let of = |value: u32| {
                (u64::from(value) >> part.low & low_bit_mask(part.high - part.low + 1)) << part.first
            };
            value |= of(there.value);
            hashed |= of(there.hashed);
        }
        let of = |value: u64| value >> bits.0 & low_bit_mask(bits.1 - bits.0 + 1);
        (of(hashed) == 0).then(|| of(value))
    }

    /// Takes a packet from a table on until the program ends, or to the first table of a stage.
    ///
    /// # Panics
    /// It comes to something that is not known here.
    pub(crate) fn run(&mut self, from: &str, until: usize) {
        self.run_and_look(from, until, &mut |_, _| {});
    }

    /// As [`AssemblyPipeline::run`], and looks at what the packet has before each stage that it comes to, and at the end.
    ///
    /// # Panics
    /// As that.
    pub(crate) fn run_and_look(
        &mut self,
        from: &str,
        until: usize,
        look: &mut dyn FnMut(usize, &AssemblyPipeline),
    ) {
        let mut next = from.to_owned();
        while next != "END" && self.tables[&next].stage < until {
            // All see what was there before the stage.
            let stage = self.tables[&next].stage;
            look(stage, self);
            let mut after = self.containers.clone();
            while next != "END" && self.tables[&next].stage == stage {
                next = self.apply_table(&next, &mut after);
            }
            self.containers = after;
        }
        look(until, self);
    }

    /// Takes a packet through one table.
    pub(crate) fn run_table(&mut self, name: &str) {
        let mut after = self.containers.clone();
        self.apply_table(name, &mut after);
        self.containers = after;
    }

    /// One table: gives the next one.
    fn apply_table(&mut self, name: &str, after: &mut Containers) -> String {
        let table = Rc::clone(self.tables.get(name).unwrap_or_else(|| panic!("no table {name}")));
        let next = |names: &[String], at: usize| names.get(at).cloned().unwrap_or_else(|| "END".to_owned());
        let by_code = |code: u64| table.actions.iter().find(|action| action.code == code as i64);
        let none = BTreeMap::new();
        if let Some(gateway) = &table.gateway {
            let place = |bits: &[(usize, Slice)]| {
                bits.iter().fold(0, |value, (bit, field)| {
                    let is = self.read(field, table.stage).unwrap_or_else(|| asks_for_hash(name, field));
                    value | is << bit
                })
            };
            let value = place(&gateway.bits) ^ place(&gateway.xor);
            let row = gateway.rows.iter().find(|(wanted, mask, _)| value & mask == wanted & mask);
            if let Follows::Next(next) = row.map_or(&gateway.miss, |(_, _, follows)| follows) {
                // A table without a key that is never asked runs its action by the condition alone.
                let code = gateway.payload.or((table.kind == "hash_action").then_some(0));
                if let Some(action) = code.and_then(by_code) {
                    self.run_action(&table, action, &none, after);
                }
                return next.clone();
            }
        }
        if table.kind == "hash_action" {
            if let Some(action) = by_code(0) {
                self.run_action(&table, action, &none, after);
            }
            return next(&table.hit, 0);
        }
        let found = table.entries.iter().find(|entry| {
            entry.keys.iter().all(|(field, mask, low, high)| {
                let is = || self.read(field, table.stage).unwrap_or_else(|| asks_for_hash(name, field));
                *mask == 0 || (*low..=*high).contains(&(is() & mask))
            })
        });
        match found.filter(|_| table.has_key) {
            Some(entry) => {
                let action = table.actions.iter().find(|action| action.handle == entry.handle).unwrap();
                self.run_action(&table, action, &entry.parameters, after);
                next(&table.hit, action.next)
            }
            None => {
                let default = table.default_action.as_deref();
                if let Some(action) = table.actions.iter().find(|action| Some(&*action.name) == default) {
                    self.run_action(&table, action, &table.default_parameters, after);
                }
                table.miss.clone().unwrap_or_else(|| next(&table.hit, 0))
            }
        }
    }

    fn run_action(
        &mut self,
        table: &AssemblyTable,
        action: &AssemblyAction,
        parameters: &BTreeMap<String, u64>,
        after: &mut Containers,
    ) {
        let mut running = Running { stage: table.stage, action, parameters, output: 0 };
        // The register first, as the others take what it gives. Counters are calls, too.
        for call in action.steps.iter().filter(|step| step.contains("$salu.")) {
            let Some((register, arguments)) = call.split_once('(').filter(|(name, _)| !name.contains(' '))
            else {
                continue;
            };
            let arguments = split_commas(arguments.trim_end_matches(')'));
            let register = self.registers.get(register).unwrap_or_else(|| panic!("no register {register}"));
            let cell = match parse_number(arguments[1]) {
                Some(cell) => cell as u32,
                None => self.register_cell(table, register),
            };
            let word = |fields: &[(usize, Slice)]| {
                fields.iter().fold(0, |word, (bit, field)| {
                    let value = self.read(field, table.stage);
                    word | (value.unwrap_or_else(|| panic!("{call} takes a hash")) as u32) << bit
                })
            };
            let phv = [word(&register.phv[0]), word(&register.phv[1])];
            let name = call.split('(').next().unwrap();
            running.output = self.registers.get_mut(name).unwrap().run(arguments[0], cell, phv);
        }
        for step in &action.steps {
            let Some((what, arguments)) = step.split_once(' ').filter(|(name, _)| !name.contains('(')) else {
                continue;
            };
            let arguments = split_commas(arguments);
            let mut to = Slice::from_text(arguments[0]);
            let of = |text: &str| self.read_operand(&running, text);
            let width = match is_container(&to.name) {
                true => container_width(&to.name),
                false => container_width(&self.field_parts(&to.name, table.stage + 1)[0].container),
            };
            // Whole containers are computed with: the action's data lies at the bits where it belongs.
            let in_place = |text: &str| {
                let at = action.data.iter().find(|(alias, _)| alias == text);
                let low = at.and_then(|(_, at)| Slice::from_text(at).bits).map_or(0, |(low, _)| low);
                of(text).map(|value| value << (low % width))
            };
            let both = |op: fn(u64, u64) -> u64| Some(op(in_place(arguments[1])?, in_place(arguments[2])?));
            let value = match what {
                "set" => of(arguments[1]),
                "or" => both(|a, b| a | b),
                "xor" => both(|a, b| a ^ b),
                "and" => both(|a, b| a & b),
                "add" => both(u64::wrapping_add),
                "sub" => both(u64::wrapping_sub),
                "shl" => both(|a, bits| a << bits),
                "shru" => both(|a, bits| a >> bits),
                "bitmasked-set" => {
                    let about = |is: &dyn Fn(&str, &Slice) -> bool| {
                        let mut all = action.data.iter().map(|(alias, at)| (alias, Slice::from_text(at)));
                        all.find(|(alias, at)| is(alias, at)).unwrap_or_else(|| panic!("no mask: {step}"))
                    };
                    // The mask is in the slot behind that of the data, or as many bits behind it as the container has.
                    let (_, at) = about(&|alias, _| alias == arguments[1]);
                    let low = |at: &Slice| at.bits.map_or(0, |(low, _)| low);
                    let slot = at.name.trim_end_matches(|digit: char| digit.is_ascii_digit());
                    let behind = match at.name[slot.len()..].parse::<usize>() {
                        Ok(number) => (format!("{slot}{}", number + 1), low(&at)),
                        Err(_) => (at.name.clone(), low(&at) + width),
                    };
                    let (name, _) = about(&|_, at| at.name == behind.0 && low(at) == behind.1);
                    let (new, mask) = (in_place(arguments[1]), in_place(name));
                    let old = of(arguments[2]);
                    new.zip(mask).zip(old).map(|((new, mask), old)| new & mask | old & !mask)
                }
                // Some bits of a container turned round, or of a number, and the others of a second one.
                "deposit-field" => {
                    let from = Slice::from_text(arguments[1]);
                    let (low, high) = to.bits.unwrap_or_else(|| panic!("to which bits? {step}"));
                    assert!(is_container(&to.name), "{step}");
                    let value = match parse_number(arguments[1]) {
                        Some(value) => Some(value << low),
                        None => {
                            let (first, _) =
                                from.bits.unwrap_or_else(|| panic!("turned by how much? {step}"));
                            let turn = (width + first - low) % width;
                            let value = self.read(&Slice { bits: None, ..from }, table.stage);
                            value.map(|value| value >> turn | value << (width - turn))
                        }
                    };
                    let inside = low_bit_mask(high - low + 1) << low;
                    let others = match arguments.get(2) {
                        Some(second) => of(second),
                        None if inside == low_bit_mask(width) => Some(0),
                        None => of(&to.name),
                    };
                    to.bits = None;
                    value.zip(others).map(|(value, others)| value & inside | others & !inside)
                }
                _ => panic!("what does {step}?"),
            };
            if is_container(&to.name) {
                let (low, high) = to.bits.unwrap_or((0, container_width(&to.name) - 1));
                let part = FieldPart { first: 0, stages: (0, DEPARSER), container: to.name, low, high };
                write_field(after, &[part], None, value);
            } else {
                write_field(after, &self.field_parts(&to.name, table.stage + 1), to.bits, value);
            }
        }
    }

    fn register_cell(&self, table: &AssemblyTable, register: &Register) -> u32 {
        let index = table.index.as_ref().unwrap_or_else(|| panic!("{} has no index", table.p4));
        let hash = index.bits.iter().fold(0, |hash, (bit, field)| {
            let value = self.read(field, table.stage);
            hash | value.unwrap_or_else(|| panic!("an index that is a hash: {field:?}")) << bit
        });
        let above = if index.expand { (hash >> 32 & 0x7f) << 16 } else { 0 };
        let address = ((hash >> index.from & 0xffff | above) & index.mask) << index.shift;
        (address / (register.width * register.words) as u64) as u32
    }

    fn read_operand(&self, running: &Running<'_>, text: &str) -> Option<u64> {
        if let Some(number) = parse_number(text) {
            return Some(number);
        }
        if text.contains("$salu.") {
            let (low, high) = match text.split_once('(') {
                Some((_, bits)) => parse_range(bits.trim_end_matches(')')),
                None => (0, 31),
            };
            return Some(u64::from(running.output) >> low & low_bit_mask(high - low + 1));
        }
        if text.starts_with("hash_dist(") {
            return None;
        }
        let slice = Slice::from_text(text);
        if is_container(&slice.name) || self.fields.contains_key(&slice.name) {
            return self.read(&slice, running.stage);
        }
        Some(running.action_data(text))
    }
}

impl Running<'_> {
    /// What a name of the action's data stands for: a parameter, a number, or what lies in it.
    fn action_data(&self, name: &str) -> u64 {
        if let Some(value) = self.parameters.get(name) {
            return *value;
        }
        // Some bits of one: `NAME.LOW-HIGH`.
        let bits = name.rsplit_once('.').and_then(|(name, bits)| {
            let (low, high) = bits.split_once('-')?;
            let (low, high): (usize, usize) = (low.parse().ok()?, high.parse().ok()?);
            Some(self.parameters.get(name)? >> low & low_bit_mask(high - low + 1))
        });
        if let Some(value) = bits {
            return value;
        }
        let data = &self.action.data;
        let of_name = data.iter().filter(|(alias, _)| alias == name);
        if let Some(value) = of_name.filter_map(|(_, what)| parse_number(what)).next() {
            return value;
        }
        let (mut value, mut is_known) = (0, false);
        for (alias, what) in data.iter().filter(|(_, what)| parse_number(what).is_none()) {
            let at = Slice::from_text(what);
            if what == name {
                return self.action_data(alias);
            }
            if at.name == name {
                is_known = true;
                value |= self.action_data(alias) << at.bits.map_or(0, |(low, _)| low);
            }
        }
        assert!(is_known, "{}: what is {name}?", self.action.name);
        value
    }
}

/// Writes bits of a field; `None`: bits of a hash.
fn write_field(
    containers: &mut Containers,
    parts: &[FieldPart],
    bits: Option<(usize, usize)>,
    value: Option<u64>,
) {
    for part in parts {
        let (low, high) = bits.unwrap_or((0, 63));
        // The bits of the field that are in this part and are written.
        let (from, to) = (low.max(part.first), high.min(part.first + part.high - part.low));
        if from > to {
            continue;
        }
        let shift = part.low + from - part.first;
        let mask = (low_bit_mask(to - from + 1) << shift) as u32;
        let there = containers.entry(part.container.clone()).or_default();
        match value {
            Some(value) => {
                let new = (value >> (from - low) << shift) as u32;
                there.value = there.value & !mask | new & mask;
                there.hashed &= !mask;
            }
            None => there.hashed |= mask,
        }
    }
}
