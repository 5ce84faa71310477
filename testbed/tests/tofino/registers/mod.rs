//! The registers of the program compiled for Tofino, read from its assembly and run packet by packet: PSNs, batches of
//! lists, sequences of reporters, rows of postcards and columns of sketches have to be those of the software in reference
//! mode.

mod batches;
mod columns;
mod pipes;
mod slots;

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use crate::assembly::pipeline::{AssemblyPipeline, DEPARSER};
use crate::assembly::profiles::{self, LONG_BATCHES, POSTCARDS, SKETCHES, WORDS};
use dta_dataplane::reference::{Reference, ReferenceOutput};
use dta_proto::buckets::Copies;
use dta_proto::key::Key;
use dta_proto::layout::{append, hash};
use dta_proto::program::{
    DataPlaneEntry, Endpoint, Lists, Mac, Program, ProgramQueuePair, Purpose, ReportService, Rkey, Store,
    Transport,
};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::wire::dta::{self, DtaBody, DtaReport};
use dta_proto::wire::roce::Psn;

/// Numbers at the ends of what a register, a PSN or a sequence can be.
const ENDS: [u32; 7] = [0, 1, 0xff_ffff, 0x100_0000, 0x7fff_ffff, 0x8000_0000, u32::MAX];
const REPORTER: u16 = 3;
const STORE: u16 = 7;
const PAIR: u32 = 5;
const ADDRESS: u64 = 9 << 40;
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// The two directions of the program. Registers are empty at the beginning.
#[derive(Clone)]
struct Switch {
    ingress: AssemblyPipeline,
    egress: AssemblyPipeline,
}

impl Switch {
    /// Of a profile, by its folder.
    fn new(profile: &str) -> Switch {
        let text = profiles::read_profile_assembly(profile);
        let mut egress = AssemblyPipeline::from_assembly(&text, "egress");
        let pair = [("rc", 0), ("remote_qpn", 0x11), ("udp_port", 4791), ("tos", 0)];
        let ends = ["source_mac", "destination_mac", "source_ip", "destination_ip"].map(|name| (name, 0));
        let parameters = [&pair[..], &ends].concat();
        egress.add_table_entry(
            "Departure.queue_pair",
            &[("hdr.bridge.pair", PAIR.into())],
            "use_queue_pair",
            &parameters,
        );
        Switch { ingress: AssemblyPipeline::from_assembly(&text, "ingress"), egress }
    }
}

/// Puts fields into a direction, where they lie at its begin.
fn put(pipeline: &mut AssemblyPipeline, fields: &[(&str, u64)]) {
    for (field, value) in fields {
        pipeline.set(field, 0, *value);
    }
}

/// What each report has that comes to egress: its queue pair is there.
const DEPARTS: [(&str, u64); 3] =
    [("hdr.kind.$valid", 1), ("hdr.bridge.$valid", 1), ("hdr.bridge.pair", PAIR as u64)];

fn same<T: PartialEq + std::fmt::Debug>(what: &str, is: T, wanted: T) -> Result<(), String> {
    if is == wanted { Ok(()) } else { Err(format!("{what}: {is:?} instead of {wanted:?}")) }
}

/// The software with one store, whose frames begin with this PSN.
fn reference(kind: StoreKind, positions: Vec<(u32, u32)>, start_psn: u32) -> Reference {
    reference_of(kind, positions, Vec::new(), start_psn)
}

/// The same with more entries.
fn reference_of(
    kind: StoreKind,
    positions: Vec<(u32, u32)>,
    more: Vec<DataPlaneEntry>,
    start_psn: u32,
) -> Reference {
    let mut program = Program::from(more);
    program.set(DataPlaneEntry::Service(ReportService { address: IpAddr::V4(SERVICE), port: dta::PORT }));
    let end = |ip| Endpoint { mac: Mac([2, 0, 0, 9, 0, 1]), ..Endpoint::new(IpAddr::V4(ip)) };
    program.set(DataPlaneEntry::QueuePair(ProgramQueuePair {
        collector: 0,
        purpose: Purpose::Write,
        transport: Transport::Uc,
        remote_qpn: 0x11,
        local_qpn: 0x100,
        source: end(SERVICE),
        destination: end(Ipv4Addr::new(10, 9, 1, 1)),
        tos: 0,
        max_dest_rd_atomic: 16,
        generation: 1,
        start_psn,
        replaced: None,
    }));
    if let StoreKind::Append { lists, .. } = kind {
        let entry = Lists { store: STORE, collector: 0, first: 0, count: lists, positions };
        program.set(DataPlaneEntry::Lists(entry));
    }
    let queue_pair = kind.primitive().queue_pair_purpose();
    let spec = StoreSpec { id: STORE, name: "store".to_owned(), kind };
    program.set(DataPlaneEntry::Store(Store {
        collector: 0,
        buckets: Copies::default(),
        length: spec.region_len(),
        spec,
        address: ADDRESS,
        rkey: Rkey(0x1234),
        generation: 1,
        queue_pair,
    }));
    Reference::new(&program, ROWS as usize).unwrap()
}

