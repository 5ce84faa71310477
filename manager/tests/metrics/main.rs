//! Metrics of running daemons: what they say is what the daemons count, real databases read them, and the dashboards
//! ask for what is there. What needs a database is run by `make privileged`.

#[path = "../common/mod.rs"]
mod common;

mod alerts;
mod bed;
mod compose;
mod dashboards;
mod http;
mod influx;
mod prometheus;

use std::net::TcpListener;
use std::process::Command;

use bed::{Bed, RECORDS};
use common::MANAGER;
use dta_proto::counter::{CounterKind, CounterNode};
use dta_rpc::Ask as _;

#[tokio::test]
async fn every_counter_of_both_daemons_is_a_metric() {
    let mut bed = Bed::start("tags", "intcollector").await;
    if !bed.replay("int-v1.0-three-reports.pcap", 3).await {
        return;
    }
    let [of_collector, of_translator] = bed.pages();
    let nodes = [bed.int.client.statistics().await.unwrap(), bed.int.control.statistics().await.unwrap()];
    let mut exported = 0;
    for (page, nodes) in [(&of_collector, &nodes[0]), (&of_translator, &nodes[1])] {
        for node in nodes {
            let of = CounterNode::from_node_name(&node.node);
            for counter in &node.counters {
                let found = of
                    .find_counter(&counter.name)
                    .unwrap_or_else(|| panic!("{}: {}", node.node, counter.name));
                let kind = found.definition.kind;
                if kind == CounterKind::Position {
                    continue;
                }
                let mut name = dta_export::metrics::metric_name(of, found.definition).unwrap();
                if !node.session.is_empty() {
                    name = name.replacen("dta_", "dta_session_", 1);
                }
                let total = if kind == CounterKind::Counter { "_total" } else { "" };
                let values: Vec<_> = found.variables().filter(|(_, value)| !value.is_empty()).collect();
                let line = page.lines().find(|line| {
                    let Some((series, _)) = line.rsplit_once(' ') else { return false };
                    let of_name = series.split('{').next() == Some(&format!("{name}{total}"));
                    let session = format!("session=\"{}\"", node.session);
                    of_name
                        && values.iter().all(|(_, value)| series.contains(&format!("=\"{value}\"")))
                        && series.contains(&session) != node.session.is_empty()
                });
                assert!(line.is_some(), "{} of {} is not exported as {name}{total}", counter.name, node.node);
                exported += 1;
            }
        }
        assert!(page.contains("\ndta_metrics_left_out 0\n"), "something is left out");
        // In the older format, for scrapers that do not ask for another: with the type and help of what follows.
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            assert!(page.contains(&format!("# TYPE {name} {kind}\n")), "{line}");
            assert!(page.contains(&format!("# HELP {name} ")), "{line}");
        }
    }
    assert!(exported > 200, "{exported} counters");
    for (page, line) in [
        (&of_translator, "dta_translator_int_reports_total{translator=\"int\"} 3"),
        (&of_translator, "dta_translator_serving 1"),
        (&of_translator, "dta_translator_sessions_open 1"),
        (&of_collector, "dta_collector_serving 1"),
        (&of_collector, "dta_collector_sessions 1"),
        (&of_collector, "dta_int_queue_occupancy{switch=\"4\",port=\"3\",queue=\"5\"} "),
    ] {
        let begins: Vec<_> = page.lines().filter(|shown| shown.starts_with(&line[..12])).collect();
        assert!(begins.iter().any(|shown| shown.starts_with(line)), "no {line} among {begins:#?}");
    }
}

