//! The hashes of the program compiled for Tofino, read from its assembly and computed as the switch computes them:
//! they have to give the slots, checksums and iCRCs of `dta-proto`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::assembly::profiles::{
    self, LONG_BATCHES, POSTCARDS, REPORTER, SKETCHES, WORDS, read_profile_assembly,
    words_of_element as element_words,
};
use crate::assembly::{Slice, parse_hex, parse_range, split_at_closing};
use crate::capture;
use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::layout::hash;
use dta_proto::telemetry;
use serde_json::Value;

/// A field of the message of a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    /// Where its lowest bit is. The message is one big number: bit 0 is its end.
    first: usize,
    name: String,
    /// Its lowest and highest bit that are here.
    bits: Option<(usize, usize)>,
}

/// Bits of the value of a hash, as one of the chip's units for hashes gives them.
#[derive(Clone, Debug)]
struct Piece {
    /// The lowest and the highest one.
    low: usize,
    high: usize,
    /// All fields. The unit computes the parts of a message by themselves and adds them (XOR).
    fields: Vec<Field>,
    /// What is added at the end: it stands for the initial value, the final xor, and the numbers in the message.
    seed: u32,
}

/// A CRC as the assembly writes it: in pieces.
#[derive(Clone, Debug)]
struct Crc {
    /// In the form that the assembler takes: bit 32 instead of bit 0.
    polynomial: u32,
    reflected: bool,
    /// Bits of the message.
    bits: usize,
    pieces: Vec<Piece>,
}

/// An expression: a part of the message, and which bits of the value it gives.
#[derive(Clone, Debug)]
struct Part {
    /// The first bit of its unit that it gives.
    first: usize,
    low: usize,
    high: usize,
    polynomial: u32,
    reflected: bool,
    bits: usize,
    fields: Vec<Field>,
}

impl Part {
    /// `0..15: slice(stripe(crc_rev(POLYNOMIAL, INITIAL, XOR, BITS, { FIELDS }, { NUMBERS })), 16..31)`.
    fn of(line: &str) -> Option<Part> {
        let (name, reflected) = if line.contains("crc_rev(") { ("crc_rev(", true) } else { ("crc(", false) };
        let (before, rest) = line.split_once(name)?;
        let (place, _) = before.split_once(':')?;
        let (arguments, behind) = split_at_closing(rest);
        let (numbers, rest) = arguments.split_once('{').expect("fields of a hash");
        let (fields, _) = split_at_closing(rest);
        let numbers: Vec<&str> = numbers.split(',').collect();
        let (first, last) = parse_range(place);
        let (low, high) = match behind.split_once(',') {
            Some((_, slice)) => parse_range(slice.trim_end_matches(')')),
            None => (0, last - first),
        };
        assert_eq!(last - first, high - low, "{line}");
        Some(Part {
            first,
            low,
            high,
            polynomial: u32::try_from(parse_hex(numbers[0])).unwrap(),
            reflected,
            bits: numbers[3].trim().parse().unwrap(),
            fields: fields.split(',').filter(|text| !text.trim().is_empty()).map(field).collect(),
        })
    }
}

/// The hashes of one table: its units' parts, put together.
#[derive(Default)]
struct Reader {
    all: Vec<Crc>,
    unit: usize,
    units: BTreeMap<usize, Vec<Part>>,
    /// Units that are added up, and whether their seed was there: then what follows is of other bits.
    group: Vec<usize>,
    is_seeded: bool,
    crcs: Vec<Crc>,
}