fn take(reference: &mut Reference, report: &DtaReport<'_>) -> ReferenceOutput {
    let mut bytes = [0; 128];
    let len = report.encode_into(&mut bytes).unwrap();
    let from = SocketAddrV4::new(Ipv4Addr::new(10, 9, 2, 1), 5000);
    reference.process_report(from, SocketAddrV4::new(SERVICE, dta::PORT), &bytes[..len])
}

fn report(sequence: u32, body: DtaBody<'_>) -> DtaReport<'_> {
    DtaReport { retransmittable: true, sequence, reporter: REPORTER, ..DtaReport::new(STORE, body) }
}

/// What stands in an RDMA WRITE: PSN, address, payload.
fn written(frame: &[u8]) -> (u32, u64, Vec<u8>) {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    (number(&frame[37..40]) as u32, number(&frame[40..48]), frame[56..frame.len() - 4].to_vec())
}

/// The frame that leaves egress: PSN, address, words. `None` if none does.
fn leaves(egress: &AssemblyPipeline, words: usize) -> Option<(u32, u64, Vec<u32>)> {
    let of = |field: &str| egress.get(field, DEPARSER) as u32;
    if of("eg_intr_md_for_dprsr.drop_ctl") != 0 {
        return None;
    }
    let names = (0..words).map(|word| format!("hdr.w{word}.word"));
    let address = u64::from(of("hdr.target.address_high")) << 32 | u64::from(of("hdr.target.address_low"));
    Some((of("hdr.bth.psn"), address, names.map(|name| of(&name)).collect()))
}

/// PSNs of a queue pair are counted modulo 2^24, each pair for itself, and set by the control plane or by a NAK.
fn psns(mut switch: Switch) -> Result<(), String> {
    let egress = &mut switch.egress;
    let table = egress.find_table("Departure.psn");
    let stage = egress.stage_of_table(&table);
    egress.register_mut("next_psn").set(PAIR + 1, 77);
    for start in ENDS.into_iter().chain([0xff_fffe, 0xff_ffc0 + 61]) {
        for by_packet in [false, true] {
            egress.clear_containers();
            if by_packet {
                egress.set("hdr.bridge.$valid", stage, 1);
                egress.set("hdr.kind.work", stage, 7);
                egress.set("hdr.bridge.pair", stage, PAIR.into());
                egress.set("hdr.bridge.index", stage, start.into());
                egress.run_table(&table);
            } else {
                egress.register_mut("next_psn").set(PAIR, start);
            }
            for n in 0..4 {
                egress.clear_containers();
                for (field, value) in
                    DEPARTS.into_iter().chain([("meta.has_pair", 1), ("meta.sends", 1), ("meta.rc", 1)])
                {
                    if egress.has_field(field, stage) {
                        egress.set(field, stage, value);
                    }
                }
                egress.run(&table, DEPARSER);
                let wanted = Psn::new(start).wrapping_add(n).get();
                same("PSN", egress.get("hdr.bth.psn", DEPARSER) as u32, wanted)?;
                same("AckReq", egress.get("hdr.bth.ack_request", DEPARSER), u64::from(wanted % 64 == 63))?;
            }
        }
    }
    same("PSN of another pair", egress.register_mut("next_psn").get(PAIR + 1), 77)
}

/// An entry of a list, as it comes to egress.
struct Appended<'a> {
    value: &'a [u32],
    /// The frame wakes the reader, and it does so now.
    notify: bool,
    hurries: bool,
    /// There is no entry: what is held leaves.
    flush: bool,
}

/// A list's state, and the bytes of its ring as a mask of batches.
const LIST: u32 = 2;
const LIST_STATE: u32 = 40_000;
const RING: u64 = 4;

