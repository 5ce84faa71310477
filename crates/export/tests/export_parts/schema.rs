use dta_export::directory::Meaning;
use dta_export::events::TelemetryEvent;
use dta_export::json::EventLine;
use dta_export::names::Names;
use dta_export::schema::Schema;
use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{self, Location, Metric, SwitchPath, TelemetryEntry, Why};

fn flow() -> Flow {
    "10.0.0.1:5000->10.0.0.2:5000/udp".parse().unwrap()
}

fn change(key: Key, metric: Metric, new: u64, place: Location, meaning: Meaning) -> TelemetryEvent {
    let entry = TelemetryEntry::Change {
        time: 1524138290,
        key,
        metric,
        why: Why::Moved,
        old: 400,
        new,
        place,
        path: None,
    };
    TelemetryEvent { entry, meaning: Some(meaning), path: None, latency: None, hops: None }
}

/// A packet that a full traffic manager dropped.
fn drop_event(key: Key, place: Location, ingress_port: Option<u32>) -> TelemetryEvent {
    let reason = DropReason::from_int(71);
    let entry = TelemetryEntry::Drop { time: 7, key, place, ingress_port, reason };
    TelemetryEvent { entry, meaning: None, path: None, latency: None, hops: None }
}

fn line(schema: Schema, event: &TelemetryEvent) -> Option<String> {
    let point = schema.build_point(event, &Names::empty())?;
    let mut line = String::new();
    point.write_line(&mut line, &point.series_name(), point.time);
    Some(line)
}

/// One event of each metric.
fn events() -> [TelemetryEvent; 6] {
    let (flow, key) = (flow(), flow().to_key());
    let place = Location { switch: Some(4), port: Some(3), queue: Some(5) };
    let path = Some(SwitchPath::from_switches(&[6, 5, 4]));
    let hop = Meaning::Hop { flow: Some(flow), flow_key: key, switch: 4 };
    let queue = Meaning::Queue { switch: 4, port: Some(3), queue: Some(5) };
    let of_flow = |metric, new| change(key, metric, new, Location::default(), Meaning::Flow(flow));
    [
        TelemetryEvent { path, latency: Some(408), ..of_flow(Metric::FlowPath, 3) },
        TelemetryEvent { path, ..of_flow(Metric::FlowLatency, 12) },
        change(telemetry::hop_latency_key(&flow, 4), Metric::HopLatency, 4, place, hop),
        change(Key::default(), Metric::QueueOccupancy, 6, place, queue),
        change(Key::default(), Metric::QueueCongestion, 10, place, queue),
        change(
            Key::default(),
            Metric::LinkUtilization,
            1000,
            place,
            Meaning::Port { switch: 4, port: Some(3) },
        ),
    ]
}

