//! A program that a user built (`reporter/examples/`), beside ours.

use std::path::Path;
use std::process::Command;

use dta_reporter::packet_trace::journey::Journeys;
use dta_reporter::packet_trace::kernel::{Error, TracerOptions};
use dta_reporter::packet_trace::point::At;

use crate::bed::{Bed, collect, socket, tracer};
use crate::books::balance;

const PACKETS: usize = 50;

/// Builds a program as the documentation says.
fn built(folder: &Path, source: &str) -> At {
    let object = folder.join("own.o");
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/ebpf");
    let output = Command::new("clang-19")
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-I", sources, "-c", source, "-o"])
        .arg(&object)
        .output()
        .expect("clang-19 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    At::Program(object.to_str().unwrap().to_owned())
}

#[test]
#[ignore = "needs root, network namespaces and clang-19"]
fn program_of_ones_own_sees_the_same_packets() {
    let folder = tempfile::tempdir().unwrap();
    let own = built(folder.path(), concat!(env!("CARGO_MANIFEST_DIR"), "/examples/netif_rx.bpf.c"));
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    bed.veth((&near, "e0", "10.7.7.1/24"), (&far, "e0", "10.7.7.2/24"));
    let (sender, receiver) = (socket(&near, "10.7.7.1:7071"), socket(&far, "10.7.7.2:7072"));
    sender.send_to(b"first", "10.7.7.2:7072").unwrap();
    receiver.recv(&mut [0; 9]).unwrap();
    let table = dta_reporter::packet_trace::filter::compile_filter("udp dst port 7072").unwrap();
    let options = TracerOptions { table, ..TracerOptions::default() };
    let points = [format!("netns:{near}/iface:e0/egress"), format!("netns:{far}/iface:e0/ingress")];
    let mut tracer = tracer(&options, &points);
    assert_eq!(tracer.attach(&own).unwrap(), 2);
    for number in 0..PACKETS {
        sender.send_to(format!("packet {number:08}").as_bytes(), "10.7.7.2:7072").unwrap();
        receiver.recv(&mut [0; 99]).unwrap();
    }
    let mut records = Vec::new();
    // It has no filter, so it reports others' packets, too.
    let ours = |record: &&dta_reporter::packet_trace::record::TraceRecord| record.flow.dport == 7072;
    collect(&mut tracer, &mut records, |records| records.iter().filter(ours).count() >= 3 * PACKETS);
    let mut journeys = Journeys::default();
    records.iter().filter(ours).for_each(|record| journeys.add_record(*record, 0));
    let ways: Vec<Vec<u16>> = journeys
        .take_settled(0)
        .iter()
        .map(|journey| journey.records.iter().map(|record| record.point).collect())
        .collect();
    assert_eq!(ways, vec![vec![0, 2, 1]; PACKETS], "between the one interface and the other");
    let books = tracer.read_books().unwrap()[2].total;
    assert!(balance(&books) && books.reported >= PACKETS as u64, "{books:?}");
    tracer.detach(&own);
    assert!(
        tracer.total_books().unwrap().reported >= 3 * PACKETS as u64,
        "what it reported is not forgotten"
    );
}

#[test]
#[ignore = "needs root and clang-19"]
fn object_that_cannot_be_a_point_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let _bed = Bed::new();
    let mut tracer = tracer(&TracerOptions::default(), &[]);
    let mut refused = |at: &At| match tracer.attach(at) {
        Err(Error::Attach { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(&At::Program("/nowhere/a.o".into())).contains("cannot read it"));
    let text = folder.path().join("text.o");
    std::fs::write(&text, "no object").unwrap();
    assert!(refused(&At::Program(text.to_str().unwrap().into())).contains("cannot load it"));
    let ring = "struct { NUMBER(type, MAP_RINGBUF); NUMBER(max_entries, 4096); } ring SECTION(\".maps\");";
    let licence = "#include \"helpers.h\"\nchar licence[] SECTION(\"license\") = \"GPL\";\n";
    let program = |section: &str, name: &str| {
        format!("SECTION(\"{section}\") int {name}(void *context) {{ ring_query(&ring, 0); return 0; }}\n")
    };
    let two = program("tp_btf/netif_rx", "a") + &program("tp_btf/netif_rx", "b");
    for (code, why) in [
        (format!("{ring}\n{two}"), "has 2 programs"),
        (format!("{ring}\n{}", program("tp_btf", "a")), "does not say where to attach"),
        (format!("{ring}\n{}", program("socket/x", "a")), "cannot be attached here"),
        (format!("{ring}\n{}", program("tp_btf/no_such_event", "a")), "no_such_event"),
        ("SECTION(\"tp_btf/netif_rx\") int a(void *context) { return 0; }".into(), "no map named `ring`"),
    ] {
        let source = folder.path().join("own.bpf.c");
        std::fs::write(&source, format!("{licence}{code}\n")).unwrap();
        let error = refused(&built(folder.path(), source.to_str().unwrap()));
        assert!(error.contains(why), "{why}: {error}");
    }
}