fn append(egress: &mut AssemblyPipeline, entry: &Appended<'_>) -> Option<(u32, u64, Vec<u32>)> {
    egress.clear_containers();
    let from = egress.first_table();
    let ring = ADDRESS + u64::from(LIST) * RING * 16;
    put(egress, &DEPARTS);
    for (field, value) in [
        ("hdr.kind.work", 2),
        ("hdr.list.$valid", 1),
        ("hdr.bridge.index", LIST_STATE.into()),
        ("hdr.bridge.mask", RING - 1),
        ("hdr.bridge.element_shift", 4),
        ("hdr.bridge.words", entry.value.len() as u64),
        ("hdr.bridge.notify", entry.notify.into()),
        ("hdr.bridge.hurries", (entry.flush || entry.notify && entry.hurries).into()),
        ("hdr.bridge.flush", entry.flush.into()),
        ("hdr.bridge.address_high", ring >> 32),
        ("hdr.bridge.address_low", ring & 0xffff_ffff),
        ("hdr.list.list", LIST.into()),
        ("hdr.w0.word", entry.value[0].into()),
        ("hdr.w1.word", entry.value.get(1).copied().unwrap_or(0).into()),
    ] {
        egress.set(field, 0, value);
    }
    egress.run(&from, DEPARSER);
    let (psn, address, words) = leaves(egress, 2)?;
    let first = egress.get("hdr.sum.word", DEPARSER) as u32;
    // The check is a hash; it is in the lower bytes of the last word.
    let count = egress.get("hdr.w2.word(24..31)", DEPARSER) as u32;
    Some((psn, address, vec![first, words[0], words[1], count]))
}

/// PSN, address and words of a batch, the last of them without the check.
type Batch = (u32, u64, Vec<u32>);

/// The batch in a frame.
fn batch(frame: &[u8], notify: bool) -> Batch {
    // A frame that wakes has 4 bytes more before its payload.
    let (psn, address, payload) = written(frame);
    let words =
        payload[usize::from(notify) * 4..].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
    let mut words: Vec<u32> = words.collect();
    *words.last_mut().unwrap() >>= 24;
    (psn, address, words)
}

/// The batch that left, which has to be that of the first frame, or none where there is no frame.
fn same_batch(
    what: &str,
    ours: Option<Batch>,
    frames: &[Vec<u8>],
    notify: bool,
) -> Result<Option<Batch>, String> {
    same(what, ours.clone(), frames.first().map(|frame| batch(frame, notify)))?;
    Ok(ours)
}

/// Batches have the entries, the sequence, the count and the place that the software gives them, and no place of the
/// ring is left out.
fn lists(mut switch: Switch) -> Result<(), String> {
    let (mut checked, mut flushed) = (0, 0);
    for (words, notify) in [(1, false), (1, true), (2, false), (2, true)] {
        for newest in [0, 1, 0xff_ffff, 0x7fff_ffff, u32::MAX - 3, u32::MAX - 1, u32::MAX] {
            let kind =
                StoreKind::Append { lists: 4, ring: RING, batch_len: 16, entry_len: 4 * words as u8, notify };
            let mut reference = reference(kind, vec![(LIST, newest)], 0xff_fff0);
            let egress = &mut switch.egress;
            egress.register_mut("next_psn").set(PAIR, 0xff_fff0);
            egress.register_mut("list_count").set(LIST_STATE, 0);
            // 2^32 - 1 stands as 0, as the control plane writes it: 1 comes after both.
            let stands = if newest == u32::MAX { 0 } else { newest };
            egress.register_mut("list_sequence").set(LIST_STATE, stands);
            egress.register_mut("list_word_0").set(LIST_STATE, 0xdead_beef);
            let (mut places, mut sequence) = ([0; RING as usize], newest);
            for at in 0..24_u32 {
                let value: Vec<u32> = (0..words)
                    .map(|word| ENDS[(at + word) as usize % ENDS.len()].wrapping_add(at / 7))
                    .collect();
                // Also twice in a row, and as the second of a batch.
                let hurries = at % 5 == 0 || at % 7 == 1;
                let bytes: Vec<u8> = value.iter().flat_map(|word| word.to_be_bytes()).collect();
                let body = DtaBody::Append { list: LIST, value: &bytes };
                let made = take(&mut reference, &DtaReport { immediate: hurries, ..report(at, body) });
                let what = format!("entry {at} of {words} words after batch {newest}, notify: {notify}");
                let ours = append(egress, &Appended { value: &value, notify, hurries, flush: false });
                let mut left = vec![same_batch(&what, ours, &made.frames, notify)?];
                // After an entry that waits, and after one that does not. Batches of one entry hold nothing.
                if words == 1 && at % 3 == 1 {
                    let frames = reference.flush_held_reports();
                    let nothing = Appended { value: &[0], notify, hurries: false, flush: true };
                    let ours = append(egress, &nothing);
                    flushed += u32::from(ours.is_some());
                    left.push(same_batch(&format!("{what}, flushed"), ours, &frames, notify)?);
                }
                for (_, address, batch) in left.into_iter().flatten() {
                    sequence = append::next(sequence);
                    same("sequence", batch[2], sequence)?;
                    places[((address / 16) % RING) as usize] += 1;
                    checked += 1;
                }
            }
            // In each turn each place is written, but for the last one at the end of all numbers.
            let (least, most) = (places.iter().min().unwrap(), places.iter().max().unwrap());
            if newest < u32::MAX - 8 && most - least > 1 {
                return Err(format!("places of the ring: {places:?}"));
            }
        }
    }
    if checked > 200 && flushed > 20 {
        Ok(())
    } else {
        Err(format!("only {checked} batches, {flushed} by a flush"))
    }
}

