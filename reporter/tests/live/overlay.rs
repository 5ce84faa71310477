//! A container overlay over two "hosts": veth, bridge, VXLAN, veth, bridge, veth.

use std::collections::HashMap;

use dta_reporter::packet_trace::journey::Journeys;
use dta_reporter::packet_trace::kernel::TracerOptions;

use crate::bed::{Bed, collect, run, socket, tracer};
use crate::books::balance;

const PACKETS: usize = 1000;

#[test]
#[ignore = "needs root and network namespaces"]
fn every_packet_is_complete_at_its_twelve_points_in_their_order() {
    let mut bed = Bed::new();
    let [pod1, host1, host2, pod2] = ["p1", "h1", "h2", "p2"].map(|name| bed.namespace(name));
    bed.veth((&host1, "wire", "192.0.2.1/24"), (&host2, "wire", "192.0.2.2/24"));
    for (pod, host, address, other) in
        [(&pod1, &host1, "10.7.0.1", "192.0.2.2"), (&pod2, &host2, "10.7.0.2", "192.0.2.1")]
    {
        bed.veth((pod, "e0", &format!("{address}/24")), (host, "pod", ""));
        run(&format!(
            "ip -n {host} link add br0 type bridge && ip -n {host} link add vx0 type vxlan id 7 dstport 4789 remote {other} dev wire &&
             ip -n {host} link set pod master br0 && ip -n {host} link set vx0 master br0 &&
             ip -n {host} link set vx0 up && ip -n {host} link set br0 up"
        ));
    }
    let sender = socket(&pod1, "10.7.0.1:7001");
    let receiver = socket(&pod2, "10.7.0.2:7002");
    // Neighbours and the bridges' tables are learned before the run.
    sender.send_to(b"first", "10.7.0.2:7002").unwrap();
    receiver.recv(&mut [0; 9]).unwrap();

    let points = ["tp:net_dev_queue", "tp:net_dev_start_xmit", "tp:netif_receive_skb"].map(String::from);
    let mut tracer = tracer(&TracerOptions::default(), &points);
    let mut places = tracer.interface_names();
    let mut records = Vec::new();
    for number in 0..PACKETS {
        sender.send_to(format!("packet {number:08}").as_bytes(), "10.7.0.2:7002").unwrap();
        receiver.recv(&mut [0; 99]).unwrap();
        // Those of others on the machine would fill the ring.
        tracer.read(|record| records.push(record));
    }
    let flow = "10.7.0.1:7001->10.7.0.2:7002/udp".parse().unwrap();
    collect(&mut tracer, &mut records, |records| {
        records.iter().filter(|record| record.flow == flow).count() >= 12 * PACKETS
    });
    records.retain(|record| record.flow == flow);

    let expected: Vec<String> = [
        (0, &pod1, "e0"),
        (1, &pod1, "e0"),
        (2, &host1, "pod"),
        (0, &host1, "vx0"),
        (1, &host1, "vx0"),
        (0, &host1, "wire"),
        (1, &host1, "wire"),
        (2, &host2, "wire"),
        (2, &host2, "vx0"),
        (0, &host2, "pod"),
        (1, &host2, "pod"),
        (2, &pod2, "e0"),
    ]
    .map(|(point, namespace, device)| format!("{point} {namespace}/{device}"))
    .to_vec();
    let mut journeys = Journeys::default();
    records.iter().for_each(|record| journeys.add_record(*record, 0));
    assert_eq!(journeys.shared_digests(), 0);
    let journeys = journeys.take_settled(0);
    assert_eq!(journeys.len(), PACKETS);
    let mut ways: HashMap<Vec<String>, usize> = HashMap::new();
    for journey in &journeys {
        let way = journey.records.iter().map(|record| {
            format!("{} {}", record.point, places.interface_name(record.namespace, record.interface))
        });
        *ways.entry(way.collect()).or_default() += 1;
        let segments: u64 = journey.records.windows(2).map(|pair| pair[1].time - pair[0].time).sum();
        assert_eq!(segments, journey.total_duration());
    }
    assert_eq!(ways, HashMap::from([(expected, PACKETS)]));
    let books = tracer.read_books().unwrap();
    assert!(books.iter().all(|book| balance(&book.total)), "{books:?}");
}
