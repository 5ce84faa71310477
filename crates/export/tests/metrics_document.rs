//! `docs/metrics.md` has the metric of each counter.
//!
//! The tables of the document are made from the definitions. After a change of one:
//! `DTA_WRITE_DOCS=1 cargo test -p dta-metrics --test document`.

use std::fmt::Write as _;

use dta_export::metrics::metric_name;
use dta_proto::counter::{Kind, Node};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
const END: &str = "<!-- end -->\n";

/// The nodes whose counters are metrics, by the word by which the document asks for them.
const NODES: [(&str, Node); 6] = [
    ("translator", Node::Translator),
    ("reporter", Node::HeardReporter),
    ("agent", Node::HeardAgent),
    ("collector", Node::Collector),
    ("software NIC", Node::SoftNic),
    ("RDMA device", Node::RdmaDevice),
];

fn table(node: Node) -> String {
    let mut text = String::from("| counter | metric | labels |\n|---|---|---|\n");
    for definition in node.tables().iter().flat_map(|table| table.definitions) {
        if definition.kind == Kind::Position {
            continue;
        }
        let name = metric_name(node, definition).expect("a name");
        let total = if definition.kind == Kind::Counter { "_total" } else { "" };
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