impl Reader {
    /// The group of units is complete.
    fn seed(&mut self, seed: u64) {
        let of_group: Vec<Part> =
            self.group.iter().filter_map(|unit| self.units.get(unit)).flatten().cloned().collect();
        for part in of_group {
            let of = |crc: &&mut Crc| {
                (crc.polynomial, crc.reflected, crc.bits) == (part.polynomial, part.reflected, part.bits)
            };
            let crc = match self.crcs.iter_mut().find(of) {
                Some(crc) => crc,
                None => {
                    self.crcs.push(Crc {
                        polynomial: part.polynomial,
                        reflected: part.reflected,
                        bits: part.bits,
                        pieces: Vec::new(),
                    });
                    self.crcs.last_mut().unwrap()
                }
            };
            let width = part.high - part.low + 1;
            let seed = u32::try_from(seed >> part.first & ((1 << width) - 1)).unwrap();
            let of = |piece: &&mut Piece| (piece.low, piece.high) == (part.low, part.high);
            match crc.pieces.iter_mut().find(of) {
                Some(piece) => {
                    assert_eq!(piece.seed, seed);
                    let new: Vec<Field> =
                        part.fields.into_iter().filter(|field| !piece.fields.contains(field)).collect();
                    piece.fields.extend(new);
                }
                None => {
                    crc.pieces.push(Piece { low: part.low, high: part.high, fields: part.fields, seed });
                }
            }
        }
        self.group.clear();
        self.is_seeded = true;
    }

    /// A seed of 0 is not written.
    fn no_seed(&mut self) {
        if !self.group.is_empty() {
            self.seed(0);
        }
    }

    fn end_of_table(&mut self) {
        self.no_seed();
        self.units.clear();
        self.all.append(&mut self.crcs);
    }
}

impl Crc {
    /// All of an assembly.
    fn all(text: &str) -> Vec<Crc> {
        let mut reader = Reader::default();
        for line in text.lines() {
            let word = line.trim();
            // Tables stand two deep.
            if line.len() - line.trim_start().len() <= 2 {
                reader.end_of_table();
            } else if let Some(part) = Part::of(word) {
                if std::mem::take(&mut reader.is_seeded) {
                    reader.units.clear();
                }
                reader.units.entry(reader.unit).or_default().push(part);
            } else if let Some(group) = word.strip_prefix("table: [") {
                reader.no_seed();
                let units = group.trim_end_matches(']').split(',');
                reader.group = units.map(|unit| unit.trim().parse().unwrap()).collect();
            } else if let Some(seed) = word.strip_prefix("seed: 0x") {
                reader.seed(parse_hex(seed));
            } else if let Some(unit) = word.strip_prefix("hash ").and_then(|unit| unit.strip_suffix(':')) {
                // `hash group N:` is the other form.
                if let Ok(unit) = unit.parse() {
                    reader.unit = unit;
                }
            }
        }
        reader.end_of_table();
        reader.all
    }

    /// Whether a field of this name is in its message.
    fn has(&self, name: &str) -> bool {
        self.pieces.iter().flat_map(|piece| &piece.fields).any(|field| field.name == name)
    }

    /// The rest of a message without what stands for the beginning and the end: sums of messages have sums of rests.
    fn rest(&self, message: &[bool]) -> u32 {
        assert_eq!(message.len() % 8, 0, "a message of whole bytes");
        let bytes = message
            .chunks(8)
            .rev()
            .map(|bits| bits.iter().enumerate().fold(0_u8, |byte, (at, bit)| byte | u8::from(*bit) << at));
        // The highest bit is not written, and the lowest is always set.
        let polynomial = self.polynomial << 1 | 1;
        let mut crc = 0;
        for byte in bytes {
            let byte = if self.reflected { byte.reverse_bits() } else { byte };
            crc ^= u32::from(byte) << 24;
            for _ in 0..8 {
                crc = if crc >> 31 == 1 { crc << 1 ^ polynomial } else { crc << 1 };
            }
        }
        if self.reflected { crc.reverse_bits() } else { crc }
    }

