//! Columns of sketches.

use std::collections::BTreeMap;

use crate::assembly::pipeline::{AssemblyPipeline, DEPARSER};
use dta_proto::counter::Reason;
use dta_proto::program::{DataPlaneEntry, SketchReporter};
use dta_proto::store::{Merge, StoreKind};
use dta_proto::wire::dta::{DtaBody, DtaReport};

use super::{ADDRESS, DEPARTS, ENDS, PAIR, STORE, Switch, put, reference_of, report, same, take, written};

const COLUMNS: u32 = 8;
const EPOCHS: u32 = 4;
/// Where the store's columns are among all.
const STATES: u32 = 1024;

/// PSN, address and words of a column.
type Column = (u32, u64, Vec<u32>);

/// The column in a frame.
fn column_of(frame: &[u8]) -> Column {
    let (psn, address, payload) = written(frame);
    let words = payload.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
    (psn, address, words.take(6).collect())
}

/// What comes of a report of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Merged {
    /// The column, if it leaves.
    left: Option<Column>,
    dropped: Option<Reason>,
}

/// Reports that are counted with it: those in the frame that leaves, and those that it takes the place of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    emitted: u64,
    superseded: u64,
}

/// Where a column is: its state, and its address.
fn place(ingress: &mut AssemblyPipeline, epoch: u32, column: u32, element: u64) -> (u32, u64) {
    ingress.clear_containers();
    let tables = [
        "Admission.place.turn",
        "Admission.place.columns",
        "Admission.place.column",
        "Admission.column_state",
        if element == 16 { "Admission.column_of_16" } else { "Admission.column_of_32" },
        "Admission.ring_in_region",
    ];
    for table in tables {
        let table = ingress.find_table(table);
        let stage = ingress.stage_of_table(&table);
        for (field, value) in [
            ("meta.primitive", 5),
            ("hdr.column.epoch", epoch.into()),
            ("hdr.column.column", column.into()),
            ("meta.columns_shift", COLUMNS.trailing_zeros().into()),
            ("meta.epochs_mask", u64::from(EPOCHS - 1)),
            ("meta.state_base", STATES.into()),
            ("hdr.bridge.element_shift", element.trailing_zeros().into()),
        ] {
            if ingress.has_field(field, stage) {
                ingress.set(field, stage, value);
            }
        }
        if table == ingress.find_table("Admission.ring_in_region") {
            ingress.set("hdr.bridge.address_high", stage, ADDRESS >> 32);
            ingress.set("hdr.bridge.address_low", stage, ADDRESS & 0xffff_ffff);
        }
        ingress.run_table(&table);
    }
    let of = |field: &str| ingress.get(field, DEPARSER);
    let address = of("hdr.bridge.address_high") << 32 | of("hdr.bridge.address_low");
    (of("hdr.bridge.index") as u32, address)
}

/// A sketch, and one report of it.
struct Sketch {
    rows: usize,
    merge: Merge,
    expected: u8,
}

/// A report of a column.
fn merge(
    switch: &mut Switch,
    sketch: &Sketch,
    place: (u32, u32),
    own: u32,
    cells: &[u32],
) -> (Merged, Counted) {
    let merge = match sketch.merge {
        Merge::Sum => 0,
        Merge::Max => 1,
        Merge::Or => 2,
    };
    let fields = [
        ("hdr.sketch.own", own.into()),
        ("hdr.sketch.merge", merge),
        ("hdr.sketch.others", u64::from(sketch.expected.max(1) - 1)),
        ("hdr.w0.word", 1 << 16 | u64::from(sketch.expected)),
    ];
    come(switch, sketch, place, &fields, cells)
}

/// A command of the control plane: a column of an epoch leaves.
fn flush(switch: &mut Switch, sketch: &Sketch, place: (u32, u32)) -> (Merged, Counted) {
    let fields = [
        ("hdr.sketch.own", 0),
        ("hdr.sketch.merge", 2),
        ("hdr.sketch.others", 0),
        ("hdr.bridge.flush", 1),
        ("hdr.w0.word", 0),
    ];
    come(switch, sketch, place, &fields, &[])
}

