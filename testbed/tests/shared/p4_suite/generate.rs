//! A program with stores of every shape that a switch writes, at two collectors, and reports for them: of both
//! versions, of all primitives, good ones and bad ones. The same on every run.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use dta_proto::buckets::Copies;
use dta_proto::key::Key;
use dta_proto::program::{
    DataPlaneEntry, Endpoint, Lists, Mac, Primitive, Program, ProgramQueuePair, Purpose, ReportService, Rkey,
    SketchReporter, Store, Transport, Version0,
};
use dta_proto::random::SplitMix64;
use dta_proto::store::{Merge, SlotKeys, StoreKind, StoreSpec};
use dta_proto::wire::datagram;
use dta_proto::wire::dta::{self, DtaBody, DtaReport, Version};

/// Rows of the cache of each postcarding store: few, so that rows are evicted.
pub(crate) const POSTCARD_ROWS: u32 = 16;
/// Where reports are sent to.
pub(crate) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// Reports that [`generate_packets`] makes.
pub(crate) const REPORTS: usize = 12_000;
/// Reporters 1 to this report; those of sketches above [`SKETCH_REPORTERS`] have no bit.
const REPORTERS: u16 = 6;
const SKETCH_REPORTERS: u16 = 5;
/// UDP port that reporter 0 (version 0) sends from; reporter n has the n-th after it.
const PORT: u16 = 50_000;

/// UDP ports that NACKs go to.
pub(crate) fn reporter_ports() -> Vec<u16> {
    (0..=REPORTERS).map(|reporter| PORT + reporter).collect()
}

/// The address of the collector of an index.
pub(crate) fn collector_ip(collector: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 1 + collector, 1)
}

/// The Ethernet address of the collector of an index.
pub(crate) fn collector_mac(collector: u8) -> [u8; 6] {
    [2, 0, 0, 9, 1 + collector, 1]
}

pub(crate) fn collector_of(store: u16) -> u8 {
    u8::from(store % 2 == 1)
}

/// The translator's own Ethernet address.
pub(crate) const TRANSLATOR_MAC: [u8; 6] = [2, 0, 0, 9, 0, 2];

/// The first id of the stores of each primitive.
const KEY_WRITE: u16 = 1;
const POSTCARDING: u16 = 21;
const KEY_INCREMENT: u16 = 30;
const APPEND: u16 = 40;
const SKETCH: u16 = 60;
/// Bytes of a batch, bytes of an entry, and whether it wakes a reader.
const LISTS: [(u16, u8, bool); 13] = [
    (16, 4, false),
    (16, 8, false),
    (16, 4, true),
    (32, 4, false),
    (32, 8, false),
    (32, 12, false),
    (32, 24, true),
    (64, 4, false),
    (64, 8, true),
    (64, 12, false),
    (64, 16, false),
    (64, 28, false),
    (64, 56, false),
];
/// Rows, and how cells become one.
const SKETCHES: [(u8, Merge); 6] =
    [(1, Merge::Sum), (2, Merge::Sum), (3, Merge::Max), (4, Merge::Or), (2, Merge::Max), (4, Merge::Sum)];
const VALUES: [(u8, SlotKeys); 5] = [
    (4, SlotKeys::Hashed),
    (12, SlotKeys::Hashed),
    (28, SlotKeys::Hashed),
    (60, SlotKeys::Hashed),
    (12, SlotKeys::Inline),
];
const HOPS: [u8; 2] = [6, 14];

fn store_kinds() -> Vec<(u16, StoreKind)> {
    let mut kinds = Vec::new();
    for (at, (value_len, keys)) in (0..).zip(VALUES) {
        for redundancy in 1..=4 {
            let slots = 1 << (6 + 3 * at + u64::from(redundancy));
            let id = KEY_WRITE + 4 * at as u16 + u16::from(redundancy) - 1;
            kinds.push((id, StoreKind::KeyWrite { slots, value_len, redundancy, keys }));
        }
    }
    for (at, hops) in (0..).zip(HOPS) {
        for redundancy in 1..=4 {
            let id = POSTCARDING + 4 * at + u16::from(redundancy) - 1;
            kinds.push((id, StoreKind::Postcarding { slots: 256, hops, redundancy }));
        }
    }
    for redundancy in 1..=4 {
        let id = KEY_INCREMENT + u16::from(redundancy) - 1;
        kinds.push((id, StoreKind::KeyIncrement { slots: 1 << (5 * redundancy), redundancy, replicas: 1 }));
    }
    for (id, (batch_len, entry_len, notify)) in (APPEND..).zip(LISTS) {
        kinds.push((id, StoreKind::Append { lists: 8, ring: 4, batch_len, entry_len, notify }));
    }
    for (id, (rows, merge)) in (SKETCH..).zip(SKETCHES) {
        kinds.push((id, StoreKind::SketchMerge { columns: 8, rows, epochs: 4, merge, expected: 3 }));
    }
    kinds
}

