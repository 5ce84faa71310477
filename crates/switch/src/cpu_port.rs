//! Commands to the program for Tofino: the bytes that it accepts at the switch's CPU port.
//!
//! A command is an Ethernet frame. After the Ethernet header comes what ingress would have found out about a
//! report (`COMMAND`), then what it hands to egress (`BRIDGE`), then what egress reads of a report, with
//! zeros in place of a value; or, for a probe, a whole frame that leaves as it is. All of it is big-endian.
//! What a report would get from the switch's tables is looked up in the rows that the switch holds
//! ([`SwitchRows`]), so that a command goes where the reports go.

use dta_link::{Link as _, PacketConfig, PacketLink};
use dta_proto::batch::PacketBatch;
use dta_proto::key::KEY_LEN;
use dta_proto::layout::{append, sketch_merge};
use dta_proto::program::{Mac, Primitive};
use dta_proto::wire::ethernet;
use dta_proto::wire::frame::{FrameRoute, source_port};
use dta_proto::wire::roce::{BthFields, Psn, RoceRepr, Transport};

use super::row::FirstBits;
use super::tables::Tables;
use super::tofino::{Lists, SketchMergeStore};
use super::translator::{
    AppendStore, Depart, Departure, PostcardingStore, QueuePair, Region, Store, UseList, UseQueuePair,
    UseRegion,
};
use crate::tofino::Profile;