/// A report of a reporter goes by: its NACK, if one is made, as first sequence and count.
fn hear(switch: &mut Switch, sequence: u32, restarted: bool) -> Option<(u32, u16)> {
    let ingress = &mut switch.ingress;
    ingress.clear_containers();
    for table in [
        "Admission.sequences.hears",
        "Admission.sequences.follow",
        "Admission.sequences.compare",
        "Admission.sequences.gap",
    ] {
        let table = ingress.find_table(table);
        let stage = ingress.stage_of_table(&table);
        for (field, last, value) in [
            ("ig_intr_md.ingress_port", 2, 9),
            ("hdr.v1.$valid", 2, 1),
            ("meta.reporter", 3, REPORTER.into()),
            ("hdr.dta.restarted", 5, restarted.into()),
            ("hdr.v1.sequence", 5, sequence.into()),
        ] {
            if stage <= last {
                ingress.set(field, stage, value);
            }
        }
        ingress.run_table(&table);
    }
    let stage = ingress.stage_of_table(&ingress.find_table("Admission.sequences.gap")) + 1;
    if ingress.get("meta.gap", stage) == 0 {
        return None;
    }
    let ahead = ingress.get("meta.ahead", stage);
    let egress = &mut switch.egress;
    egress.clear_containers();
    let from = egress.first_table();
    for (field, value) in [
        ("hdr.mirrored.$valid", 1),
        ("hdr.v1.$valid", 1),
        ("hdr.mirrored.ahead", ahead),
        ("meta.ahead_16", ahead & 0xffff),
        ("meta.ahead_8", ahead & 0xff),
        ("hdr.v1.sequence", sequence.into()),
        ("hdr.dta.sequence", u64::from(sequence) & 0xff),
        ("hdr.v1.reporter", REPORTER.into()),
    ] {
        egress.set(field, 0, value);
    }
    egress.run(&from, DEPARSER);
    let of = |field: &str| egress.get(field, DEPARSER);
    assert_eq!(of("hdr.nack.reporter"), u64::from(REPORTER));
    assert_eq!(of("hdr.nack.first") & 0xff, of("hdr.nack.sequence"));
    Some((of("hdr.nack.first") as u32, of("hdr.nack.count") as u16))
}