/// A packet with a column comes to egress, with these fields beside its epoch and its place; cells that are left out are 0.
fn come(
    switch: &mut Switch,
    sketch: &Sketch,
    (epoch, column): (u32, u32),
    fields: &[(&str, u64)],
    cells: &[u32],
) -> (Merged, Counted) {
    let element = if sketch.rows > 2 { 32 } else { 16 };
    let (state, address) = place(&mut switch.ingress, epoch, column, element);
    let egress = &mut switch.egress;
    egress.clear_containers();
    put(egress, &DEPARTS);
    put(
        egress,
        &[
            ("hdr.kind.work", 5),
            ("hdr.sketch.$valid", 1),
            ("hdr.bridge.index", state.into()),
            ("hdr.bridge.element_shift", element.trailing_zeros().into()),
            ("hdr.bridge.address_high", address >> 32),
            ("hdr.bridge.address_low", address & 0xffff_ffff),
            ("hdr.sketch.epoch", epoch.into()),
            ("hdr.sum.word", epoch.into()),
            ("meta.one_more", 1 << 16),
        ],
    );
    put(egress, fields);
    for (at, field) in ["hdr.w1.word", "hdr.w2.word", "hdr.w3.word", "hdr.w4.word"].into_iter().enumerate() {
        egress.set(field, 0, cells.get(at).copied().unwrap_or(0).into());
    }
    pass(egress, element)
}

/// What becomes of a packet with an element of so many bytes that has come to egress.
fn pass(egress: &mut AssemblyPipeline, element: u64) -> (Merged, Counted) {
    let from = egress.first_table();
    // What became of it, where it is counted.
    let stage_of = |table: &str| egress.stage_of_table(&egress.find_table(table));
    let (counted, number) = (stage_of("Departure.columns.dropped"), stage_of("Departure.columns.number"));
    let (mut what, mut before, mut reports) = (None, None, None);
    egress.run_and_look(&from, DEPARSER, &mut |stage, packet| {
        let first = |at: usize, of: &mut Option<(u64, u64)>, fields: [&str; 2]| {
            if stage >= at && of.is_none() {
                *of = Some((packet.get(fields[0], at), packet.get(fields[1], at)));
            }
        };
        first(counted, &mut what, ["meta.fate", "meta.refused"]);
        first(number, &mut before, ["meta.fate", "meta.unsent"]);
        first(number + 1, &mut reports, ["hdr.bridge.reports"; 2]);
    });
    let ((fate, reason), (begins, unsent), (reports, _)) = (what.unwrap(), before.unwrap(), reports.unwrap());
    let of = |field: &str| egress.get(field, DEPARSER) as u32;
    let left = (of("eg_intr_md_for_dprsr.drop_ctl") == 0).then(|| {
        let address =
            u64::from(of("hdr.target.address_high")) << 32 | u64::from(of("hdr.target.address_low"));
        let words =
            ["hdr.sum.word", "hdr.w0.word", "hdr.w1.word", "hdr.w2.word", "hdr.w3.word", "hdr.w4.word"];
        let cells = 2 + if element == 32 { 4 } else { 2 };
        (of("hdr.bth.psn"), address, words[..cells].iter().map(|word| of(word)).collect())
    });
    let dropped = (fate == 3).then(|| match reason {
        17 => Reason::EpochOld,
        18 => Reason::DuplicateColumn,
        19 => Reason::SketchReporters,
        other => panic!("reason {other}"),
    });
    let counted = Counted {
        emitted: if left.is_some() { reports - 0x50 } else { 0 },
        superseded: if begins == 1 { unsent } else { 0 },
    };
    (Merged { left, dropped }, counted)
}

