//! `docs/metrics.md` has the metric of each counter.
//!
//! The tables of the document are made from the definitions. After a change of one:
//! `DTA_WRITE_DOCS=1 cargo test -p dta-export --test metrics_document`.

use std::fmt::Write as _;

use dta_export::metrics::metric_name;
use dta_proto::counter::{CounterKind, CounterNode};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
const END: &str = "<!-- end -->\n";

/// The nodes whose counters are metrics, by the word by which the document asks for them.
const NODES: [(&str, CounterNode); 6] = [
    ("translator", CounterNode::Translator),
    ("reporter", CounterNode::HeardReporter),
    ("agent", CounterNode::HeardAgent),
    ("collector", CounterNode::Collector),
    ("software NIC", CounterNode::SoftNic),
    ("RDMA device", CounterNode::RdmaDevice),
];

fn table(node: CounterNode) -> String {
    let mut text = String::from("| counter | metric | labels |\n|---|---|---|\n");
    for definition in node.counter_tables().iter().flat_map(|table| table.definitions) {
        if definition.kind == CounterKind::Position {
            continue;
        }
        let name = metric_name(node, definition).expect("a name");
        let total = if definition.kind == CounterKind::Counter { "_total" } else { "" };
        let labels: Vec<_> = definition
            .variables
            .iter()
            .map(|variable| format!("`{}`", variable.word.to_lowercase()))
            .collect();
        writeln!(text, "| `{}` | `{name}{total}` | {} |", definition.name, labels.join(", ")).unwrap();
    }
    text
}

fn rewritten(document: &str) -> (String, usize) {
    let (mut text, mut rest, mut tables) = (String::new(), document, 0);
    while let Some((before, after)) = rest.split_once("<!-- metrics: ") {
        let (title, after) = after.split_once(" -->\n").expect("a marker has an end");
        let (_, after) = after.split_once(END).expect("a table has an end");
        let (_, node) = NODES.iter().find(|(name, _)| *name == title).expect("a node");
        write!(text, "{before}<!-- metrics: {title} -->\n{}{END}", table(*node)).unwrap();
        tables += 1;
        rest = after;
    }
    (text + rest, tables)
}

#[test]
fn the_document_has_the_metric_of_each_counter() {
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    let (text, tables) = rewritten(&document);
    assert_eq!(tables, NODES.len());
    if std::env::var_os("DTA_WRITE_DOCS").is_some() {
        std::fs::write(DOCUMENT, text).unwrap();
    } else {
        assert!(
            text == document,
            "docs/metrics.md is not as the definitions are: run this test with DTA_WRITE_DOCS=1"
        );
    }
}
