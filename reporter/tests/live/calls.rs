//! Calls of a function in user space.

use dta_reporter::packet_trace::kernel::{Error, TracerOptions};
use dta_reporter::packet_trace::point::At;
use dta_reporter::packet_trace::record::TraceRecord;

use crate::bed::{Bed, collect, socket, tracer};
use crate::books::balance;

const CALLS: usize = 20;

#[test]
#[ignore = "needs root and a kernel with uprobes"]
fn calls_in_user_space_are_recorded_with_their_thread() {
    let mut bed = Bed::new();
    let host = bed.namespace("n");
    let (sender, receiver) = (socket(&host, "127.0.0.1:7081"), socket(&host, "127.0.0.1:7082"));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.split_whitespace().find(|word| word.contains("/libc.so")).expect("libc is loaded");
    let table = dta_reporter::packet_trace::filter::compile_filter("udp dst port 7082").unwrap();
    let points = [format!("uprobe:{libc}:sendto"), "tp:net_dev_queue".into()];
    let mut tracer = tracer(&TracerOptions { table, ..TracerOptions::default() }, &points);
    for _ in 0..CALLS {
        sender.send_to(b"call", "127.0.0.1:7082").unwrap();
        receiver.recv(&mut [0; 9]).unwrap();
    }
    // Other programs call it, too.
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let mine = |record: &&TraceRecord| record.calling_thread().is_none_or(|caller| caller.thread == thread);
    let mut records = Vec::new();
    collect(&mut tracer, &mut records, |records| records.iter().filter(mine).count() >= 2 * CALLS);
    let mut records: Vec<&TraceRecord> = records.iter().filter(mine).collect();
    records.sort_by_key(|record| record.time);
    let points: Vec<u16> = records.iter().map(|record| record.point).collect();
    assert_eq!(points, [0, 1].repeat(CALLS), "each packet comes after its call");
    let caller = records[0].calling_thread().unwrap();
    let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap();
    assert_eq!((caller.process, caller.name.as_str()), (std::process::id(), name.trim()));
    assert!(balance(&tracer.read_books().unwrap()[0].total));

    let mut refused = |text: &str| match tracer.attach(&text.parse::<At>().unwrap()) {
        Err(Error::Attach { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(&format!("uprobe:{libc}:no_such_function")).contains("no_such_function"));
    assert!(refused("uprobe:/nowhere/lib.so:sendto").contains("/nowhere/lib.so"));
}