/// Gaps are seen and counted as the software does it, however far ahead a report is.
fn sequences(switch: Switch) -> Result<(), String> {
    let mut nacks = 0;
    for start in ENDS.into_iter().chain([0x3fff_fffe, 0x4000_0000, 0xbfff_ffff, 0xc000_0000, 0xffff_fffe]) {
        let mut switch = switch.clone();
        let kind = StoreKind::KeyWrite { slots: 64, value_len: 4, redundancy: 1, keys: Default::default() };
        let mut reference = reference(kind, Vec::new(), 0);
        let (mut sequence, mut missing) = (start, 0_u32);
        let steps =
            [1, 1, 2, 3, -1, 0, -2, 5, 1, 1023, 1024, 1025, -1000, 1001, 0x3fff_ffff, 1, -0x3fff_ffff];
        let more = [0x3fff_fffe, 2, -1, 0x3fff_ffff, 0x3fff_ffff, 0x3fff_ffff, 2, -3, 4, 1];
        // The widest gap is one of 2^31 - 1: behind 2^31 more, what comes is late.
        let far =
            [1 << 30, 1, 0x5000_0000, 1, i32::MAX, 1, i32::MIN, 1, -i32::MAX, 1, i32::MIN, -1, i32::MAX, 2];
        for (at, step) in [0].into_iter().chain(steps).chain(more).chain(far).enumerate() {
            sequence = sequence.wrapping_add_signed(step);
            let restarted = at == 20;
            let key = Key([0; 16]);
            let body = DtaBody::KeyWrite { redundancy: 0, key, value: &[0; 4] };
            let made = take(&mut reference, &DtaReport { restarted, ..report(sequence, body) });
            let wanted = made.nacks.first().map(|nack| match dta::Nack::parse_payload(nack).unwrap() {
                dta::Nack::V1 { first, count, .. } => (first, count),
                other @ dta::Nack::V0 { .. } => panic!("{other:?}"),
            });
            let what = format!("sequence {sequence:#x}, {at} after {start:#x}");
            same(&what, hear(&mut switch, sequence, restarted), wanted)?;
            let count = wanted.map_or(0, |(_, count)| count);
            missing = missing.wrapping_add(count.into());
            nacks += u32::from(wanted.is_some());
            // A late one does not become the newest, and is not where the next steps begin.
            if step < 0 && step != i32::MIN && !restarted {
                sequence = sequence.wrapping_sub(step as u32);
            }
        }
        same("nacked sequences", switch.egress.register_mut("nacked_sequences").get(0), missing)?;
        // Another reporter is not heard of yet.
        same("another reporter", switch.ingress.register_mut("heard").get(u32::from(REPORTER) + 1), 0)?;
    }
    if nacks > 100 { Ok(()) } else { Err(format!("only {nacks} NACKs")) }
}

#[test]
fn a_gap_is_counted_once_however_wide_it_is() {
    for ahead in [1 << 30, 0x5000_0000, (1 << 31) - 1, 1 << 31] {
        for start in ENDS {
            let mut switch = Switch::new(POSTCARDS);
            let far = start.wrapping_add(ahead);
            assert_eq!(hear(&mut switch, start, false), None);
            let all_there_is = Some((far.wrapping_sub(1023), 1023));
            assert_eq!(hear(&mut switch, far, false), all_there_is, "{ahead:#x} after {start:#x}");
            assert_eq!(hear(&mut switch, far.wrapping_add(1), false), None, "{ahead:#x} after {start:#x}");
            assert_eq!(switch.egress.register_mut("nacked_sequences").get(0), 1023);
        }
    }
}

/// Rows of a cache; the store's are the second ones of all.
const ROWS: u32 = 4;

/// What a postcard makes: the rows that leave, each as its key and words.
type Row = ([u32; 4], Vec<u32>);

fn postcard(
    switch: &mut Switch,
    key: &Key,
    hop: u8,
    path_length: u8,
    value: u32,
) -> Result<Vec<Row>, String> {
    let words = |bytes: &[u8]| -> Vec<u32> {
        bytes.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
    };
    let mut rows = Vec::new();
    // A postcard that finds its place taken by another row, and is the whole path, comes once more.
    for pass in 0..2 {
        let ingress = &mut switch.ingress;
        ingress.clear_containers();
        let shape = ingress.find_table("Admission.postcard.postcard");
        let stage = ingress.stage_of_table(&shape);
        ingress.set("hdr.dta.opcode", stage, 4);
        ingress.set("hdr.v1.$valid", stage, 1);
        ingress.set("meta.redundancy", stage, u64::from(path_length << 4 | hop));
        ingress.run_table(&shape);
        let place = (hash::key_hash(key) & (ROWS - 1)) | ROWS;
        let words = words(&key.0);
        let fields = [
            ("hdr.key_first.word", words[0]),
            ("hdr.key.b", words[1]),
            ("hdr.key.c", words[2]),
            ("hdr.key.d", words[3]),
            ("hdr.w0.word", value),
            ("meta.row", place),
            ("meta.taken", 1),
            ("ig_intr_md.ingress_port", if pass == 0 { 9 } else { 69 }),
        ];
        let (row, is_mirrored) = pass_rows(switch, &fields)?;
        rows.extend(row);
        if !is_mirrored {
            break;
        }
        same("passes of a postcard that goes once more", pass, 0)?;
    }
    Ok(rows)
}