/// The program: every second store is at the second collector.
pub(crate) fn generate_program() -> Program {
    let mut program = Program::default();
    program.set(DataPlaneEntry::Service(ReportService { address: IpAddr::V4(SERVICE), port: dta::PORT }));
    for (collector, purpose, transport, remote_qpn) in [
        (0, Purpose::Write, Transport::Uc, 0x11),
        (0, Purpose::Atomic, Transport::Rc, 0x12),
        // Beyond the 14 bits that the UDP source port takes.
        (1, Purpose::Write, Transport::Rc, 0xab_c021),
        (1, Purpose::Atomic, Transport::Rc, 0x22),
    ] {
        let endpoint = |mac, ip| Endpoint { mac: Mac(mac), ..Endpoint::new(IpAddr::V4(ip)) };
        program.set(DataPlaneEntry::QueuePair(ProgramQueuePair {
            collector,
            purpose,
            transport,
            remote_qpn,
            local_qpn: 0x100 + 2 * u32::from(collector) + purpose as u32,
            source: endpoint(TRANSLATOR_MAC, SERVICE),
            destination: endpoint(collector_mac(collector), collector_ip(collector)),
            tos: 4 * collector,
            max_dest_rd_atomic: 16,
            generation: 1,
            start_psn: 0xff_fff0,
            replaced: None,
        }));
    }
    for (id, kind) in store_kinds() {
        let queue_pair = kind.primitive().queue_pair_purpose();
        let spec = StoreSpec { id, name: format!("s{id}"), kind };
        let length = spec.region_len();
        let address = u64::from(id) << 40;
        let rkey = Rkey(0x1000 + u32::from(id));
        let collector = collector_of(id);
        program.set(DataPlaneEntry::Store(Store {
            collector,
            buckets: Copies::default(),
            spec,
            address,
            length,
            rkey,
            generation: 1,
            queue_pair,
        }));
        match primitive_of_store(id) {
            // Lists 3 and 7 are not ours. List 1 is about to come to the end of its numbers.
            Primitive::Append => {
                for (first, count, positions) in [(0, 3, vec![(1, u32::MAX - 2)]), (4, 3, vec![(5, 6)])] {
                    program.set(DataPlaneEntry::Lists(Lists {
                        store: id,
                        collector,
                        first,
                        count,
                        positions,
                    }));
                }
            }
            Primitive::SketchMerge => {
                for reporter in 1..=SKETCH_REPORTERS {
                    let bit = (reporter * 7 % 32) as u8;
                    program.set(DataPlaneEntry::SketchReporter(SketchReporter { store: id, reporter, bit }));
                }
            }
            _ => {}
        }
    }
    for (primitive, store) in [
        (Primitive::KeyWrite, KEY_WRITE + 1),
        (Primitive::Append, APPEND + 3),
        (Primitive::KeyIncrement, KEY_INCREMENT + 2),
        (Primitive::Postcarding, POSTCARDING + 1),
    ] {
        program.set(DataPlaneEntry::Version0(Version0 { primitive, store }));
    }
    program
}

fn primitive_of_store(id: u16) -> Primitive {
    match id {
        SKETCH.. => Primitive::SketchMerge,
        APPEND.. => Primitive::Append,
        KEY_INCREMENT.. => Primitive::KeyIncrement,
        POSTCARDING.. => Primitive::Postcarding,
        _ => Primitive::KeyWrite,
    }
}

struct Dice(SplitMix64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn draw_below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn draw_one_in(&mut self, n: u64) -> bool {
        self.draw_below(n) == 0
    }

    fn draw_bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// One of some keys, of which one is zero. Those of version 0 end in twelve zeros.
    fn draw_key(&mut self, version: Version) -> Key {
        let number = self.draw_below(KEYS.into()) as u8;
        key_from_number(number, version)
    }
}

/// How many keys there are of each version.
const KEYS: u8 = 48;

