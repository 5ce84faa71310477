//! Slots of key-write: what ingress makes of a report, from its first byte on, and egress of that.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::assembly::parser::{Parser, ingress_packet};
use crate::assembly::pipeline::{AssemblyPipeline, DEPARSER};
use crate::assembly::profiles::{self, POSTCARDS, SKETCHES, WORDS};
use dta_proto::key::Key;
use dta_proto::program::Mac;
use dta_proto::store::{SlotKeys, StoreKind};
use dta_proto::wire::datagram;
use dta_proto::wire::dta::{self, DtaBody};
use dta_proto::wire::ethernet;

use super::{PAIR, SERVICE, STORE, Switch, reference, report, take, written};

const KEY: Key = Key([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0xff]);
/// What the chip puts before a packet that comes to egress.
const EGRESS_METADATA: usize = 27;

/// A report as it comes to the switch.
fn frame(body: DtaBody<'_>) -> Vec<u8> {
    let mut header = [0; ethernet::HEADER_LEN];
    let (dst, src) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    ethernet::EthernetRepr { dst, src, ethertype: 0x0800 }.encode_into(&mut header);
    let mut bytes = [0; 128];
    let len = report(1, body).encode_into(&mut bytes).unwrap();
    let from = SocketAddrV4::new(Ipv4Addr::new(10, 9, 2, 1), 5000);
    [&header[..], &datagram::encode_header(from, SocketAddrV4::new(SERVICE, dta::PORT), len), &bytes[..len]]
        .concat()
}

/// A report behind the tables of ingress that decide what is in its slot. `None`: its value is too long for the store.
fn admitted(profile: &str, value_len: u8, keys: SlotKeys, frame: &[u8]) -> Option<(AssemblyPipeline, usize)> {
    let text = profiles::read_profile_assembly(profile);
    let mut ingress = AssemblyPipeline::from_assembly(&text, "ingress");
    let element_shift = (4 + value_len + keys.inline_key_len()).trailing_zeros();
    let parameters = [
        ("number", 1),
        ("copies", 1),
        ("value_words", u64::from(value_len / 4)),
        ("inline_keys", u64::from(!keys.are_hashed())),
        ("slots_mask", 63),
        ("element_shift", element_shift.into()),
    ];
    ingress.add_table_entry(
        "Admission.store",
        &[("meta.store", STORE.into())],
        "key_write_store",
        &parameters,
    );
    ingress.load_parsed(
        &Parser::from_assembly(&text, "ingress")
            .parse_packet(&ingress_packet(9, frame))
            .expect("a whole packet"),
    );
    // What the tables before it say: a report, in a packet of IPv4 without options.
    let stage = ingress.stage_of_table(&ingress.find_table("Admission.shape.shape"));
    ingress.set("is_report_0", stage, 1);
    ingress.set("meta.slack", stage, 20);
    for table in ["Admission.shape.shape", "Admission.store", "Admission.fit.fit"] {
        let table = ingress.find_table(table);
        ingress.run_table(&table);
    }
    let after = ingress.stage_of_table(&ingress.find_table("Admission.fit.fit")) + 1;
    (ingress.get("meta.bad_length", after) == 0).then_some((ingress, after))
}

/// What the deparser of ingress hands to egress: the headers `kind` and `bridge` of `types.p4`, the key, and the words of the value.
fn bridged(ingress: &AssemblyPipeline, stage: usize) -> Vec<u8> {
    let of = |field: &str| ingress.get(field, stage);
    let flags = of("hdr.bridge.inline_keys") << 4;
    let mut bytes =
        vec![1, 0, 0, 9, PAIR as u8, 1, 0x11, flags as u8, of("hdr.bridge.element_shift") as u8, 0];
    bytes.extend([0; 20]);
    let key = ["hdr.key_first.word", "hdr.key.b", "hdr.key.c", "hdr.key.d"];
    let words = WORDS[1..8].iter().filter(|word| of(&word.replace(".word", ".$valid")) == 1);
    for field in key.iter().chain(words) {
        bytes.extend((of(field) as u32).to_be_bytes());
    }
    bytes
}

/// The words of a slot behind its checksum, as they leave egress.
fn sent(profile: &str, bridged: &[u8]) -> Vec<u32> {
    let mut switch = Switch::new(profile);
    let packet = [&[0; EGRESS_METADATA][..], bridged].concat();
    let parsed = Parser::from_assembly(&profiles::read_profile_assembly(profile), "egress")
        .parse_packet(&packet)
        .expect("a whole packet");
    assert_eq!(parsed.payload, packet.len());
    let egress = &mut switch.egress;
    egress.load_parsed(&parsed);
    let key = ["hdr.key_first.word", "hdr.key.b", "hdr.key.c", "hdr.key.d"];
    for (field, bytes) in key.into_iter().zip(KEY.0.chunks(4)) {
        let word = u32::from_be_bytes(bytes.try_into().unwrap());
        assert_eq!(egress.get(field, 0) as u32, word, "the key whose hash is taken");
    }
    let from = egress.first_table();
    egress.run(&from, DEPARSER);
    assert_eq!(egress.get("eg_intr_md_for_dprsr.drop_ctl", DEPARSER), 0);
    // Headers that always come together leave by the bit of the first.
    let mut leaves = 0;
    let words = WORDS[1..8].iter().filter(|word| {
        let bit = word.replace(".word", ".$valid");
        if egress.has_field(&bit, DEPARSER) {
            leaves = egress.get(&bit, DEPARSER);
        }
        leaves == 1
    });
    words.map(|word| egress.get(word, DEPARSER) as u32).collect()
}

#[test]
fn slots_have_the_key_and_the_value_that_the_software_gives_them() {
    let mut seen = 0;
    for profile in [POSTCARDS, SKETCHES] {
        for (value_len, keys) in
            [(4, SlotKeys::Hashed), (12, SlotKeys::Hashed), (28, SlotKeys::Hashed), (12, SlotKeys::Inline)]
        {
            if profile == SKETCHES && value_len == 4 {
                continue;
            }
            let kind = StoreKind::KeyWrite { slots: 64, value_len, redundancy: 1, keys };
            let mut reference = reference(kind, Vec::new(), 0);
            for words in 1..=7 {
                let value: Vec<u8> = (0..4 * words).map(|byte| 0x80 | byte).collect();
                let body = DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &value };
                let made = take(&mut reference, &report(1, body));
                let wanted: Option<Vec<u32>> = made.frames.first().map(|frame| {
                    let (_, _, payload) = written(frame);
                    payload[4..].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
                });
                let ours = admitted(profile, value_len, keys, &frame(body))
                    .map(|(ingress, stage)| sent(profile, &bridged(&ingress, stage)));
                seen += u32::from(ours.is_some());
                assert_eq!(ours, wanted, "{profile}: {words} words, {value_len} bytes, {keys:?}");
            }
        }
    }
    assert_eq!(seen, 14 + 13);
}