/// A command of the control plane: the row at a place leaves.
fn flush_row(switch: &mut Switch, place: u32) -> Result<Option<Row>, String> {
    switch.ingress.clear_containers();
    let fields = [
        ("hdr.key_first.word", 0),
        ("hdr.key.b", 0),
        ("hdr.key.c", 0),
        ("hdr.key.d", 0),
        ("hdr.w0.word", 0),
        ("meta.row", place),
        // As the parser sets them.
        ("meta.path_length", 7),
        ("meta.hop", 7),
        ("meta.head", 0),
    ];
    let (row, is_mirrored) = pass_rows(switch, &fields)?;
    same("a flush goes once more", is_mirrored, false)?;
    Ok(row)
}

/// A packet passes the registers of rows: the row that leaves, and whether it goes once more.
fn pass_rows(switch: &mut Switch, fields: &[(&str, u32)]) -> Result<(Option<Row>, bool), String> {
    let ingress = &mut switch.ingress;
    let from = ingress.find_table("Admission.rows.take_key_d");
    let stage = ingress.stage_of_table(&from);
    // What comes before that: most of them are only kept.
    ingress.set("ig_intr_md_for_dprsr.drop_ctl", stage, 1);
    // Words of the packet before, as containers may have them.
    for (field, value) in [("meta.is_row", 1), ("hdr.w1.word", 0xdead_beef)].iter().chain(fields) {
        // Whether it was taken, and where it came from, may not matter here any more.
        if !["meta.taken", "ig_intr_md.ingress_port"].contains(field) || ingress.has_field(field, stage) {
            ingress.set(field, stage, (*value).into());
        }
    }
    ingress.run(&from, DEPARSER);
    let of = |field: &str| ingress.get(field, DEPARSER);
    let names = |names: &[&str]| names.iter().map(|name| of(name) as u32).collect::<Vec<u32>>();
    let key = names(&["hdr.key_first.word", "hdr.key.b", "hdr.key.c", "hdr.key.d"]);
    let row = names(&WORDS[1..8]);
    let (is_dropped, mirrors) = (of("ig_intr_md_for_dprsr.drop_ctl"), of("ig_intr_md_for_dprsr.mirror_type"));
    // The region of rows is filled by the control plane: without it the row is counted, and thrown away.
    let has_left = ingress.get("meta.leaves", DEPARSER - 1) == 1;
    same("dropped, or kept", is_dropped, 1)?;
    let row = has_left.then(|| (key.try_into().unwrap(), depart(&mut switch.egress, &row)));
    Ok((row, mirrors != 0))
}

/// The words of a row as they leave egress.
fn depart(egress: &mut AssemblyPipeline, row: &[u32]) -> Vec<u32> {
    egress.clear_containers();
    let from = egress.first_table();
    put(egress, &DEPARTS);
    put(
        egress,
        &[
            ("hdr.kind.work", 4),
            ("hdr.key_first.$valid", 1),
            ("hdr.bridge.element_shift", 5),
            ("meta.sends", 1),
        ],
    );
    for (field, word) in WORDS[1..8].iter().zip(row) {
        egress.set(field, 0, u64::from(*word));
    }
    egress.run(&from, DEPARSER);
    WORDS[1..8].iter().map(|word| egress.get(word, DEPARSER) as u32).collect()
}

