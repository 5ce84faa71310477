//! Tables of the reporter compiled for Tofino, run with packets: what a full queue drops is cloned for its report as any other drop.
//!
//! Of what comes to egress, all bits that the program does not name are ones. On a chip they are anything.

use crate::assembly::pipeline::{AssemblyPipeline, DEPARSER};
use crate::assembly::profiles::{REPORTER, read_profile_assembly};
use crate::assembly::{Block, extraction};

/// SD-Fabric's reasons: traffic-manager and egress-next-miss.
const TRAFFIC_MANAGER: u64 = 71;
const NEXT_MISS: u64 = 130;
const ARRIVED: u64 = 0xffff_ff00;
const NOW: u64 = 0x0000_0100;

/// One direction, and the containers that its parser fills before it looks at a packet.
struct Switch {
    pipeline: AssemblyPipeline,
    filled: Vec<String>,
}

impl Switch {
    fn new(direction: &str) -> Switch {
        let text = read_profile_assembly(REPORTER);
        let parser = format!("parser {direction}");
        let blocks = Block::parse_all(&text);
        let parser = blocks.iter().find(|block| block.named_value(&parser).is_some()).unwrap();
        let start = parser.get("start").unwrap();
        let start = parser.find_child("states").and_then(|states| states.find_child(start)).unwrap();
        let lines = start.blocks.iter().flat_map(|case| &case.blocks);
        let filled: Vec<String> =
            lines.filter_map(|line| Some(extraction(&line.line)?.0.to_owned())).collect();
        assert!(filled.len() > 3, "{filled:?}");
        Switch { pipeline: AssemblyPipeline::from_assembly(&text, direction), filled }
    }

    fn put(&mut self, fields: &[(&str, u64)]) {
        for (field, value) in fields {
            self.pipeline.set(field, 0, *value);
        }
    }

    /// Lets a packet pass all tables.
    fn pass(&mut self, fields: &[(&str, u64)]) {
        self.pipeline.clear_containers();
        for container in &self.filled {
            self.pipeline.set(container, 0, u64::MAX);
        }
        self.put(fields);
        let first = self.pipeline.first_table();
        self.pipeline.run(&first, DEPARSER);
    }

    fn got(&self, field: &str) -> u64 {
        self.pipeline.get(field, DEPARSER)
    }
}

/// The switch's egress, where packets may leave by port 5.
fn egress() -> Switch {
    let mut switch = Switch::new("egress");
    switch.pipeline.add_table_entry(
        "Departure.egress_port",
        &[("eg_intr_md.egress_port", 5)],
        "Departure.allow",
        &[("is_last_hop", 1)],
    );
    switch
}

/// A packet that was to leave by port 9 and queue 3, and comes to egress at a port.
fn departing(switch: &mut Switch, port: u64, deflected: u64, watched: u64) {
    switch.pass(&[
        ("eg_intr_md.egress_port", port),
        ("eg_intr_md.egress_rid", 0),
        ("eg_intr_md.egress_qid", 1),
        ("eg_intr_md.enq_qdepth", 77),
        ("eg_intr_md.deflection_flag", deflected),
        ("eg_intr_md_from_prsr.global_tstamp", NOW),
        ("hdr.bridge.watch_drops", watched),
        ("hdr.bridge.hop", 2),
        ("hdr.bridge.egress_port", 9),
        ("hdr.bridge.queue", 3),
        ("hdr.bridge.arrived", ARRIVED),
    ]);
}

#[test]
fn a_deflected_packet_becomes_a_drop_of_the_traffic_manager() {
    let mut switch = egress();
    departing(&mut switch, 68, 1, 1);
    for (field, wanted) in [
        ("eg_intr_md_for_dprsr.drop_ctl", 1),
        ("eg_intr_md_for_dprsr.mirror_type", 1),
        ("meta.kinds", 4),
        ("meta.session", 4),
        ("meta.reason", TRAFFIC_MANAGER),
        ("meta.egress_port", 9),
        ("meta.queue_and_depth", 3 << 24),
        ("meta.latency", 0x200),
        ("meta.place", 2),
    ] {
        assert_eq!(switch.got(field), wanted, "{field}");
    }
    // Nor does it leave where the port takes part.
    departing(&mut switch, 5, 1, 1);
    assert_eq!(switch.got("eg_intr_md_for_dprsr.drop_ctl"), 1);
    assert_eq!(switch.got("meta.reason"), TRAFFIC_MANAGER);
    departing(&mut switch, 68, 1, 0);
    assert_eq!(switch.got("eg_intr_md_for_dprsr.drop_ctl"), 1);
    assert_eq!(switch.got("eg_intr_md_for_dprsr.mirror_type"), 0);
}

