//! Batches of 32 and 64 bytes.

use crate::assembly::pipeline::{AssemblyPipeline, DEPARSER};
use crate::assembly::profiles::{LONG_BATCHES, WORDS, words_of_element};
use dta_proto::layout::append;
use dta_proto::store::StoreKind;
use dta_proto::wire::dta::{DtaBody, DtaReport};

use super::{ADDRESS, DEPARTS, ENDS, PAIR, Switch, put, reference, report, same, same_batch, take};

/// A list's state, and the batches of its ring.
const LIST: u32 = 3;
const LIST_STATE: u32 = 12_000;
const RING: u64 = 4;

/// How an entry comes.
#[derive(Clone, Copy)]
struct How {
    notify: bool,
    hurries: bool,
    /// There is no entry: what is held leaves. The value is the zeros that a command has in its place.
    flush: bool,
}

/// An entry comes to egress: PSN, address and words of the batch that leaves with it.
fn append(
    egress: &mut AssemblyPipeline,
    batch_len: u64,
    value: &[u32],
    how: How,
) -> Option<(u32, u64, Vec<u32>)> {
    egress.clear_containers();
    let from = egress.first_table();
    let ring = ADDRESS + u64::from(LIST) * RING * batch_len;
    let words = value.len() as u64;
    put(egress, &DEPARTS);
    put(
        egress,
        &[
            ("hdr.kind.work", 2),
            ("hdr.list.$valid", 1),
            ("hdr.bridge.index", LIST_STATE.into()),
            ("hdr.bridge.mask", RING - 1),
            ("hdr.bridge.element_shift", batch_len.trailing_zeros().into()),
            ("hdr.bridge.words", words),
            ("hdr.bridge.last", (batch_len - 8) / (4 * words) - 1),
            ("hdr.bridge.notify", how.notify.into()),
            ("hdr.bridge.hurries", (how.flush || how.notify && how.hurries).into()),
            ("hdr.bridge.flush", how.flush.into()),
            ("hdr.bridge.address_high", ring >> 32),
            ("hdr.bridge.address_low", ring & 0xffff_ffff),
            ("hdr.list.list", LIST.into()),
        ],
    );
    // Behind the entry is what was there before.
    for (at, field) in WORDS.into_iter().enumerate() {
        if egress.has_field(field, 0) {
            egress.set(field, 0, value.get(at).copied().unwrap_or(0xdead_beef).into());
        }
    }
    egress.run(&from, DEPARSER);
    let of = |field: &str| egress.get(field, DEPARSER) as u32;
    if of("eg_intr_md_for_dprsr.drop_ctl") != 0 {
        return None;
    }
    let address = u64::from(of("hdr.target.address_high")) << 32 | u64::from(of("hdr.target.address_low"));
    let names = words_of_element(LONG_BATCHES, batch_len as usize);
    let (last, names) = names.split_last().unwrap();
    let mut words: Vec<u32> = names.iter().map(|word| of(word)).collect();
    // The check is a hash; it is in the lower bytes of the last word.
    words.push(of(&format!("{last}(24..31)")));
    Some((of("hdr.bth.psn"), address, words))
}

/// Batches of each length have the entries, the sequence, the count and the place that the software gives them.
pub(crate) fn batches(mut switch: Switch) -> Result<(), String> {
    let (mut checked, mut flushed) = (0, 0);
    for (batch_len, words) in [
        (32, 1),
        (32, 2),
        (32, 3),
        (32, 4),
        (32, 5),
        (32, 6),
        (64, 1),
        (64, 2),
        (64, 3),
        (64, 4),
        (64, 5),
        (64, 6),
        (64, 7),
        (64, 8),
        (64, 9),
        (64, 10),
        (64, 11),
        (64, 12),
        (64, 13),
        (64, 14),
    ] {
        for (notify, newest) in [(false, 0), (true, u32::MAX - 2)] {
            let kind = StoreKind::Append {
                lists: 4,
                ring: RING,
                batch_len: batch_len as u16,
                entry_len: 4 * words as u8,
                notify,
            };
            let mut reference = reference(kind, vec![(LIST, newest)], 0xff_fffa);
            let egress = &mut switch.egress;
            egress.register_mut("next_psn").set(PAIR, 0xff_fffa);
            egress.register_mut("list_count").set(LIST_STATE, 0);
            egress.register_mut("list_sequence").set(LIST_STATE, newest);
            for word in 0..13 {
                egress.register_mut(&format!("list_word_{word}")).set(LIST_STATE, 0xdead_beef);
            }
            let mut sequence = newest;
            for at in 0..64_u32 {
                let word =
                    |word: u32| ENDS[(at + 3 * word) as usize % ENDS.len()].wrapping_add(at * 16 + word);
                let value: Vec<u32> = (0..words).map(word).collect();
                // Also twice in a row, and as the second of a batch.
                let hurries = at % 11 == 0 || at % 13 == 1;
                let bytes: Vec<u8> = value.iter().flat_map(|word| word.to_be_bytes()).collect();
                let body = DtaBody::Append { list: LIST, value: &bytes };
                let made = take(&mut reference, &DtaReport { immediate: hurries, ..report(at, body) });
                let how = How { notify, hurries, flush: false };
                let what = format!("entry {at} of {words} words in {batch_len} bytes, notify: {notify}");
                let ours = append(egress, batch_len, &value, how);
                let mut left = vec![same_batch(&what, ours, &made.frames, notify)?];
                // At the end whole batches are gathered.
                if at < 32 && (at % 9 == 4 || at % 9 == 5) {
                    let frames = reference.flush_held_reports();
                    let how = How { flush: true, ..how };
                    let ours = append(egress, batch_len, &vec![0; words as usize], how);
                    flushed += u32::from(ours.is_some());
                    left.push(same_batch(&format!("{what}, flushed"), ours, &frames, notify)?);
                }
                for (_, _, batch) in left.into_iter().flatten() {
                    sequence = append::next(sequence);
                    same("sequence", batch[batch.len() - 2], sequence)?;
                    checked += 1;
                }
            }
        }
    }
    if checked > 500 && flushed > 80 {
        Ok(())
    } else {
        Err(format!("only {checked} batches, {flushed} by a flush"))
    }
}