/// Rows leave when the software's do, with the same words, for the key that they are of.
fn rows(mut switch: Switch) -> Result<(), String> {
    let kind = StoreKind::Postcarding { slots: 64, hops: 6, redundancy: 1 };
    let mut reference = reference(kind, Vec::new(), 0);
    // Zero is a key as any other. These share places; some differ in one word alone.
    let mut keys = vec![Key([0; 16]), Key([0xff; 16])];
    for word in 0..4 {
        for bit in [0, 7] {
            let mut key = [0; 16];
            key[word * 4 + 3 - bit / 2] = 1 << bit;
            keys.push(Key(key));
        }
    }
    let mut postcards: Vec<(usize, u8, u8, u32)> = Vec::new();
    // A path after the other, forwards and backwards, with a hop again, and of each length.
    for length in 1..=6 {
        for (at, key) in [0, 1, 2].into_iter().enumerate() {
            for hop in 0..length {
                let hop = if at == 1 { length - 1 - hop } else { hop };
                postcards.push((key, hop, length, ENDS[usize::from(hop)]));
                if hop == 2 {
                    postcards.push((key, hop, length, 4711));
                }
            }
        }
    }
    // The same path of one hop twice; lengths that change; none known.
    postcards.extend([(0, 0, 1, 5), (0, 0, 1, 6), (0, 0, 0, 7), (0, 1, 0, 8), (0, 0, 2, 9), (0, 0, 1, 10)]);
    let mut dice = 1_u64;
    for _ in 0..1500 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let of = |at: u32, below: u64| (dice >> at) % below;
        let length = of(40, 7) as u8;
        let hop = of(50, if length == 0 { 6 } else { length.into() }) as u8;
        let value = if of(20, 3) == 0 { ENDS[of(24, 7) as usize] } else { (dice >> 8) as u32 };
        postcards.push((of(33, keys.len() as u64) as usize, hop, length, value));
    }
    let stands = |(key, words): Row| {
        let key: Vec<u8> = key.into_iter().flat_map(u32::to_be_bytes).collect();
        let key = Key(key.try_into().unwrap());
        let words: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        let sum = hash::value_checksum(&key, &words).to_be_bytes();
        let slot = hash::slot_index(hash::key_hash(&key), 0, 64);
        (ADDRESS + slot * 32, [&sum[..], &words[..]].concat())
    };
    let stood = |frame: &[u8]| {
        let (_, address, payload) = written(frame);
        (address, payload)
    };
    let (mut left, mut flushed) = (0, 0);
    for (at, (key, hop, path_length, value)) in postcards.into_iter().enumerate() {
        let key = keys[key];
        let body = DtaBody::Postcard { key, hop, path_length, value };
        let made = take(&mut reference, &report(at as u32, body));
        let ours = postcard(&mut switch, &key, hop, path_length, value)?;
        let ours: Vec<_> = ours.into_iter().map(stands).collect();
        let wanted: Vec<_> = made.frames.iter().map(|frame| stood(frame)).collect();
        left += wanted.len();
        same(&format!("postcard {at}: hop {hop} of {path_length}, {key:?}"), ours, wanted)?;
        if at % 50 == 49 {
            let mut wanted: Vec<_> =
                reference.flush_held_reports().iter().map(|frame| stood(frame)).collect();
            let mut ours = Vec::new();
            for place in ROWS..2 * ROWS {
                ours.extend(flush_row(&mut switch, place)?.map(stands));
                // Nothing is left there.
                same("a row after its flush", flush_row(&mut switch, place)?, None)?;
            }
            ours.sort();
            wanted.sort();
            flushed += ours.len();
            same(&format!("a flush after postcard {at}"), ours, wanted)?;
        }
    }
    if left > 500 && flushed > 40 { Ok(()) } else { Err(format!("only {left} rows, {flushed} by a flush")) }
}

#[test]
fn psns_are_counted_modulo_their_bits() {
    for profile in profiles::ALL {
        psns(Switch::new(profile)).unwrap();
    }
}

#[test]
fn batches_of_lists_are_those_of_the_software() {
    for profile in [POSTCARDS, SKETCHES] {
        lists(Switch::new(profile)).unwrap();
    }
    batches::batches(Switch::new(LONG_BATCHES)).unwrap();
}

#[test]
fn gaps_are_those_of_the_software() {
    for profile in profiles::ALL {
        sequences(Switch::new(profile)).unwrap();
    }
}

#[test]
fn rows_of_postcards_are_those_of_the_software() {
    rows(Switch::new(POSTCARDS)).unwrap();
}

#[test]
fn columns_of_sketches_are_those_of_the_software() {
    columns::columns(Switch::new(SKETCHES)).unwrap();
}

