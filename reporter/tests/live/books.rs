//! What was seen is reported or counted with a reason.

use std::time::Duration;

use dta_reporter::packet_trace::counts::Books;
use dta_reporter::packet_trace::digest::Sampling;
use dta_reporter::packet_trace::kernel::{Tracer, TracerOptions};

use crate::bed::{Bed, socket, tracer};

/// `DTA_TRACE_PACKETS=1000000` for the long run.
fn packets() -> u64 {
    std::env::var("DTA_TRACE_PACKETS").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000)
}

/// Whether every packet seen is accounted for. (If read while packets pass, those in progress may be missing.)
pub(crate) fn balance(of: &Books) -> bool {
    of.seen == of.reported + of.filtered + of.sampled_out + of.own + of.ring_full + of.unparsed_packets()
}

fn total(tracer: &Tracer) -> Books {
    let mut sum = Books::default();
    tracer.read_books().unwrap().iter().for_each(|books| sum.add(&books.total));
    sum
}

#[test]
#[ignore = "needs root and network namespaces"]
fn every_packet_is_reported_or_counted_with_a_reason() {
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    bed.veth((&near, "e0", "10.7.5.1/24"), (&far, "e0", "10.7.5.2/24"));
    let sender = socket(&near, "10.7.5.1:7001");
    let receiver = socket(&far, "10.7.5.2:7002");
    let mut options = TracerOptions { ring: 1 << 16, ..TracerOptions::default() };
    options.table =
        dta_reporter::packet_trace::filter::compile_filter("udp dst port 7002 or udp dst port 7003").unwrap();
    options.sampling = Sampling::one_in(2);
    let points = [format!("netns:{near}/iface:e0/egress"), format!("netns:{far}/iface:e0/ingress")];
    let mut tracer = tracer(&options, &points);
    let count = packets();
    let mut read = 0;
    for number in 0..count {
        // One packet in four is not chosen by the filter.
        let port = if number % 4 == 0 { 9 } else { 7002 };
        let _ = sender.send_to(&number.to_be_bytes(), ("10.7.5.2", port));
        // No more are under way than the kernel queues for a CPU, however busy that is.
        if number % 64 == 63 {
            let mut came = [0; 8];
            while came != number.to_be_bytes() {
                receiver.recv(&mut came).expect("it comes");
            }
        }
        // The ring runs full a few times, because nobody reads it for a while.
        if number % 8192 == 0 {
            read += tracer.read(|_| {});
        }
    }
    let end = std::time::Instant::now() + crate::bed::PATIENCE;
    // Both points see every packet; those that return as ICMP are seen too.
    while total(&tracer).seen < 2 * count {
        assert!(std::time::Instant::now() < end, "{:?}", total(&tracer));
        tracer.wait_for_records(Duration::from_millis(10)).unwrap();
    }
    read += tracer.read(|_| {});
    let books = total(&tracer);
    assert!(balance(&books), "{books:?}");
    // Losses are known by processor.
    let by_processor = tracer.read_books().unwrap().into_iter().flat_map(|books| books.cpus);
    assert_eq!(by_processor.map(|books| books.ring_full).sum::<u64>(), books.ring_full);
    assert_eq!(books.reported, read as u64);
    assert!(books.filtered >= count / 2 && books.sampled_out > 0 && books.ring_full > 0, "{books:?}");
    // Flows are counted before sampling, and whether the ring has room or not.
    let flow = "10.7.5.1:7001->10.7.5.2:7002/udp".parse().unwrap();
    let flows: Vec<_> = tracer.read_flows().unwrap().into_iter().filter(|(at, _)| at.flow == flow).collect();
    assert_eq!(flows.len(), 2);
    assert!(
        flows.iter().all(|(_, counted)| counted.packets == count - count.div_ceil(4)
            && counted.bytes == 36 * counted.packets)
    );
}

#[test]
#[ignore = "needs root and network namespaces"]
fn filter_and_share_change_without_attaching_again() {
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    bed.veth((&near, "e0", "10.7.6.1/24"), (&far, "e0", "10.7.6.2/24"));
    let sender = socket(&near, "10.7.6.1:7001");
    let receiver = socket(&far, "10.7.6.2:7002");
    let mut tracer = tracer(&TracerOptions::default(), &[format!("netns:{far}/iface:e0/ingress")]);
    let pass = |tracer: &mut Tracer, number: u32| {
        let before = total(tracer);
        sender.send_to(&number.to_be_bytes(), "10.7.6.2:7002").unwrap();
        receiver.recv(&mut [0; 9]).unwrap();
        let after = total(tracer);
        (
            after.reported - before.reported,
            after.filtered - before.filtered,
            after.sampled_out - before.sampled_out,
        )
    };
    // ARP is sent before the first, and is not an IP packet.
    assert_eq!(pass(&mut tracer, 1), (1, 0, 0));
    tracer.set_filter(&dta_reporter::packet_trace::filter::compile_filter("tcp").unwrap()).unwrap();
    assert_eq!(pass(&mut tracer, 2), (0, 1, 0));
    tracer.set_filter(&dta_reporter::packet_trace::filter::compile_filter("udp").unwrap()).unwrap();
    assert_eq!(pass(&mut tracer, 3), (1, 0, 0));
    tracer.set_sampling(Sampling { threshold: 0 }).unwrap();
    assert_eq!(pass(&mut tracer, 4), (0, 0, 1));
}
