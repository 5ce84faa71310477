//! `docs/counters.md` and the module `counter` say the same.
//!
//! The tables of the document are made from the module. After a change of a definition:
//! `DTA_WRITE_DOCS=1 cargo test -p dta-proto --test counter_document`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use dta_proto::counter::{CounterKind, CounterNode, CounterTable, Definition, Values};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/counters.md");
const END: &str = "<!-- end -->\n";

/// What the document says in backticks and with a dot, and what is no counter.
const NO_COUNTERS: [&str; 4] = ["limits.reporters", "rc.queue", "rdma.md", "translator.reporters"];

fn document() -> String {
    std::fs::read_to_string(DOCUMENT).unwrap()
}

fn tables() -> impl Iterator<Item = &'static CounterTable> {
    CounterNode::ALL.into_iter().flat_map(|node| node.counter_tables().iter().copied())
}

/// Names with their units and meanings, as in the document: a list's values are listed where they first
/// appear.
fn rows(
    definition: &'static Definition,
    listed: &mut BTreeSet<&'static str>,
) -> Vec<(String, String, &'static str)> {
    let unit = match definition.kind {
        CounterKind::Counter => definition.unit.to_string(),
        CounterKind::Held { .. } | CounterKind::Now => format!("{}, now", definition.unit),
        CounterKind::Position => "a sequence".into(),
    };
    let values = match definition.variables.last().map(|variable| (variable.word, variable.values)) {
        Some((word, Values::Of(values))) if !values[0].meaning.is_empty() && listed.insert(word) => values,
        _ => return vec![(definition.name.to_owned(), unit, definition.meaning)],
    };
    let word = definition.variables.last().unwrap().word;
    values
        .iter()
        .map(|value| (definition.name.replace(word, value.name), unit.clone(), value.meaning))
        .collect()
}

fn table(table: &'static CounterTable) -> String {
    let mut text = String::from("| name | unit | meaning |\n|---|---|---|\n");
    let mut listed = BTreeSet::new();
    for definition in table.definitions {
        for (name, unit, meaning) in rows(definition, &mut listed) {
            writeln!(text, "| `{name}` | {unit} | {meaning} |").unwrap();
        }
    }
    text
}

/// The document with all tables generated from the module, and their titles.
fn rewritten(document: &str) -> (String, Vec<String>) {
    let mut text = String::new();
    let (mut rest, mut titles) = (document, Vec::new());
    while let Some((before, after)) = rest.split_once("<!-- counters: ") {
        let (title, after) = after.split_once(" -->\n").expect("a marker has an end");
        let (_, after) = after.split_once(END).expect("a table has an end");
        let known = tables().find(|table| table.title == title);
        let known = known.unwrap_or_else(|| panic!("the module has no table {title:?}"));
        write!(text, "{before}<!-- counters: {title} -->\n{}{END}", table(known)).unwrap();
        titles.push(title.to_owned());
        rest = after;
    }
    text.push_str(rest);
    (text, titles)
}

/// The document without its tables.
fn prose(document: &str) -> String {
    let mut parts = document.split("<!-- counters: ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| text.push_str(part.split_once(END).map_or(part, |(_, after)| after)));
    text
}

#[test]
fn the_document_has_every_counter_with_its_unit_and_meaning_and_no_other() {
    let document = document();
    let (right, titles) = rewritten(&document);
    assert_eq!(titles.iter().collect::<BTreeSet<_>>().len(), titles.len(), "a table stands there twice");
    for table in tables() {
        assert!(
            titles.iter().any(|title| title == table.title),
            "no table of {:?} in the document",
            table.title
        );
    }
    if std::env::var_os("DTA_WRITE_DOCS").is_some() {
        // The other test reads it meanwhile.
        let new = format!("{DOCUMENT}.new");
        std::fs::write(&new, &right).unwrap();
        std::fs::rename(&new, DOCUMENT).unwrap();
        return;
    }
    for (there, should) in document.lines().zip(right.lines()) {
        assert_eq!(there, should, "write it anew with DTA_WRITE_DOCS=1");
    }
    assert_eq!(document, right);
    let by_hand: Vec<_> =
        prose(&document).lines().filter(|line| line.starts_with('|')).map(str::to_owned).collect();
    assert_eq!(by_hand, [""; 0], "a table that the module does not have");
}

/// Whether a text that may end in `.*` is the name of a counter, or of several.
fn is_known(text: &str) -> bool {
    let definitions = || tables().flat_map(|table| table.definitions);
    if definitions().any(|definition| definition.name == text) {
        return true;
    }
    match text.strip_suffix('*') {
        Some(beginning) => definitions().any(|definition| {
            definition.name.starts_with(beginning)
                || rows(definition, &mut BTreeSet::new()).iter().any(|(name, ..)| name.starts_with(beginning))
        }),
        None => CounterNode::ALL.iter().any(|node| node.find_counter(text).is_some_and(|found| found.known)),
    }
}

#[test]
fn what_the_document_calls_a_counter_is_one() {
    let text = prose(&document());
    let mut seen = 0;
    for quoted in text.split('`').skip(1).step_by(2) {
        for name in quoted.split([' ', '[', ']']).filter(|word| word.contains('.')) {
            let form = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-*".contains(&b));
            if form && !name.ends_with('.') && !NO_COUNTERS.contains(&name) {
                assert!(is_known(name), "`{name}` is no counter");
                seen += 1;
            }
        }
    }
    assert!(seen > 5, "the document names counters between its tables");
    assert!(!is_known("dropped.nothing") && !is_known("nothing.*") && is_known("dropped.*"));
}