/// A header: its fields in order, with their widths in bits.
type Layout = [(&'static str, u8)];

/// The EtherType of commands: the first of IEEE 802's local experimental ones. The switch reads it in
/// commands that reach another pipe, by a recirculation port.
const TYPE_COMMAND: u16 = 0x88b5;
/// The source and destination address of commands, which is nobody's.
const NOBODY: Mac = Mac([2, 0, 0, 0, 0, 0]);

/// What follows the Ethernet header: the number of the primitive of which something is flushed, or 0; the
/// pipe that it is for, plus 1, or 0 for the CPU port's; the id of its store; the copies to make; the place
/// of a row among those of all stores.
const COMMAND: &Layout = &[("work", 8), ("pipe", 8), ("store", 16), ("copies", 16), ("row", 32)];
/// Where the pipe is in a command.
const PIPE_AT: usize = ethernet::HEADER_LEN + 1;
/// The work of a frame that leaves as it is.
const SEND: u64 = 0;

/// `bridge_t` of `translator-p4/tna/types.p4`.
const BRIDGE: &Layout = &[
    ("pair", 8),
    ("store_number", 8),
    ("reports", 8),
    ("reserved", 3),
    ("inline_keys", 1),
    ("hurries", 1),
    ("notify", 1),
    ("flush", 1),
    ("reserved2", 1),
    ("element_shift", 8),
    ("words", 8),
    (LAST, 8),
    ("index", 32),
    ("mask", 32),
    ("address_high", 32),
    ("address_low", 32),
    ("rkey", 32),
];
/// The field of [`BRIDGE`] that only the profile of long batches has.
const LAST: &str = "last";

/// `sketch_t` of `types.p4`.
const SKETCH: &Layout = &[("epoch", 32), ("own", 32), ("merge", 8), ("others", 8)];
/// `column_head_t` of `types.p4`.
const COLUMN_HEAD: &Layout = &[("epoch", 32), ("merged", 16), ("expected", 16)];
/// Cells are merged by OR, to which zeros add nothing.
const OR: u64 = 2;

/// Appends a header. Fields that `values` does not name are 0.
fn emit_header(layout: &Layout, values: &[(&str, u64)], out: &mut Vec<u8>) {
    let (mut bits, mut len) = (0_u64, 0);
    for (name, width) in layout {
        let value = values.iter().find(|(of, _)| of == name).map_or(0, |(_, value)| *value);
        debug_assert!(value >> width == 0, "{value} is not a {name} of {width} bits");
        bits = bits << width | value & ((1 << width) - 1);
        len += width;
        while len >= 8 {
            len -= 8;
            out.push((bits >> len) as u8);
        }
        bits &= (1 << len) - 1;
    }
}

fn bridge_layout(profile: Profile) -> Vec<(&'static str, u8)> {
    BRIDGE.iter().filter(|(name, _)| *name != LAST || profile == Profile::Batches).copied().collect()
}

/// A command without what follows the bridge.
fn begin_command(profile: Profile, command: &[(&str, u64)], given: &[(&str, u64)]) -> Vec<u8> {
    let mut header = [0; ethernet::HEADER_LEN];
    ethernet::EthernetRepr { dst: NOBODY, src: NOBODY, ethertype: TYPE_COMMAND }.encode_into(&mut header);
    let mut bytes = header.to_vec();
    emit_header(COMMAND, command, &mut bytes);
    emit_header(&bridge_layout(profile), given, &mut bytes);
    bytes
}

fn push_zeros(out: &mut Vec<u8>, bytes: usize) {
    out.resize(out.len() + bytes, 0);
}

/// The rows that a switch holds, to look up what a packet would get.
pub struct SwitchRows<'a> {
    profile: Profile,
    tables: &'a Tables,
}

/// A list that gathers entries, or a row of a cache: where its registers are, and the command that makes it leave.
#[derive(Debug, PartialEq, Eq)]
pub struct FlushCommand {
    /// The queue pair that it leaves by; `None` if the switch finds that out.
    pub pair: Option<u8>,
    /// Its place in the registers of its kind.
    pub state: u32,
    /// The command, for the pipe of the CPU port.
    pub frame: Vec<u8>,
}

impl FlushCommand {
    /// The command for another pipe, 0 to 3: it goes there by the pipe's recirculation port.
    pub fn frame_for_pipe(&self, pipe: u8) -> Vec<u8> {
        let mut frame = self.frame.clone();
        frame[PIPE_AT] = pipe + 1;
        frame
    }
}

/// A column of a sketch at its place among all epochs. The command has the epoch that is there.
#[derive(Debug, PartialEq, Eq)]
pub struct ColumnCommand {
    /// The queue pair that it leaves by.
    pub pair: u8,
    /// Its place in the registers of columns.
    pub state: u32,
    /// The command up to the bridge.
    begun: Vec<u8>,
    element_len: usize,
}

impl ColumnCommand {
    pub fn frame_for_epoch(&self, epoch: u32) -> Vec<u8> {
        let mut frame = self.begun.clone();
        emit_header(SKETCH, &[("epoch", u64::from(epoch)), ("merge", OR)], &mut frame);
        emit_header(COLUMN_HEAD, &[("epoch", u64::from(epoch))], &mut frame);
        push_zeros(&mut frame, self.element_len - sketch_merge::HEADER_LEN);
        frame
    }
}

impl<'a> SwitchRows<'a> {
    pub fn new(profile: Profile, tables: &'a Tables) -> SwitchRows<'a> {
        SwitchRows { profile, tables }
    }

    /// Whether frames of a queue pair leave.
    fn has_departure(&self, pair: u32) -> bool {
        self.tables.find_action::<_, Depart>(Departure { pair }).is_some()
    }

    /// The row of the longest prefix of a list's number.
    fn find_list_row(&self, store: u16, list: u32) -> Option<UseList> {
        (0..=32_u16).rev().find_map(|len| {
            let value = list & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            self.tables.find_action(Lists { store, list: FirstBits { value, len } })
        })
    }

    /// A list of a store; `None` if nothing can be held for it, because each of its entries is a batch by
    /// itself or nothing of it leaves.
    pub fn list_command(&self, store: u16, list: u32) -> Option<FlushCommand> {
        let of = self.tables.find_action::<_, AppendStore>(Store { store }).filter(|of| of.entries > 1)?;
        let to = self.find_list_row(store, list).filter(|to| self.has_departure(to.pair))?;
        // Computed as in the actions `use_list` and `ring_in_region`.
        let state = to.state_offset.wrapping_add(list);
        let ring =
            append::place_offset(list, 0, u64::from(of.ring_mask) + 1, 1_u16.checked_shl(of.element_shift)?);
        let command = [("work", u64::from(Primitive::Append.opcode())), ("copies", 1)];
        let bridge = [
            ("pair", u64::from(to.pair)),
            ("store_number", of.number.into()),
            ("hurries", 1),
            ("notify", of.notify.into()),
            ("flush", 1),
            ("element_shift", of.element_shift.into()),
            ("words", of.entry_words.into()),
            (LAST, u64::from(of.entries) - 1),
            ("index", state.into()),
            ("mask", of.ring_mask.into()),
        ];
        let region = region_fields(to.address | ring, to.rkey);
        let mut frame = begin_command(self.profile, &command, &[&bridge[..], &region].concat());
        frame.extend(list.to_be_bytes());
        // An entry, which the other profiles read as one word.
        let words = if self.profile == Profile::Batches { of.entry_words } else { 1 };
        push_zeros(&mut frame, 4 * usize::from(words));
        Some(FlushCommand { pair: u8::try_from(to.pair).ok(), state, frame })
    }

    /// The row at a place of the cache of a store.
    pub fn postcards(&self, store: u16, place: u32) -> Option<FlushCommand> {
        let of: PostcardingStore = self.tables.find_action(Store { store })?;
        let state = of.cache_base | place;
        let command = [
            ("work", u64::from(Primitive::Postcarding.opcode())),
            ("store", u64::from(store)),
            ("copies", of.copies.into()),
            ("row", state.into()),
        ];
        let bridge = [
            ("store_number", of.number.into()),
            ("flush", 1),
            ("element_shift", of.element_shift.into()),
            ("mask", of.slots_mask.into()),
        ];
        let mut frame = begin_command(self.profile, &command, &bridge);
        // A key, and the word that says which hops are present.
        push_zeros(&mut frame, KEY_LEN + 4);
        Some(FlushCommand { pair: None, state, frame })
    }

    /// A column of a sketch at the place of an epoch: the epoch modulo the number kept. `None` if nothing of
    /// it leaves.
    pub fn column_command(&self, store: u16, column: u32, epoch: u32) -> Option<ColumnCommand> {
        let of: SketchMergeStore = self.tables.find_action(Store { store })?;
        let to: UseRegion = self.tables.find_action(Region { store, bucket: 0..=u8::MAX })?;
        let pair = u8::try_from(to.pair).ok().filter(|_| self.has_departure(to.pair))?;
        // Computed as in the actions `column_state` and `ring_in_region`.
        let offset = sketch_merge::column_offset(epoch, column, of.epochs_mask + 1, of.columns, of.rows);
        let element_len = sketch_merge::column_len(of.rows);
        let state = of.state_base | u32::try_from(offset / element_len).ok()?;
        let command = [("work", u64::from(Primitive::SketchMerge.opcode())), ("copies", 1)];
        let bridge = [
            ("pair", u64::from(pair)),
            ("store_number", of.number.into()),
            ("flush", 1),
            ("element_shift", of.element_shift.into()),
            ("index", state.into()),
        ];
        let region = region_fields(to.address | offset, to.rkey);
        let begun = begin_command(self.profile, &command, &[&bridge[..], &region].concat());
        Some(ColumnCommand { pair, state, begun, element_len: usize::try_from(element_len).ok()? })
    }

    /// Makes a queue pair on RC answer: a zero-length WRITE with the number of the last frame sent, `psn`. To
    /// the collector it is a duplicate, which it acknowledges; one that has lost frames asks for those
    /// (InfiniBand Architecture Specification, volume 1, 9.7.5.1.2). The switch's own numbers do not advance.
    pub fn probe_frame(&self, pair: u8, psn: Psn) -> Option<Vec<u8>> {
        let to: UseQueuePair = self.tables.find_action(QueuePair { pair: pair.into() })?;
        let route = FrameRoute {
            ethernet: Some((to.destination_mac, to.source_mac)),
            src_port: source_port(to.remote_qpn),
            dst_port: to.udp_port,
            tos: to.tos,
            ..FrameRoute::new(to.source_ip, to.destination_ip, to.remote_qpn)
        };
        let place = BthFields { dest_qp: to.remote_qpn, psn, ack_req: true };
        let write = RoceRepr::write(Transport::Rc, place, 0, 0, &[], None);
        let mut frame =
            begin_command(self.profile, &[("work", SEND), ("copies", 1)], &[("pair", u64::from(pair))]);
        let begun = frame.len();
        push_zeros(&mut frame, route.buffer_len(&write));
        route.write_frame(&write, &mut frame[begun..]).ok()?;
        Some(frame)
    }
}

/// The bridge fields for a place in memory.
fn region_fields(address: u64, rkey: u32) -> [(&'static str, u64); 3] {
    [("address_high", address >> 32), ("address_low", address & u64::from(u32::MAX)), ("rkey", rkey.into())]
}

/// Sends commands to the switch. Returns how many of them left, or why none can.
pub type Send = Box<dyn FnMut(&[Vec<u8>]) -> dta_link::Result<usize> + std::marker::Send>;

/// Sends by an interface of this host, opened when the first command leaves, and again after an error:
/// reloading the driver creates a new interface with the same name.
pub fn by_interface(interface: &str) -> Send {
    let config = PacketConfig::new(interface, []);
    let (mut open, mut batch) = (None, PacketBatch::default());
    Box::new(move |frames| {
        let mut link = match open.take() {
            Some(link) => link,
            None => PacketLink::open(&config)?,
        };
        let mut sent = 0;
        for part in frames.chunks(batch.slot_count()) {
            batch.clear();
            for frame in part {
                // No command is longer than a slot.
                let pushed = batch.push_frame(frame, 0);
                debug_assert!(pushed.is_ok(), "{pushed:?}");
            }
            let left = link.send(&mut batch)?;
            sent += left;
            if left < part.len() {
                return Ok(sent);
            }
        }
        open = Some(link);
        Ok(sent)
    })
}

#[cfg(test)]
#[path = "../../../testbed/tests/shared/flush_command.rs"]
mod flush_command;

#[cfg(test)]
mod tests {
    use dta_proto::program::{self, DataPlaneEntry, Program};
    use dta_proto::store::{Merge, StoreKind};
    use dta_proto::wire::frame::Received;

    use super::*;
    use crate::lower::Lowering;
    use crate::options::SwitchOptions;
    use crate::places::{PlaceCapacity, StatePlaces};
    use crate::platform::Platform;
    use crate::tables::{Holds, Item};

    /// The fields of a header of the P4 program, in a profile.
    fn header(name: &str, profile: Profile) -> Vec<(String, u8)> {
        let text = include_str!("../../../translator-p4/tna/types.p4");
        let from = text.split_once(&format!("header {name} {{")).expect("the header").1;
        let mut is_there = true;
        let mut fields = Vec::new();
        for line in from.lines().map(str::trim).take_while(|line| *line != "}") {
            match line {
                "#ifdef DTA_LONG_BATCHES" => is_there = profile == Profile::Batches,
                "#endif" => is_there = true,
                _ if line.is_empty() || line.starts_with("//") => {}
                _ => {
                    let field = line.strip_prefix("bit<").and_then(|rest| rest.strip_suffix(';'));
                    let (width, name) = field.and_then(|field| field.split_once("> ")).expect(line);
                    if is_there {
                        fields.push((name.to_owned(), width.parse().expect(line)));
                    }
                }
            }
        }
        fields
    }

    #[test]
    fn headers_are_those_of_the_program() {
        let named = |layout: &[(&'static str, u8)]| -> Vec<(String, u8)> {
            layout.iter().map(|(name, width)| ((*name).to_owned(), *width)).collect()
        };
        for profile in Profile::ALL {
            assert_eq!(named(&bridge_layout(profile)), header("bridge_t", profile), "{}", profile.name());
            assert_eq!(named(SKETCH), header("sketch_t", profile));
            assert_eq!(named(COLUMN_HEAD), header("column_head_t", profile));
            // Fields fill whole bytes.
            let mut out = Vec::new();
            emit_header(&bridge_layout(profile), &[("pair", 1), ("rkey", 0x0102_0304)], &mut out);
            assert_eq!(out.len(), if profile == Profile::Batches { 27 } else { 26 });
            assert_eq!((out[0], &out[out.len() - 4..]), (1, &[1, 2, 3, 4][..]));
        }
    }

    /// The tables of the vectors' program, with a second postcard store and a second sketch after the others.
    fn tables() -> Tables {
        let sample: Program =
            serde_json::from_str(include_str!("../../../dta-proto/vectors/program.json")).unwrap();
        let mut program = Program::default();
        for entry in Vec::<DataPlaneEntry>::from(sample) {
            match entry {
                DataPlaneEntry::QueuePair(mut pair) => {
                    pair.source.mac = "02:00:00:00:00:02".parse().unwrap();
                    program.set(DataPlaneEntry::QueuePair(pair));
                }
                DataPlaneEntry::Store(store) => {
                    let mut other = program::Store { spec: store.spec.clone(), ..store.clone() };
                    other.spec.id += 3;
                    match &mut other.spec.kind {
                        StoreKind::Postcarding { .. } => program.set(DataPlaneEntry::Store(other)),
                        StoreKind::SketchMerge { columns, rows, merge, .. } => {
                            (*columns, *rows, *merge) = (8, 3, Merge::Max);
                            program.set(DataPlaneEntry::Store(other));
                        }
                        _ => {}
                    }
                    program.set(DataPlaneEntry::Store(store));
                }
                other => program.set(other),
            }
        }
        let options = SwitchOptions {
            collector_ports: vec![1],
            collector_macs: vec!["02:00:00:00:00:01".parse().unwrap()],
            ..SwitchOptions::default()
        };
        let places = StatePlaces::default().assign_places(&program, 64, PlaceCapacity::ALL).unwrap();
        let platform = Platform::Tofino;
        Lowering { program: &program, places: &places, options: &options, platform }
            .lower_program(&[])
            .unwrap()
    }

    /// Bytes written as hexadecimal digits, in any groups.
    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
        digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    }

    const ETHERNET: &str = "020000000000 020000000000 88b5";

    #[test]
    fn a_list() {
        let tables = tables();
        // Batches of 16 bytes of two entries of a word, in rings of 4, that wake the reader.
        let command = "02 00 0000 0001 00000000";
        let of = |last: &str, rest: &str| {
            let bridge = format!("00 05 00 0e 04 01 {last} 00000005 00000003 00000006 00000040 00001006");
            let frame = hex(&format!("{ETHERNET} {command} {bridge} 00000001 {rest}"));
            Some(FlushCommand { pair: Some(0), state: 5, frame })
        };
        for profile in [Profile::Postcards, Profile::Sketches] {
            assert_eq!(SwitchRows::new(profile, &tables).list_command(6, 1), of("", "00000000"));
        }
        assert_eq!(SwitchRows::new(Profile::Batches, &tables).list_command(6, 1), of("01", "00000000"));
        // Of 32 bytes, of three entries of two words. The state of lists 4 and 5 is behind that of 0 and 1.
        let bridge = "00 01 00 0a 05 02 02 00000003 00000003 00000002 00000280 00001002";
        let frame = hex(&format!("{ETHERNET} {command} {bridge} 00000005 0000000000000000"));
        let list = Some(FlushCommand { pair: Some(0), state: 3, frame });
        assert_eq!(SwitchRows::new(Profile::Batches, &tables).list_command(2, 5), list);
        // Nobody's list, no list, and a store that is no list's.
        for (store, list) in [(2, 3), (2, 8), (9, 0), (1, 0)] {
            assert_eq!(
                SwitchRows::new(Profile::Batches, &tables).list_command(store, list),
                None,
                "{store} {list}"
            );
        }
    }

    #[test]
    fn a_list_that_holds_nothing_or_leads_nowhere_has_no_command() {
        let full = tables();
        let without = |gone: &str| {
            let mut tables = Tables::default();
            for (item, holds) in full.iter() {
                match (item, holds) {
                    (Item::Row { table, .. }, _) if table == gone => {}
                    (_, Holds::Action { name, params }) if name == "append_store" && gone == "entries" => {
                        let mut params = params.clone();
                        params[6] = 1;
                        tables.set(item.clone(), Holds::Action { name: name.clone(), params });
                    }
                    _ => tables.set(item.clone(), holds.clone()),
                }
            }
            SwitchRows::new(Profile::Postcards, &tables).list_command(6, 1)
        };
        assert!(without("nothing").is_some());
        assert_eq!((without("departure"), without("lists"), without("entries")), (None, None, None));
    }

    #[test]
    fn a_row() {
        let tables = tables();
        let row = FlushCommand { pair: None, state: 0x47, frame: flush_command::flush_row() };
        let is = SwitchRows::new(Profile::Postcards, &tables).postcards(7, 7);
        assert_eq!(is.as_ref(), Some(&row));
        // For another pipe, one byte differs.
        let there = row.frame_for_pipe(3);
        assert_eq!((there[PIPE_AT], PIPE_AT), (4, flush_command::PIPE_AT));
        assert_eq!(
            (&there[..PIPE_AT], &there[PIPE_AT + 1..]),
            (&row.frame[..PIPE_AT], &row.frame[PIPE_AT + 1..])
        );
        assert_eq!(SwitchRows::new(Profile::Postcards, &tables).postcards(6, 7), None);
    }

    #[test]
    fn a_column() {
        let tables = tables();
        let command = "05 00 0000 0001 00000000";
        let rows = SwitchRows::new(Profile::Sketches, &tables);
        // Column 9 at the second of two places for epochs of 16 columns, in 16 bytes.
        let bridge = "00 04 00 02 04 00 00000019 00000000 00000005 00000190 00001005";
        let cells =
            |words: usize| format!("00000007 00000000 02 00 00000007 0000 0000 {}", "00".repeat(4 * words));
        let column = rows.column_command(5, 9, 1).unwrap();
        assert_eq!((column.pair, column.state), (0, 0x19));
        assert_eq!(column.frame_for_epoch(7), hex(&format!("{ETHERNET} {command} {bridge} {}", cells(2))));
        // In 32 bytes, behind those.
        let bridge = "00 07 00 02 05 00 00000023 00000000 00000005 00000060 00001005";
        let column = rows.column_command(8, 3, 0).unwrap();
        assert_eq!((column.pair, column.state), (0, 0x23));
        assert_eq!(column.frame_for_epoch(7), hex(&format!("{ETHERNET} {command} {bridge} {}", cells(6))));
        assert_eq!(rows.column_command(4, 0, 0), None);
    }

    #[test]
    fn a_probe() {
        let tables = tables();
        for profile in Profile::ALL {
            let rows = SwitchRows::new(profile, &tables);
            let frame = rows.probe_frame(1, Psn::new(0).wrapping_sub(1)).unwrap();
            let bridge = if profile == Profile::Batches { 27 } else { 26 };
            let begun = hex(&format!("{ETHERNET} 00 00 0000 0001 00000000 01 {}", "00".repeat(bridge - 1)));
            let (command, sent) = frame.split_at(begun.len());
            assert_eq!(command, begun);
            let bytes = "020000000001 020000000002 0800 \
                         4500003c 00004000 4011269d 0a090002 0a090001 c01212b7 00280000 \
                         0a40ffff 00000012 80ffffff 0000000000000000 00000000 00000000";
            assert_eq!(sent[..sent.len() - 4], hex(bytes));
            let received =
                Received::parse_packet(&sent[ethernet::HEADER_LEN..]).expect("its checksums are right");
            let place = BthFields { dest_qp: 18, psn: Psn::new(0xff_ffff), ack_req: true };
            assert_eq!(
                RoceRepr::parse_packet(&received.roce),
                Ok(RoceRepr::write(Transport::Rc, place, 0, 0, &[], None))
            );
            assert_eq!(rows.probe_frame(5, Psn::new(1)), None);
        }
    }
}