/// Columns have the cells, the counts and the place that the software gives them, and leave when it lets them leave.
pub(crate) fn columns(mut switch: Switch) -> Result<(), String> {
    let (mut left, mut flushes, mut reasons) = (0, 0, BTreeMap::new());
    for (rows, merged, expected) in [
        (1, Merge::Sum, 1),
        (2, Merge::Sum, 3),
        (2, Merge::Max, 2),
        (3, Merge::Or, 3),
        (4, Merge::Sum, 2),
        (4, Merge::Max, 3),
        (4, Merge::Or, 32),
        // Each report leaves at once.
        (4, Merge::Sum, 1),
    ] {
        let sketch = Sketch { rows, merge: merged, expected };
        let kind = StoreKind::SketchMerge {
            columns: COLUMNS,
            rows: rows as u8,
            epochs: EPOCHS,
            merge: merged,
            expected,
        };
        // All bits have a reporter, and the last reporter has no bit.
        let bits = (0..32_u8).map(|bit| {
            DataPlaneEntry::SketchReporter(SketchReporter {
                store: STORE,
                reporter: 100 + u16::from(bit),
                bit,
            })
        });
        let mut reference = reference_of(kind, Vec::new(), bits.collect(), 0xff_fff0);
        let mut switch = switch.clone();
        switch.egress.register_mut("next_psn").set(PAIR, 0xff_fff0);
        let mut all = Counted::default();
        let mut dice = 7_u64 + u64::from(expected);
        let mut base = 0xffff_fff8_u32;
        // What came last is still held at the end.
        for at in 0..330_u32 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let of = |at: u32, below: u64| ((dice >> at) % below) as u32;
            // Epochs go on, and wrap; some jump, and some come late.
            base = base.wrapping_add(u32::from(of(50, 40) == 0));
            let epoch = match of(44, 40) {
                0 => base.wrapping_add(ENDS[of(30, 7) as usize]),
                1 | 2 => base.wrapping_sub(EPOCHS),
                3 => base.wrapping_add(EPOCHS),
                _ => base.wrapping_add(of(41, 2)),
            };
            let column = of(33, 2) * (COLUMNS - 1);
            let reporter = of(36, if expected > 4 { 33 } else { 6 }).min(32);
            // A reporter without a bit is one of few, too.
            let reporter = if of(20, 30) == 0 { 32 } else { reporter };
            let cells: Vec<u32> = (0..rows as u32)
                .map(|row| {
                    let value = (dice >> (8 + row)) as u32;
                    if of(24 + row, 3) == 0 { ENDS[of(26 + row, 7) as usize] } else { value }
                })
                .collect();
            let bytes: Vec<u8> = cells.iter().flat_map(|cell| cell.to_be_bytes()).collect();
            let body = DtaBody::SketchMerge { epoch, column, cells: &bytes };
            let made =
                take(&mut reference, &DtaReport { reporter: 100 + reporter as u16, ..report(at, body) });
            let own = 1_u32.checked_shl(reporter).unwrap_or(0);
            let (ours, counted) = merge(&mut switch, &sketch, (epoch, column), own, &cells);
            all.emitted += counted.emitted;
            all.superseded += counted.superseded;
            let wanted =
                Merged { left: made.frames.first().map(|frame| column_of(frame)), dropped: made.dropped };
            left += u32::from(wanted.left.is_some());
            *reasons.entry(wanted.dropped.map(|reason| reason.name())).or_insert(0) += 1;
            let what =
                format!("report {at} of {rows} rows, epoch {epoch:#x}, column {column}, reporter {reporter}");
            same(&what, ours, wanted)?;
            if at % 40 == 39 {
                let mut wanted: Vec<_> =
                    reference.flush_held_reports().iter().map(|frame| column_of(frame)).collect();
                let mut ours = Vec::new();
                for state in 0..COLUMNS * EPOCHS {
                    let egress = &mut switch.egress;
                    if egress.register_mut("column_unsent").get(STATES + state) == 0 {
                        continue;
                    }
                    // The epoch is the lower of two words.
                    let epoch = egress.register_mut("column_epoch").get(STATES + state);
                    let place = (epoch, state % COLUMNS);
                    // Of another epoch nothing is there.
                    let other = flush(&mut switch, &sketch, (epoch.wrapping_add(EPOCHS), place.1));
                    let nothing = (Merged { left: None, dropped: None }, Counted::default());
                    same("a flush of another epoch", other, nothing)?;
                    let (flushed, counted) = flush(&mut switch, &sketch, place);
                    all.emitted += counted.emitted;
                    ours.extend(flushed.left);
                }
                ours.sort_by_key(|(_, address, _)| *address);
                wanted.sort_by_key(|(_, address, _)| *address);
                flushes += ours.len();
                let without_psn = |columns: Vec<Column>| -> Vec<(u64, Vec<u32>)> {
                    columns.into_iter().map(|(_, address, words)| (address, words)).collect()
                };
                same(&format!("a flush after {what}"), without_psn(ours), without_psn(wanted))?;
            }
        }
        let egress = &mut switch.egress;
        let held = reference.engine_counters().named_counters();
        let of = |name: &str| held.iter().find(|(other, _)| other == name).map_or(0, |(_, value)| *value);
        let unsent: u64 = (STATES..STATES + COLUMNS * EPOCHS)
            .map(|state| u64::from(egress.register_mut("column_unsent").get(state)))
            .sum();
        same("reports held", unsent, of("sketch-merge.held"))?;
        let wanted = ["sketch-merge.emitted", "sketch-merge.superseded"].map(of);
        same("reports emitted and superseded", [all.emitted, all.superseded], wanted)?;
    }
    // The copy that the caller has is as it was.
    same("a register of the first one", switch.egress.register_mut("column_unsent").get(STATES), 0)?;
    if left > 100 && flushes > 20 && reasons.len() == 4 && reasons.values().all(|count| *count > 10) {
        Ok(())
    } else {
        Err(format!("only {left} columns, {flushes} by a flush, and {reasons:?}"))
    }
}