/// The sums of what two exporters sent are those of the page, to the byte.
#[tokio::test]
async fn traffic_of_flow_records_is_summed_as_it_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let names = folder.path().join("names.toml");
    std::fs::write(
        &names,
        "[switch.\"127.0.3.1\"]\nname = \"edge1\"\n[switch.\"127.0.3.1\".port]\n1 = \"lan\"\n",
    )
    .unwrap();
    let bed = Bed::with_names("off", "auto", "", names.to_str().unwrap()).await;
    const TIMES: u64 = 40;
    for _ in 0..TIMES {
        bed.send_flows("127.0.3.1", 1, &RECORDS);
        bed.send_flows("127.0.3.2", 100, &RECORDS[2..]);
    }
    let (one, two) = ("exporter=\"127.0.3.1\",exporter_name=\"edge1\"", "exporter=\"127.0.3.2\"");
    let lan = "interface=\"1\",interface_name=\"lan\"";
    let flow = |sport: u16, dport: u16, protocol: &str, number: u8| {
        format!(
            "{{flow=\"10.0.0.1:{sport}->10.0.0.2:{dport}/{protocol}\",src=\"10.0.0.1\",sport=\"{sport}\",dst=\"10.0.0.2\",dport=\"{dport}\",proto=\"{number}\"}}"
        )
    };
    let mut expected = vec![
        (format!("exporter_records_total{{{one}}}"), 3),
        (format!("exporter_records_total{{{two}}}"), 1),
        (format!("exporter_bytes_total{{{one}}}"), 9530),
        (format!("exporter_bytes_total{{{two}}}"), 13_000),
        (format!("exporter_packets_total{{{one}}}"), 17),
        (format!("exporter_packets_total{{{two}}}"), 200),
    ];
    for (interface, direction, bytes, packets) in [
        (lan, "in", 9130, 12),
        (lan, "out", 400, 5),
        ("interface=\"2\"", "in", 400, 5),
        ("interface=\"2\"", "out", 9130, 12),
    ] {
        let labels = format!("{{{one},{interface},direction=\"{direction}\"}}");
        expected.push((format!("interface_bytes_total{labels}"), bytes));
        expected.push((format!("interface_packets_total{labels}"), packets));
    }
    for (labels, bytes, packets) in [
        (format!("{{{one},protocol=\"tcp\"}}"), 9400, 15),
        (format!("{{{one},protocol=\"udp\"}}"), 130, 2),
        (format!("{{{two},protocol=\"udp\"}}"), 13_000, 200),
    ] {
        expected.push((format!("protocol_bytes_total{labels}"), bytes));
        expected.push((format!("protocol_packets_total{labels}"), packets));
    }
    // Of the flow that both exporters saw, the one with most bytes.
    expected.push((format!("largest_flow_bytes{}", flow(53, 53, "udp", 17)), 13_000));
    expected.push((format!("largest_flow_bytes{}", flow(5000, 443, "tcp", 6)), 9000));
    let mut expected: Vec<_> = expected
        .into_iter()
        .map(|(series, value)| format!("dta_traffic_{series} {}", TIMES * value))
        .collect();
    expected.extend(
        ["damaged", "missing", "overwritten"]
            .map(|cause| format!("dta_traffic_missed_batches_total{{cause=\"{cause}\"}} 0")),
    );
    let begun = std::time::Instant::now();
    loop {
        let [page, _] = bed.pages();
        let missing: Vec<_> =
            expected.iter().filter(|line| !page.lines().any(|shown| shown == **line)).collect();
        if missing.is_empty() {
            break;
        }
        let exported: Vec<_> = page.lines().filter(|line| line.starts_with("dta_traffic")).collect();
        assert!(begun.elapsed() < common::int_bed::PATIENCE, "no {missing:#?} in {exported:#?}");
    }
}

/// The line of an error of a daemon that does not start.
fn refused(arguments: &[&str]) -> String {
    let output = Command::new(MANAGER).args(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?} ended well");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_port_that_is_taken_is_named_in_the_error_and_off_is_off() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let memory = folder.path().join("memory").display().to_string();
    let collector = [
        "__collector",
        "serve",
        "--config",
        "none",
        "--listen",
        "127.0.0.1:0",
        "--soft-port",
        "0",
        "--memory",
        &memory,
    ];
    let translator = [
        "__translator",
        "run",
        "--config",
        "none",
        "--listen",
        "127.0.0.1:0",
        "--control",
        "127.0.0.1:0",
        "--source-port",
        "0",
    ];
    for daemon in [&collector[..], &translator] {
        let error = refused(&[daemon, &["--metrics", &at]].concat());
        let line = format!("cannot serve metrics on {at}: Address already in use");
        assert!(error.contains(&line) && error.contains("--metrics"), "{error}");
        let error = refused(&[daemon, &["--metrics", "here"]].concat());
        assert!(error.contains("--metrics") && error.contains("`off`"), "{error}");
    }
    let off = common::daemon::Daemon::start(&[&collector[..], &["--metrics", "off"]].concat());
    assert_eq!(off.ready["metrics"], serde_json::Value::Null);
}
