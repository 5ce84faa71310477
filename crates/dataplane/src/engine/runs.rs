//! Runs of key-writes: when one starts, and how its reports become operations.

use dta_proto::layout::{hash, key_write as layout};
use dta_proto::program::Primitive;
use dta_proto::wire::dta::{DtaBody, DtaReport};

use super::Engine;

use crate::counters::Reason;
use crate::egress::Elements;
use crate::frame::EngineOutput;
use crate::primitive::key_write::KeyWriteShape;
use crate::run::{DropEvidence, KeyWriteRun, MOST, VALUE_LEN};

/// Adds a judged version-1 report to a run. Returns `false`, with nothing changed, if it must be executed
/// on its own after the run.
#[inline(always)] // on the path of every report
pub(super) fn gather_key_write<'a>(
    engine: &mut Engine,
    report: &DtaReport<'_>,
    shown: DropEvidence<'a>,
    run: &mut KeyWriteRun<'a>,
    out: &mut EngineOutput,
) -> bool {
    if let DtaBody::KeyWrite { redundancy, key, value } = report.body
        && let Ok(value) = value.try_into()
        && !report.immediate
        && (run.can_continue_with((report.store, redundancy))
            || begin_run(engine, (report.store, redundancy), run, out))
    {
        run.push(key, value, shown);
        return true;
    }
    false
}

/// Sends the current run and starts one of key-writes for a store with this number of copies. Returns
/// `false`, with nothing changed, if such reports must be executed one by one.
#[inline(never)]
pub(super) fn begin_run(
    engine: &mut Engine,
    of: (u16, u8),
    run: &mut KeyWriteRun<'_>,
    out: &mut EngineOutput,
) -> bool {
    let (store, redundancy) = of;
    let fits =
        |shape: &KeyWriteShape| usize::from(shape.value_len) == VALUE_LEN && redundancy <= shape.copies;
    // Named reports do not form runs, because each has its own name.
    let begins = !engine.egress.name_reports
        && engine
            .stores
            .find_store(store)
            .and_then(|store| store.key_write())
            .is_some_and(|shape| fits(&shape));
    if begins {
        send_run(engine, run, out);
        run.restart_for(of);
    }
    begins
}

#[inline]
pub(super) fn send_run(engine: &mut Engine, run: &mut KeyWriteRun<'_>, out: &mut EngineOutput) {
    if run.len() != 0 {
        send_reports(engine, run, out);
        run.restart_for(run.store_and_copies());
    }
}

#[inline(never)]
fn send_reports(engine: &mut Engine, run: &KeyWriteRun<'_>, out: &mut EngineOutput) {
    let (store, redundancy) = run.store_and_copies();
    let Engine { stores, egress, offenders, serial, clock, .. } = engine;
    let found = stores.find_store(store).and_then(|store| Some((store.key_write()?, &store.regions)));
    let mut hashes = [0; MOST];
    for (hash, key) in hashes.iter_mut().zip(run.run_keys()) {
        *hash = hash::key_hash(key);
    }
    let place_of = |h: u32, egress: &crate::egress::Egress| match found {
        // Unreachable: a run starts only after its store was found.
        None => Err(Reason::UnknownStore),
        Some((_, regions)) => match regions.place_of_hash(h).ok_or(Reason::NoBucket)? {
            place if egress.has_pair_of(place) => Ok(place),
            _ => Err(Reason::NoQueuePair),
        },
    };
    let (hashes, mut at, mut accepted) = (&hashes[..run.len()], 0, 0);
    while let Some(h) = hashes.get(at) {
        // The reports for one region, which is usually all of them.
        let place = place_of(*h, egress);
        let alike = hashes[at..].iter().take_while(|h| place_of(**h, egress) == place).count();
        let these = at..at + alike;
        at = these.end;
        match (place, found) {
            (Ok(place), Some((KeyWriteShape { slots, value_len, copies }, _))) => {
                let elements = Elements {
                    keys: &run.run_keys()[these.clone()],
                    values: &run.run_values()[these.clone()],
                    hashes: &hashes[these],
                    copies: if redundancy == 0 { copies } else { redundancy },
                };
                let offset = |h: u32, n: u8| {
                    layout::slot_offset(hash::slot_index(h, usize::from(n), slots), value_len)
                };
                egress.write_elements(*clock, place, &elements, offset, out);
                accepted += alike;
            }
            (place, _) => {
                let reason = place.err().unwrap_or(Reason::UnknownStore);
                for shown in &run.drop_evidence()[these] {
                    egress.counters.count_dropped(reason);
                    match *shown {
                        DropEvidence::Packet(packet) => offenders.note_packet(reason, packet),
                        DropEvidence::Reporter(reporter) => offenders.note_admitted(reason, reporter, store),
                    }
                }
            }
        }
    }
    egress.counters.primitive_counters_mut(Primitive::KeyWrite).accepted += accepted as u64;
    *serial = serial.wrapping_add(accepted as u32);
}
