//! Lists and columns that another translator wrote while this one had lost its lease.

use dta_proto::wire::dta::DtaBody;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::ground::{Ground, Translator, wait_until};

const LIST: u32 = 1;

/// Fills whole batches of three entries.
fn batches(translator: &mut Translator, bytes: std::ops::Range<u8>) {
    for byte in bytes {
        for _ in 0..3 {
            translator.entry(LIST, byte);
        }
    }
}

fn entries(bytes: std::ops::Range<u8>) -> impl Iterator<Item = Value> {
    bytes.flat_map(|byte| (0..3).map(move |_| json!({ "entry": format!("{byte:02x}").repeat(8) })))
}

#[test]
fn the_first_writer_goes_on_after_what_another_wrote() {
    let ground = Ground::start();
    let config = |name: &str, last: u8| {
        format!(
            "[translator]\nname = '{name}'\nsource = '127.71.6.{last}'\nlease_seconds = 10\n\
             flush.append_ms = 0\nflush.sketch_merge_ms = 0\n"
        )
    };
    let cells = |byte| [0, 0, 0, byte, 0, 0, 0, byte];
    let mut first = ground.run_translator(&config("first", 1), &[]);
    batches(&mut first, 0..5);
    // In hand: an entry, and a column that waits for a second reporter.
    first.entry(LIST, 0xee);
    first.report_as(1, 4, DtaBody::SketchMerge { epoch: 1, column: 0, cells: &cells(1) });
    first.wait_for("accepted", 17);
    wait_until("its batches are there", || ground.tail("1").len() == 15);

    first.daemon.signal(Signal::STOP);
    wait_until("its lease has run out", || ground.session("first").is_none());
    let mut second = ground.run_translator(&config("second", 2), &[]);
    batches(&mut second, 5..35);
    for reporter in [1, 2] {
        second.report_as(reporter, 4, DtaBody::SketchMerge { epoch: 1, column: 0, cells: &cells(5) });
    }
    wait_until("the second's batches are there", || ground.tail("1").len() == 105);
    second.daemon.signal(Signal::TERM);
    assert_eq!(second.daemon.ended(), Some(0));
    ground.end_session("second");
    // One column for all keys.
    let column = || ground.collector(&["query", "sketch", "--epoch", "1", "ab"])[0].clone();
    wait_until("both reports of the column are there", || column()["merged"] == 2);
    let whole = column();
    assert_eq!(whole["estimate"], 10, "{whole}");

    first.daemon.signal(Signal::CONT);
    wait_until("its session is back", || ground.session("first").is_some());
    first.wait_for("discarded.store_removed", 1);
    first.entry(LIST, 0xef);
    first.entry(LIST, 0xf0);
    batches(&mut first, 35..44);
    first.wait_for("held", 0);
    wait_until("its new batches are there", || ground.tail("1").len() == 135);
    let kept = [0xee_u8, 0xef, 0xf0].map(|byte| json!({ "entry": format!("{byte:02x}").repeat(8) }));
    let expected: Vec<Value> = entries(0..35).chain(kept).chain(entries(35..44)).collect();
    assert_eq!(ground.tail("1"), expected);
    // The column that it had in hand would have been less than what the second wrote.
    assert!(first.daemon.runs());
    first.daemon.signal(Signal::TERM);
    assert_eq!(first.daemon.ended(), Some(0));
    assert_eq!(column(), whole);
}