#[test]
fn other_packets_leave_or_are_refused_as_their_port_says() {
    let mut switch = egress();
    departing(&mut switch, 5, 0, 1);
    assert_eq!(switch.got("eg_intr_md_for_dprsr.drop_ctl"), 0);
    assert_eq!(switch.got("eg_intr_md_for_dprsr.mirror_type"), 0);
    assert_eq!(switch.got("meta.place"), 0x32, "its path ends here");
    departing(&mut switch, 6, 0, 1);
    for (field, wanted) in [
        ("eg_intr_md_for_dprsr.drop_ctl", 1),
        ("eg_intr_md_for_dprsr.mirror_type", 1),
        ("meta.kinds", 4),
        ("meta.reason", NEXT_MISS),
        ("meta.egress_port", 6),
        ("meta.queue_and_depth", 1 << 24 | 77),
        ("meta.place", 2),
    ] {
        assert_eq!(switch.got(field), wanted, "{field}");
    }
}

/// A packet to an Ethernet address comes in at port 1.
fn arriving(switch: &mut Switch, to: u64, dscp: u64) {
    switch.pass(&[
        ("ig_intr_md.ingress_port", 1),
        ("hdr.ethernet.$valid", 1),
        ("hdr.ethernet.destination", to),
        ("hdr.ethernet.type", 0x800),
        ("hdr.ipv4.$valid", 1),
        ("hdr.ipv4.version", 4),
        ("hdr.ipv4.ihl", 5),
        ("hdr.ipv4.tos", dscp << 2),
        ("hdr.ipv4.protocol", 6),
        ("hdr.ports.$valid", 1),
    ]);
}

#[test]
fn packets_whose_drops_are_watched_ask_for_deflection_and_flooded_ones_do_not() {
    const STATION: u64 = 0x0200_0000_0a09;
    const ALL: u64 = 0xffff_ffff_ffff;
    for (drops, deflect) in [(1, 1), (1, 0), (0, 0)] {
        let mut switch = Switch::new("ingress");
        let pipeline = &mut switch.pipeline;
        pipeline.add_table_entry(
            "Arrival.ingress_port",
            &[("ig_intr_md.ingress_port", 1)],
            "Arrival.admit",
            &[("hop", 0)],
        );
        let flags = [("flows", 0), ("queues", 0), ("drops", drops), ("deflect", deflect)];
        pipeline.add_table_entry("Arrival.watchlist", &[], "Arrival.watch", &flags);
        let to = |to| [("hdr.ethernet.destination", to)];
        pipeline.add_table_entry("Arrival.forwarding.l2", &to(STATION), "forwarding.forward", &[("port", 9)]);
        pipeline.add_table_entry("Arrival.forwarding.l2", &to(ALL), "forwarding.flood", &[("group", 1)]);
        pipeline.add_table_entry(
            "Arrival.queue_of",
            &[("hdr.ipv4.tos(2..7)", 46)],
            "Arrival.use_queue",
            &[("queue", 3)],
        );
        arriving(&mut switch, STATION, 46);
        for (field, wanted) in [
            ("ig_intr_md_for_tm.deflect_on_drop", deflect),
            ("ig_intr_md_for_tm.ucast_egress_port", 9),
            ("ig_intr_md_for_tm.qid", 3),
            ("ig_intr_md_for_dprsr.drop_ctl", 0),
            ("hdr.bridge.watch_drops", drops),
            ("hdr.bridge.egress_port", 9),
            ("hdr.bridge.queue", 3),
        ] {
            assert_eq!(switch.got(field), wanted, "{field}");
        }
        arriving(&mut switch, ALL, 0);
        for (field, wanted) in [
            ("ig_intr_md_for_tm.deflect_on_drop", 0),
            ("ig_intr_md_for_tm.mcast_grp_a", 1),
            ("hdr.bridge.flooded", 1),
            ("hdr.bridge.egress_port", 0xffff),
            ("hdr.bridge.queue", 0),
        ] {
            assert_eq!(switch.got(field), wanted, "flooded: {field}");
        }
    }
}