    /// Its value where the fields have these. Of its 32 bits, those that the program asks for.
    fn of(&self, values: &BTreeMap<&str, u128>) -> u32 {
        let mut result = 0;
        for piece in &self.pieces {
            let mut message = vec![false; self.bits];
            for Field { first, name, bits } in &piece.fields {
                let value =
                    *values.get(name.as_str()).unwrap_or_else(|| panic!("nobody knows the field {name}"));
                let (low, high) = bits.unwrap_or((0, width_of(name) - 1));
                for bit in low..=high {
                    message[first + bit - low] = value >> bit & 1 == 1;
                }
            }
            let mask = u32::MAX >> (31 - (piece.high - piece.low));
            result |= ((self.rest(&message) >> piece.low & mask) ^ piece.seed) << piece.low;
        }
        result
    }

    /// The bits of its value.
    fn width(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.high as u32 - piece.low as u32 + 1).sum()
    }
}

/// `224: hdr.bth.psn`, `0: hdr.w0.word(16..31)`, `8: hdr.bth.destination_qp.16-23`, or both.
fn field(text: &str) -> Field {
    let (first, field) = text.split_once(':').unwrap_or_else(|| panic!("{text} is no field"));
    let Slice { name, bits } = Slice::from_text(field);
    Field { first: first.trim().parse().unwrap(), name, bits }
}

/// Bits of a field that is not sliced.
fn width_of(name: &str) -> usize {
    match name {
        "hdr.ipv4.total_length" | "hdr.udp.source" | "hdr.udp.destination" | "hdr.udp.length" => 16,
        "hdr.bth.opcode" | "hdr.seen.protocol" | "hdr.seen.reason" => 8,
        "hdr.bth.destination_qp" | "hdr.bth.psn" => 24,
        "hdr.bth.ack_request" => 1,
        _ => 32,
    }
}

fn vectors(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dta-proto/vectors").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn bytes(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn word(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte))
}

const KEY: [&str; 4] = ["hdr.key_first.word", "hdr.key.b", "hdr.key.c", "hdr.key.d"];
const ROW_KEY: [&str; 4] = ["meta.key_a", "meta.key_b", "meta.key_c", "meta.key_d"];
/// The words of the number that a FETCH_ADD adds.
const ADDED: [&str; 2] = [WORDS[1], WORDS[2]];

fn words_of<'a>(names: &[&'a str], bytes: &[u8]) -> Vec<(&'a str, u128)> {
    names.iter().copied().zip(bytes.chunks(4).map(word)).collect()
}

/// Those that have the first names and none of the second, and messages of so many bits.
fn those<'a>(all: &'a [Crc], with: &[&str], without: &[&str], bits: usize) -> Vec<&'a Crc> {
    let is = |crc: &&Crc| {
        crc.bits == bits && with.iter().all(|name| crc.has(name)) && !without.iter().any(|name| crc.has(name))
    };
    let found: Vec<&Crc> = all.iter().filter(is).collect();
    assert!(!found.is_empty(), "no hash of {bits} bits over {with:?}");
    for crc in &found {
        assert!([24, 32].contains(&crc.width()), "{crc:?}");
    }
    found
}

#[test]
fn hashes_of_keys_and_slots_are_those_of_the_layout() {
    for profile in profiles::ALL {
        keys_and_slots(profile);
    }
}