/// Other instructions in the place of one: what it does is changed in each.
fn changes(line: &str, is_alone: bool) -> Vec<String> {
    let mut changes = Vec::new();
    for (from, to) in [
        (".uus", ".u"),
        ("alu_a lo, 0", "alu_a lo, 1"),
        ("alu_a lo, 1", "alu_a lo, 2"),
        ("alu_a cmplo, lo, 0", "alu_a cmplo, lo, lo"),
        ("alu_a cmplo, lo, 1", "alu_a cmplo, lo, lo"),
        ("alu_a !cmplo, lo, 0", "alu_a !cmplo, lo, lo"),
        ("!cmplo", "cmplo"),
        (" cmplo", " !cmplo"),
        ("phv_lo", "lo"),
        ("phv_hi", "phv_lo"),
        ("lo, lo, 1", "lo, lo, 2"),
        ("equ lo, lo, 2", "equ lo, lo, 1"),
        ("equ lo, lo", "neq lo, lo"),
        ("geq", "grt"),
        ("grt", "lss"),
        ("add ", "sub "),
        ("or ", "xor "),
        ("or ", "and "),
        ("and ", "or "),
        ("saddu ", "add "),
        ("ssubu ", "sub "),
        ("maxu ", "minu "),
        ("subr ", "sub "),
    ] {
        if line.starts_with(from)
            || (!from.contains("lo, ") || from.starts_with("lo, ")) && line.contains(from)
        {
            changes.push(line.replacen(from, to, 1));
        }
    }
    // A program that changes nothing gives the same before and after.
    if line == "output mem_lo" && !is_alone {
        changes.push("output alu_lo".to_owned());
    }
    // Comparisons are needed by what follows them.
    if !["equ", "geq", "grt"].iter().any(|what| line.starts_with(what)) {
        changes.push(String::new());
    }
    changes.retain(|change| change != line);
    changes
}

/// Changes that nobody could notice, as nobody asks for what they change: of a column that begins, the epoch and the reporter
/// that were there; of one that goes on, the reports that it had.
fn is_alike(program: &str, line: &str) -> bool {
    match program.trim_start_matches("columns_") {
        "begin_epoch" | "begin_reporters" => ["alu_a hi, 0", "output alu_hi"].contains(&line),
        "one_more_unsent" => line == "output mem_lo",
        _ => false,
    }
}

type Check = fn(Switch) -> Result<(), String>;

/// The check of a register, by its name.
fn check_of(profile: &str, register: &str) -> Option<(&'static str, Check)> {
    Some(match (profile, register) {
        (SKETCHES, name) if name.starts_with("column_") => ("columns", columns::columns),
        (LONG_BATCHES, name) if name.starts_with("list_") => ("batches", batches::batches),
        // What the profiles have in common is looked at once.
        (SKETCHES | LONG_BATCHES, _) => return None,
        (_, "next_psn") => ("psns", psns),
        (_, "list_count" | "list_sequence" | "list_word_0") => ("lists", lists),
        (_, "heard" | "next_sequence" | "nacked_sequences") => ("sequences", sequences),
        _ => ("rows", rows),
    })
}

/// A check that passes whatever the registers do would be none: each changed instruction is noticed by one.
#[test]
fn each_changed_instruction_is_noticed() {
    let mut unnoticed = Vec::new();
    for (profile, least) in [(POSTCARDS, 80), (SKETCHES, 40), (LONG_BATCHES, 20)] {
        let switch = Switch::new(profile);
        let mut tried = 0;
        for is_ingress in [true, false] {
            let pipeline = if is_ingress { &switch.ingress } else { &switch.egress };
            for (name, register) in &pipeline.registers {
                let Some((called, check)) = check_of(profile, name.rsplit('.').next().unwrap()) else {
                    continue;
                };
                for (program, lines) in &register.programs {
                    for (at, line) in lines.iter().enumerate() {
                        if is_alike(program, line) {
                            continue;
                        }
                        for change in changes(line, lines.len() == 1) {
                            let mut switch = switch.clone();
                            let pipeline = if is_ingress { &mut switch.ingress } else { &mut switch.egress };
                            let lines =
                                pipeline.registers.get_mut(name).unwrap().programs.get_mut(program).unwrap();
                            if change.is_empty() {
                                lines.remove(at);
                            } else {
                                lines[at].clone_from(&change);
                            }
                            tried += 1;
                            if check(switch).is_ok() {
                                unnoticed.push(format!("{name} {program}: {line} -> {change} ({called})"));
                            }
                        }
                    }
                }
            }
        }
        assert!(tried > least, "only {tried} changes of {profile}");
    }
    assert_eq!(unnoticed, Vec::<String>::new());
}