fn key_from_number(number: u8, version: Version) -> Key {
    match (number, version) {
        (0, _) => Key([0; 16]),
        (_, Version::V0) => Key::from_version_0([10, 0, 0, number]),
        _ => Key([10, 0, 0, number, 10, 1, 0, number, 0x13, 0x88 ^ number, 0, 80, 6, 0, 0, 0]),
    }
}

pub(crate) fn report_keys() -> Vec<Key> {
    (0..KEYS)
        .flat_map(|number| [Version::V0, Version::V1].map(|version| key_from_number(number, version)))
        .collect()
}

/// The reports, as IPv4 packets.
pub(crate) fn generate_packets() -> Vec<Vec<u8>> {
    let kinds = store_kinds();
    let mut dice = Dice(SplitMix64(0xd7a));
    let mut next = [0u32; REPORTERS as usize + 1];
    // One of them wraps.
    next[2] = u32::MAX - 100;
    let mut epoch = 100;
    let mut packets: Vec<Vec<u8>> = Vec::new();
    while packets.len() < REPORTS {
        if !packets.is_empty() && dice.draw_one_in(80) {
            // The network may copy a packet.
            packets.push(packets[packets.len() - 1].clone());
            continue;
        }
        let version = if dice.draw_one_in(5) { Version::V0 } else { Version::V1 };
        let (id, kind) = match version {
            Version::V1 => kinds[dice.draw_below(kinds.len() as u64) as usize].clone(),
            Version::V0 => {
                let id = [KEY_WRITE + 1, APPEND + 3, KEY_INCREMENT + 2, POSTCARDING + 1]
                    [dice.draw_below(4) as usize];
                kinds.iter().find(|(other, _)| *other == id).cloned().unwrap_or_else(|| kinds[0].clone())
            }
        };
        epoch += u32::from(dice.draw_one_in(1500));
        let bad = dice.draw_one_in(40);
        let (key, random) = (dice.draw_key(version), dice.next());
        let value_of = |dice: &mut Dice, len: u8| dice.draw_bytes(usize::from(len));
        let value;
        let body = match kind {
            StoreKind::KeyWrite { value_len, redundancy, .. } => {
                let len = match version {
                    Version::V0 => 4,
                    Version::V1 if bad => 60,
                    // Nearly all are as long as the slot, some are shorter.
                    Version::V1 if dice.draw_one_in(4) => {
                        4 * (1 + dice.draw_below(u64::from(value_len) / 4) as u8)
                    }
                    Version::V1 => value_len,
                };
                value = value_of(&mut dice, len);
                let copies =
                    if dice.draw_one_in(3) { dice.draw_below(u64::from(redundancy) + 1) as u8 } else { 0 };
                let redundancy = if bad && dice.draw_one_in(2) { redundancy + 1 } else { copies };
                DtaBody::KeyWrite { redundancy, key, value: &value }
            }
            StoreKind::Postcarding { hops, .. } => {
                let most = if bad { 14 } else { hops };
                let path_length =
                    if version == Version::V0 { 0 } else { [0, 1, 2, 3, most][dice.draw_below(5) as usize] };
                let hop = dice.draw_below(if path_length == 0 { u64::from(most) } else { path_length.into() })
                    as u8;
                DtaBody::Postcard { key, hop, path_length, value: random as u32 }
            }
            StoreKind::KeyIncrement { redundancy, .. } => {
                let redundancy =
                    if bad { redundancy + 1 } else { [0, redundancy][dice.draw_below(2) as usize] };
                DtaBody::KeyIncrement {
                    redundancy,
                    key,
                    delta: if dice.draw_one_in(2) { random } else { random & 0xff },
                }
            }
            StoreKind::Append { entry_len, .. } => {
                value = value_of(
                    &mut dice,
                    if bad && version == Version::V1 { entry_len + 4 } else { entry_len },
                );
                // Among them lists that are not ours, and lists that are not there.
                let end = if dice.draw_one_in(20) { 10 } else { 8 };
                let list = [0, 1, 1, 2, 4, 5, 6, 6, 3, 8][dice.draw_below(end) as usize];
                DtaBody::Append { list, value: &value }
            }
            kind => {
                // P4 programs write no others.
                let StoreKind::SketchMerge { rows, .. } = kind else { continue };
                value = match dice.draw_one_in(4) {
                    // Sums that would be beyond 32 bits.
                    true => vec![0xf0; 4 * usize::from(rows)],
                    false => value_of(&mut dice, if bad { 4 * (rows % 4 + 1) } else { 4 * rows }),
                };
                let far = if dice.draw_one_in(400) { 1 << 20 } else { 0 };
                let epoch = (epoch - dice.draw_below(2) as u32).wrapping_add(far);
                let end = if dice.draw_one_in(30) { 9 } else { 8 };
                let column = dice.draw_below(end) as u32;
                DtaBody::SketchMerge { epoch, column, cells: &value }
            }
        };
        let reporter = match version {
            Version::V0 => 0,
            Version::V1 => {
                let last = if dice.draw_one_in(10) { REPORTERS } else { SKETCH_REPORTERS };
                1 + dice.draw_below(last.into()) as u16
            }
        };
        // Now and then some do not arrive, or one comes late.
        let counter = &mut next[usize::from(reporter)];
        if dice.draw_one_in(60) {
            *counter = counter.wrapping_add([1, 2, 3, 40, 1023, 1024, 5000][dice.draw_below(7) as usize]);
        }
        let sequence = if dice.draw_one_in(100) {
            counter.wrapping_sub(1 + dice.draw_below(3) as u32)
        } else {
            *counter
        };
        *counter = counter.wrapping_add(u32::from(sequence == *counter));
        let report = DtaReport {
            version,
            immediate: dice.draw_one_in(6),
            retransmittable: dice.draw_one_in(2),
            restarted: dice.draw_one_in(200),
            sequence: if version == Version::V0 { sequence & 0xff } else { sequence },
            reporter,
            store: if version == Version::V0 { 0 } else { id },
            body,
        };
        let mut bytes = [0; 128];
        let Ok(len) = report.encode_into(&mut bytes) else { continue };
        let payload = damage_sometimes(&mut dice, bytes[..len].to_vec());
        packets.push(random_datagram(&mut dice, reporter, &payload));
    }
    packets
}