fn keys_and_slots(profile: &str) {
    let all = Crc::all(&read_profile_assembly(profile));
    let mut of_keys = those(&all, &KEY, &[], 128);
    if profile == POSTCARDS {
        of_keys.extend(those(&all, &ROW_KEY, &[], 128));
    }
    // Long batches have no copies of a key.
    let index = if profile == SKETCHES { "meta.slot_key" } else { "hdr.bridge.index" };
    let of_slots = if profile == LONG_BATCHES { Vec::new() } else { those(&all, &[index], &[], 32) };
    let vectors = vectors("layout.json");
    let slots = vectors["slots"].as_array().unwrap();
    for vector in slots {
        let key = bytes(vector["key"].as_str().unwrap());
        let mut values: BTreeMap<&str, u128> = words_of(&KEY, &key).into_iter().collect();
        values.extend(words_of(&ROW_KEY, &key));
        let h = u32::try_from(vector["hash"].as_u64().unwrap()).unwrap();
        for crc in &of_keys {
            assert_eq!(crc.of(&values), h, "{crc:?}");
        }
        // A switch writes the first four.
        let constants = [0x9e37_79b9_u32, 0x7f4a_7c15, 0x94d0_49bb, 0xbf58_476d];
        for (n, (at, constant)) in vector["at"].as_array().unwrap().iter().zip(constants).enumerate() {
            let values = BTreeMap::from([(index, u128::from(h.wrapping_add(constant)))]);
            let mask = u32::try_from(vector["slots"].as_u64().unwrap() - 1).unwrap();
            for crc in &of_slots {
                assert_eq!(u64::from(crc.of(&values) & mask), at.as_u64().unwrap(), "{crc:?}");
                let key = Key(key.as_slice().try_into().unwrap());
                assert_eq!(
                    u64::from(crc.of(&values) & mask),
                    hash::slot_index(hash::key_hash(&key), n, u64::from(mask) + 1)
                );
            }
        }
    }
    assert!(slots.len() > 8);
}

#[test]
fn checksums_are_those_of_the_layout() {
    for profile in profiles::ALL {
        checksums(profile);
    }
}

/// Bytes of the batches that a profile makes.
fn batch_lens(profile: &str) -> &'static [usize] {
    if profile == LONG_BATCHES { &[32, 64] } else { &[16] }
}

fn checksums(profile: &str) {
    let all = Crc::all(&read_profile_assembly(profile));
    let vectors = vectors("layout.json");
    // Bytes of the elements that a profile makes, and how many were seen.
    let mut seen: BTreeMap<usize, usize> = match profile {
        POSTCARDS => BTreeMap::from([(8, 0), (16, 0), (32, 0)]),
        SKETCHES => BTreeMap::from([(16, 0), (32, 0)]),
        _ => BTreeMap::new(),
    };
    for (name, element, from) in [("key_write", "slot", 4), ("postcarding", "row", 4)] {
        for vector in vectors[name].as_array().unwrap() {
            let element = bytes(vector[element].as_str().unwrap());
            let Some(seen) = seen.get_mut(&element.len()) else { continue };
            let names = &element_words(profile, element.len())[1..];
            let mut values: BTreeMap<&str, u128> =
                words_of(&KEY, &bytes(vector["key"].as_str().unwrap())).into_iter().collect();
            values.extend(words_of(names, &element[from..]));
            let with: Vec<&str> = KEY.iter().chain(names).copied().collect();
            for crc in those(&all, &with, &["hdr.bth.psn"], 128 + names.len() * 32) {
                assert_eq!(crc.of(&values), u32::try_from(word(&element[..4])).unwrap(), "{crc:?}");
            }
            *seen += 1;
        }
    }
    assert!(seen.values().all(|seen| *seen > 0), "{seen:?}");
    let mut batches: BTreeMap<usize, usize> = BTreeMap::new();
    for vector in vectors["append"].as_array().unwrap() {
        let batch = bytes(vector["batch"].as_str().unwrap());
        if !batch_lens(profile).contains(&batch.len()) {
            continue;
        }
        let mut values: BTreeMap<&str, u128> =
            words_of(&element_words(profile, batch.len()), &batch).into_iter().collect();
        values.insert("hdr.list.list", u128::from(vector["list"].as_u64().unwrap()));
        // The list, and all but the check itself.
        let bits = 8 * (4 + batch.len() - 3);
        let last = batch.len() - 3;
        for crc in those(&all, &["hdr.list.list", "hdr.sum.word", "hdr.w0.word"], &["hdr.bth.psn"], bits) {
            let check = u32::try_from(word(&batch[last..])).unwrap();
            assert_eq!(crc.of(&values) & 0xff_ffff, check, "{crc:?}");
        }
        *batches.entry(batch.len()).or_default() += 1;
    }
    assert_eq!(batches.keys().copied().collect::<Vec<_>>(), batch_lens(profile));
}