#[test]
fn intcollector_writes_what_intcollector_writes() {
    let lines: Vec<_> = events().iter().map(|event| line(Schema::IntCollector, event)).collect();
    let flow = r"10.0.0.1:5000->10.0.0.2:5000\,proto=17";
    let expected = [
        Some(format!("flow_stat\\,{flow} path=\"6:5:4\",flow_latency=408 1524138290\n")),
        Some(format!("flow_stat\\,{flow} flow_latency=12,path=\"6:5:4\" 1524138290\n")),
        Some(format!("flow_hop_latency\\,{flow}\\,sw_id=4 value=4 1524138290\n")),
        Some("queue_occupancy\\,sw_id=4\\,queue_id=5 value=6 1524138290\n".into()),
        None,
        Some("port_tx_utilize\\,sw_id=4\\,port_id=3 value=1000 1524138290\n".into()),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn tags_say_what_an_event_is_about() {
    let lines: Vec<_> = events().iter().map(|event| line(Schema::Tags, event).unwrap()).collect();
    let flow =
        "dport=5000,dst=10.0.0.2,flow=10.0.0.1:5000->10.0.0.2:5000/udp,proto=17,sport=5000,src=10.0.0.1";
    let value = |new: u64| format!("value={new}i,old=400i");
    let end = "why=\"moved\" 1524138290\n";
    let expected = [
        format!("flow_path,{flow} path=\"6:5:4\",hops=3i,loop=false,{end}"),
        format!("flow_latency,{flow} {},path=\"6:5:4\",{end}", value(12)),
        format!("hop_latency,{flow},switch=4 {},{end}", value(4)),
        format!("queue_occupancy,port=3,queue=5,switch=4 {},{end}", value(6)),
        format!("queue_congestion,port=3,queue=5,switch=4 {},{end}", value(10)),
        format!("link_utilization,port=3,switch=4 {},{end}", value(1000)),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_new_value_has_none_before_it() {
    for event in events() {
        let TelemetryEntry::Change { metric, .. } = event.entry else { unreachable!() };
        let as_new = |entry| match entry {
            TelemetryEntry::Change { time, key, metric, new, place, path, .. } => {
                TelemetryEntry::Change { time, key, metric, why: Why::New, old: 0, new, place, path }
            }
            other => other,
        };
        let new = TelemetryEvent { entry: as_new(event.entry), ..event };
        assert!(!line(Schema::Tags, &new).unwrap().contains("old="), "{metric:?}");
        assert_eq!(EventLine::from_event(&new, &Names::empty()).unwrap().old, None, "{metric:?}");
    }
}

#[test]
fn what_is_not_known_is_left_out_and_nothing_is_lost() {
    let v6: Flow = "[2001:db8::1]:1->[2001:db8::2]:2/tcp".parse().unwrap();
    let drop = |key, meaning| TelemetryEvent { meaning, ..drop_event(key, Location::default(), None) };
    let unread = line(Schema::Tags, &drop(Key::default(), None)).unwrap();
    assert_eq!(unread, "drops,reason=71 value=1i 7\n");
    let unnamed = line(Schema::Tags, &drop(v6.to_key(), None)).unwrap();
    assert!(unnamed.starts_with("drops,key=") && unnamed.contains(",reason=71 "), "{unnamed}");
    let named = line(Schema::Tags, &drop(v6.to_key(), Some(Meaning::Flow(v6)))).unwrap();
    assert!(named.contains("flow=[2001:db8::1]:1->[2001:db8::2]:2/tcp,proto=6"), "{named}");
    assert_eq!(line(Schema::IntCollector, &drop(Key::default(), None)), None);
}

#[test]
fn names_stand_beside_the_numbers_of_the_schema_of_tags_alone() {
    let names = "[switch.4]\nname = \"leaf1\"\n[switch.4.port]\n3 = \"to host 3\"\n";
    let names = Names::parse(names, std::path::Path::new("names.toml")).unwrap();
    let line = |schema: Schema, event: &TelemetryEvent| {
        let point = schema.build_point(event, &names).unwrap();
        let mut line = String::new();
        point.write_line(&mut line, &point.series_name(), point.time);
        line
    };
    let [_, _, hop, .., link] = events();
    let of_hop = line(Schema::Tags, &hop);
    assert!(of_hop.contains(",switch=4,switch_name=leaf1 value=4i,"), "{of_hop}");
    assert_eq!(
        line(Schema::Tags, &link),
        "link_utilization,port=3,port_name=to\\ host\\ 3,switch=4,switch_name=leaf1 value=1000i,old=400i,why=\"moved\" 1524138290\n"
    );
    let plain = r"port_tx_utilize\,sw_id=4\,port_id=3 value=1000 1524138290";
    assert_eq!(line(Schema::IntCollector, &link).trim_end(), plain);
    let place = Location { switch: Some(4), port: Some(9), queue: None };
    let drop = drop_event(Key::default(), place, Some(3));
    assert_eq!(
        line(Schema::Tags, &drop),
        "drops,reason=71,reason_name=traffic-manager,switch=4,switch_name=leaf1 value=1i,ingress_port=3i,egress_port=9i,ingress_port_name=\"to host 3\" 7\n"
    );
    let place = Location { port: Some(3), ..place };
    let entry =
        TelemetryEntry::Congestion { time: 7, key: Key::default(), place, occupancy: Some(9), latency: None };
    let congestion = TelemetryEvent { entry, meaning: None, path: None, latency: None, hops: None };
    assert_eq!(
        line(Schema::Tags, &congestion),
        "congestion,port=3,port_name=to\\ host\\ 3,switch=4,switch_name=leaf1 value=1i,occupancy=9i 7\n"
    );
}

#[test]
fn names_stand_beside_the_numbers_of_a_line_of_json() {
    let names = "[switch.4]\nname = \"leaf1\"\n[switch.4.port]\n3 = \"to host 3\"\n";
    let names = Names::parse(names, std::path::Path::new("names.toml")).unwrap();
    let named = |event| {
        let line = EventLine::from_event(event, &names).unwrap();
        [line.switch_name, line.port_name, line.ingress_port_name, line.reason_name]
            .map(Option::unwrap_or_default)
    };
    let [.., link] = events();
    assert_eq!(named(&link), ["leaf1", "to host 3", "", ""]);
    let place = Location { switch: Some(4), port: Some(9), queue: None };
    let drop = drop_event(Key::default(), place, Some(3));
    assert_eq!(named(&drop), ["leaf1", "", "to host 3", "traffic-manager"]);
}
