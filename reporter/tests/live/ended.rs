//! What stays and what comes back: after a SIGKILL, and when an interface is recreated.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use aya::programs::{SchedClassifier, TcAttachType};
use dta_reporter::packet_trace::kernel::{Tracer, TracerOptions};

use crate::bed::{Bed, PATIENCE, run, socket, tracer, within};

/// Set for the process that is killed: how it attaches, and where.
const KILLED: &str = "DTA_TRACE_KILLED";

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// This test again, as a process that traces until it is killed.
fn traced(how: &str, namespace: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ended::traces_until_it_is_killed", "--include-ignored"])
        .env(KILLED, format!("{how} {namespace}"))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "a part of another test, in a process of its own"]
fn traces_until_it_is_killed() {
    let Ok(text) = std::env::var(KILLED) else { return };
    let (how, namespace) = text.split_once(' ').unwrap();
    let options = TracerOptions { clsact: how == "clsact", ..TracerOptions::default() };
    let _tracer = tracer(&options, &[format!("netns:{namespace}/iface:e0")]);
    std::fs::write(format!("/run/netns/../{namespace}.ready"), "").unwrap();
    loop {
        std::thread::sleep(PATIENCE);
    }
}

/// Kills the process when it traces.
fn kill(mut child: Child, namespace: &str) {
    let file = format!("/run/{namespace}.ready");
    until("the tracer attaches", || std::fs::exists(&file).unwrap());
    std::fs::remove_file(file).unwrap();
    assert_eq!(attached(namespace), 2, "it is attached both ways");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Programs on the interface, of tcx and of clsact.
fn attached(namespace: &str) -> usize {
    let filters = ["ingress", "egress"]
        .map(|side| run(&format!("tc -n {namespace} filter show dev e0 {side} 2>/dev/null || true")));
    let links = within(namespace, || {
        [TcAttachType::Ingress, TcAttachType::Egress]
            .map(|side| SchedClassifier::query_tcx("e0", side).map_or(0, |(_, programs)| programs.len()))
    });
    filters.iter().map(|text| text.matches("direct-action").count()).sum::<usize>()
        + links.iter().sum::<usize>()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_killed_tracer_leaves_nothing_on_tcx_and_the_next_clears_clsact() {
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    bed.veth((&near, "e0", ""), (&far, "e0", ""));
    kill(traced("tcx", &near), &near);
    // The kernel takes links away a moment after their process.
    until("tcx links go", || attached(&near) == 0);

    kill(traced("clsact", &near), &near);
    assert_eq!(attached(&near), 2, "filters of clsact stay");
    drop(Tracer::start(&TracerOptions::default()).unwrap());
    assert_eq!(attached(&near), 0, "the next tracer takes them away");

    let clsact = TracerOptions { clsact: true, ..TracerOptions::default() };
    let orderly = tracer(&clsact, &[format!("netns:{near}/iface:e0")]);
    assert_eq!(attached(&near), 2);
    drop(orderly);
    assert_eq!(attached(&near), 0, "a tracer that ends takes its filters away, in their namespace");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_interface_that_is_made_again_is_traced_again() {
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    let make = |bed: &Bed| bed.veth((&near, "e0", "10.7.8.1/24"), (&far, "e0", "10.7.8.2/24"));
    let pass = || {
        let receiver = socket(&far, "10.7.8.2:7002");
        socket(&near, "10.7.8.1:7001").send_to(b"x", "10.7.8.2:7002").unwrap();
        receiver.recv(&mut [0; 9]).unwrap();
    };
    make(&bed);
    let options = TracerOptions {
        table: dta_reporter::packet_trace::filter::compile_filter("udp dst port 7002").unwrap(),
        ..TracerOptions::default()
    };
    let mut tracer =
        tracer(&options, &[format!("netns:{far}/iface:e0/ingress"), "tp:netif_receive_skb".into()]);
    let reported = |tracer: &Tracer| tracer.read_books().unwrap()[0].total.reported;
    let state = |tracer: &mut Tracer, wanted: bool| {
        until("the point follows its interface", || {
            tracer.wait_for_records(Duration::from_millis(10)).unwrap();
            tracer.points()[0].is_attached() == wanted
        });
    };
    pass();
    assert_eq!(reported(&tracer), 1);
    for round in 2..5 {
        run(&format!("ip -n {far} link del e0"));
        state(&mut tracer, false);
        make(&bed);
        state(&mut tracer, true);
        pass();
        assert_eq!(reported(&tracer), round);
    }
    // The whole namespace goes and comes.
    run(&format!("ip netns del {far}"));
    state(&mut tracer, false);
    run(&format!("ip netns add {far}; ip -n {near} link del e0 2>/dev/null || true"));
    make(&bed);
    state(&mut tracer, true);
    pass();
    assert_eq!(reported(&tracer), 5);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn filters_of_clsact_in_a_namespace_without_a_name_are_cleared_when_it_is_traced_again() {
    let _bed = Bed::new();
    let mut container = Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap();
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    let path = format!("/proc/{}/ns/net", container.id());
    until("it has a namespace of its own", || std::fs::read_link(&path).is_ok_and(|is| is != own));
    let filters = || {
        let side = |side| run(&format!("nsenter --net={path} tc filter show dev lo {side} || true"));
        ["ingress", "egress"]
            .map(side)
            .iter()
            .map(|text| text.matches("direct-action").count())
            .sum::<usize>()
    };
    let clsact = TracerOptions { clsact: true, ..TracerOptions::default() };
    let points = [format!("netns:{path}/iface:lo")];
    // Like a killed process: nothing of it is removed.
    std::mem::forget(tracer(&clsact, &points));
    assert_eq!(filters(), 2);
    let next = tracer(&clsact, &points);
    let both = filters();
    drop(next);
    let after = filters();
    container.kill().unwrap();
    container.wait().unwrap();
    assert_eq!((both, after), (2, 0));
}