#[test]
fn icrcs_are_those_of_frames() {
    for profile in profiles::ALL {
        icrcs(profile);
    }
}

/// What a profile makes: whether it is a FETCH_ADD, whether it has an immediate, and bytes of payload.
fn frames_of(profile: &str) -> Vec<(bool, bool, usize)> {
    if profile == LONG_BATCHES {
        return vec![(false, false, 32), (false, false, 64), (false, true, 32), (false, true, 64)];
    }
    let mut all = vec![(false, false, 16), (false, false, 32), (false, true, 16), (true, false, 16)];
    if profile == POSTCARDS {
        all.insert(0, (false, false, 8));
    }
    all
}

fn icrcs(profile: &str) {
    let all = Crc::all(&read_profile_assembly(profile));
    let is_made = frames_of(profile);
    let mut seen: BTreeMap<(bool, bool, usize), usize> = BTreeMap::new();
    let cases = vectors("frames.json");
    let of_vectors = cases.as_array().unwrap().iter().flat_map(|case| case["frames"].as_array().unwrap());
    let of_vectors = of_vectors.map(|frame| bytes(frame.as_str().unwrap()));
    // No vector has elements of 8 or 64 bytes; bmv2 made some.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../translator-p4/frames/bmv2.pcap.gz");
    let of_bmv2 = capture::read(std::fs::File::open(file).unwrap()).unwrap().into_iter();
    let of_bmv2 = of_bmv2.map(|frame| frame[14..].to_vec()).filter(|packet| packet[22..24] == [0x12, 0xb7]);
    for frame in of_vectors.chain(of_bmv2) {
        let opcode = frame[28] & 0x1f;
        let adds = opcode == 0x14;
        let wakes = opcode == 0x0b;
        let target = &frame[40..];
        let payload = match (adds, wakes) {
            (true, _) => 52,
            (false, true) => 60,
            (false, false) => 56,
        };
        let (payload, icrc) = frame[payload..].split_at(frame.len() - payload - 4);
        let shape = (adds, wakes, payload.len());
        // Some of each are enough.
        if !is_made.contains(&shape) || seen.get(&shape).is_some_and(|seen| *seen >= 200) {
            continue;
        }
        let mut values = BTreeMap::from([
            ("hdr.ipv4.total_length", word(&frame[2..4])),
            ("hdr.ipv4.source", word(&frame[12..16])),
            ("hdr.ipv4.destination", word(&frame[16..20])),
            ("hdr.udp.source", word(&frame[20..22])),
            ("hdr.udp.destination", word(&frame[22..24])),
            ("hdr.udp.length", word(&frame[24..26])),
            ("hdr.bth.opcode", frame[28].into()),
            ("hdr.bth.destination_qp", word(&frame[33..36])),
            ("hdr.bth.ack_request", (frame[36] >> 7).into()),
            ("hdr.bth.psn", word(&frame[37..40])),
            ("hdr.target.address_high", word(&target[..4])),
            ("hdr.target.address_low", word(&target[4..8])),
            ("hdr.target.rkey", word(&target[8..12])),
        ]);
        // 8 bytes of ones before the IPv4 header.
        let bits = 8 * (8 + frame.len() - 4);
        let mut with = vec!["hdr.bth.psn", "hdr.target.rkey"];
        let mut without = Vec::new();
        if adds {
            values.extend(words_of(&ADDED, payload));
            without.push("hdr.length.length");
        } else {
            values.insert("hdr.length.length", word(&target[12..16]));
            values.insert("hdr.immediate.data", word(&target[16..20]));
            values.extend(words_of(&element_words(profile, payload.len()), payload));
            with.push("hdr.length.length");
            if wakes {
                with.push("hdr.immediate.data");
            } else {
                without.push("hdr.immediate.data");
            }
        }
        for crc in those(&all, &with, &without, bits) {
            let sum = crc.of(&values).to_le_bytes();
            assert_eq!(sum, icrc, "{shape:?} {crc:?}");
        }
        *seen.entry(shape).or_default() += 1;
    }
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), is_made);
}