/// Damages one report in forty: what remains is dropped for one reason or another, or is another report.
fn damage_sometimes(dice: &mut Dice, mut payload: Vec<u8>) -> Vec<u8> {
    if !dice.draw_one_in(40) {
        return payload;
    }
    match dice.draw_below(8) {
        // Other lengths.
        0 => payload.truncate(dice.draw_below(payload.len() as u64) as usize),
        1 => {
            let more = 1 + dice.draw_below(5) as usize;
            payload.extend(dice.draw_bytes(more));
        }
        // Other opcodes, versions, arguments and stores.
        2 => payload[0] = dice.draw_below(8) as u8,
        3 => payload[2] ^= 2,
        4 => payload[2] ^= 1,
        5 => payload[3] ^= 1 << dice.draw_below(8),
        6 if payload.len() > 5 => payload[5] ^= 1 << dice.draw_below(8),
        // Byte 1 contradicts the sequence.
        _ => payload[1] ^= 0x80,
    }
    payload
}

/// A report of reporter 1, as an IPv4 packet.
///
/// # Panics
/// It is too long for a report.
pub(crate) fn report_packet(sequence: u32, store: u16, body: DtaBody<'_>) -> Vec<u8> {
    let report = DtaReport {
        version: Version::V1,
        immediate: false,
        retransmittable: false,
        restarted: false,
        sequence,
        reporter: 1,
        store,
        body,
    };
    let mut bytes = [0; 128];
    let len = report.encode_into(&mut bytes).expect("a report");
    datagram_of(report.reporter, &bytes[..len])
}

fn datagram_of(reporter: u16, payload: &[u8]) -> Vec<u8> {
    let from = SocketAddrV4::new(Ipv4Addr::new(10, 9, 3, reporter as u8), PORT + reporter);
    let header = datagram::encode_header(from, SocketAddrV4::new(SERVICE, dta::PORT), payload.len());
    [&header[..], payload].concat()
}

/// A report as a datagram. Every fourth has a UDP checksum, which is wrong in one of sixteen. Lengths may contradict each other.
fn random_datagram(dice: &mut Dice, reporter: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = datagram_of(reporter, payload);
    if dice.draw_one_in(4) {
        datagram::fill_udp_checksum(&mut packet);
        if dice.draw_one_in(16) {
            packet[27] ^= 1;
        }
    } else if dice.draw_one_in(100) {
        // The datagram says that it is longer than its packet, or has no room for its own header.
        packet[25] = if dice.draw_one_in(2) { 7 } else { packet[25].wrapping_add(4) };
    }
    packet
}