/// The message of an iCRC up to the rkey: fields and their bits in the order of the wire, with 8 bytes of ones before
/// them. Without a name: always the same numbers.
const ICRC_HEADERS: [(&str, usize); 22] = [
    ("", 64),
    ("", 16),
    ("hdr.ipv4.total_length", 16),
    ("", 32),
    ("", 16),
    ("", 16),
    ("hdr.ipv4.source", 32),
    ("hdr.ipv4.destination", 32),
    ("hdr.udp.source", 16),
    ("hdr.udp.destination", 16),
    ("hdr.udp.length", 16),
    ("", 16),
    ("hdr.bth.opcode", 8),
    ("", 24),
    ("", 8),
    ("hdr.bth.destination_qp", 24),
    ("hdr.bth.ack_request", 1),
    ("", 7),
    ("hdr.bth.psn", 24),
    ("hdr.target.address_high", 32),
    ("hdr.target.address_low", 32),
    ("hdr.target.rkey", 32),
];

/// Each bit of each field stands where the wire has it, once, and nothing else stands there: in vectors, words that are
/// equal could change their places.
#[test]
fn icrcs_are_over_the_fields_of_each_frame_in_their_order() {
    for profile in profiles::ALL {
        fields_of_icrcs(profile);
    }
}

fn fields_of_icrcs(profile: &str) {
    let all = Crc::all(&read_profile_assembly(profile));
    for (adds, wakes, payload) in frames_of(profile) {
        let mut words: Vec<(&str, usize)> = Vec::new();
        if adds {
            // What is compared is 0.
            words.extend(ADDED.map(|word| (word, 32)));
            words.push(("", 64));
        } else {
            words.push(("hdr.length.length", 32));
            words.extend(wakes.then_some(("hdr.immediate.data", 32)));
            words.extend(element_words(profile, payload).into_iter().map(|word| (word, 32)));
        }
        let shape = format!("{profile}: {payload} bytes, adds: {adds}, wakes: {wakes}");
        let order: Vec<(&str, usize)> = ICRC_HEADERS.into_iter().chain(words).collect();
        let bits: usize = order.iter().map(|(_, width)| width).sum();
        let mut end = bits;
        let mut wanted: Vec<(usize, &str, usize)> = Vec::new();
        for (name, width) in order {
            end -= width;
            if !name.is_empty() {
                assert_eq!(width_of(name), width, "{name}");
                wanted.extend((0..width).map(|bit| (end + bit, name, bit)));
            }
        }
        wanted.sort_unstable();
        for crc in those(&all, &["hdr.bth.psn", "hdr.target.rkey"], &[], bits) {
            assert_eq!((crc.polynomial, crc.reflected, crc.width()), (0x8260_8edb, true, 32), "{shape}");
            for piece in &crc.pieces {
                let mut is: Vec<(usize, &str, usize)> = Vec::new();
                for Field { first, name, bits } in &piece.fields {
                    let (low, high) = bits.unwrap_or((0, width_of(name) - 1));
                    is.extend((low..=high).map(|bit| (first + bit - low, name.as_str(), bit)));
                }
                is.sort_unstable();
                assert_eq!(is, wanted, "{shape}, bits {} to {} of it", piece.low, piece.high);
            }
        }
    }
}

/// Keys of the reporter that are three sums: of the flow, and of the switch or the reason behind it.
#[test]
fn keys_of_the_reporter_are_those_of_the_layout() {
    let all = Crc::all(&read_profile_assembly(REPORTER));
    let flow = Flow {
        src: "10.1.2.3".parse().unwrap(),
        dst: "192.168.77.250".parse().unwrap(),
        sport: 4711,
        dport: 443,
        proto: 6,
    };
    let flow_key = flow.to_key().0;
    let mut values: BTreeMap<&str, u128> = BTreeMap::from([
        ("hdr.seen_source.word", word(&flow_key[..4])),
        ("hdr.seen_destination.word", word(&flow_key[4..8])),
        ("hdr.seen_flow_ports.word", word(&flow_key[8..12])),
        ("hdr.seen.protocol", 6),
    ]);
    let (switch, reason) = (0x0a0b_0c0d, 71);
    values.insert("meta.switch_id", switch.into());
    values.insert("hdr.seen.reason", reason.into());
    let names: Vec<&str> = values.keys().copied().filter(|name| name.starts_with("hdr.seen_")).collect();
    for (key, bits) in [
        (telemetry::hop_latency_key(&flow, switch), 136),
        (telemetry::flow_drops_key(&flow, DropReason::from_int(reason)), 112),
        (telemetry::packets_key(&flow), 104),
    ] {
        // One of each polynomial.
        let of = those(&all, &names, &[], bits);
        let mut sums: Vec<u32> =
            of.iter().filter(|crc| crc.width() == 32).map(|crc| crc.of(&values)).collect();
        sums.sort_unstable();
        let mut want: Vec<u32> = key.0[..12].chunks(4).map(|sum| u32::try_from(word(sum)).unwrap()).collect();
        want.sort_unstable();
        sums.dedup();
        assert_eq!(sums, want, "{bits}");
    }
}

/// Faults of the compiler that were met once (docs/tofino-resources.md), and that nothing else here would notice.
#[test]
fn the_compiler_did_what_the_program_says() {
    for profile in profiles::ALL {
        let text = read_profile_assembly(profile);
        // The PSN of a frame is the counted one, not a number.
        let psns: Vec<&str> =
            text.lines().filter(|line| line.trim().starts_with("- set hdr.bth.psn")).collect();
        assert!(!psns.is_empty() && psns.iter().all(|line| line.contains(", meta.psn")), "{psns:?}");
        // What these registers give is what was there before.
        let mut actions = vec!["lists_follow:", "lists_enter:", "sequences_hear:", "count_psn_0:"];
        match profile {
            POSTCARDS => actions.push("rows_add:"),
            SKETCHES => actions.extend(["columns_use:", "columns_one_more_unsent:"]),
            _ => {}
        }
        for action in actions {
            let mut lines = text.lines().map(str::trim).skip_while(|line| *line != action).skip(1);
            let outputs: Vec<&str> = lines
                .by_ref()
                .take_while(|line| line.starts_with("- "))
                .filter(|line| line.starts_with("- output"))
                .collect();
            assert_eq!(outputs, ["- output mem_lo"], "{profile}: {action}");
        }
    }
}

/// Nothing of the test would notice a hash that is over other fields in the same order, but for these.
#[test]
fn another_hash_gives_something_else() {
    let all = Crc::all(&read_profile_assembly(POSTCARDS));
    let crc = those(&all, &KEY, &[], 128)[0];
    let key: Vec<u8> = (1..17).collect();
    let values: BTreeMap<&str, u128> = words_of(&KEY, &key).into_iter().collect();
    let right = hash::key_hash(&Key(key.as_slice().try_into().unwrap()));
    assert_eq!(crc.of(&values), right);
    let mut changes: Vec<Crc> = vec![crc.clone(); 3];
    changes[0].polynomial ^= 1;
    changes[1].pieces[0].seed ^= 1;
    for field in changes[2].pieces.iter_mut().flat_map(|piece| &mut piece.fields) {
        // Two words of the key change their places.
        field.first = match field.first / 32 {
            0 => field.first + 32,
            1 => field.first - 32,
            _ => field.first,
        };
    }
    for changed in changes {
        assert_ne!(changed.of(&values), right, "{changed:?}");
    }
}
