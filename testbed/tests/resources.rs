//! What the program takes of a Tofino, as its compiler reported: `docs/tofino-resources.md` has the same figures.
//! `DTA_WRITE_DOCS=1` writes them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

/// Kinds of resources: name in the file, and in the page.
const KINDS: [(&str, &str); 9] = [
    ("sram", "SRAM"),
    ("map_ram", "map RAM"),
    ("tcam", "TCAM"),
    ("stateful_alu", "stateful ALUs"),
    ("statistics_alu", "counter ALUs"),
    ("logical_table", "tables"),
    ("hash_bit", "hash bits"),
    ("hash_distribution", "hash distribution"),
    ("crossbar_byte", "crossbar bytes"),
];

/// What tables are for, by how their names go on behind the control; the first that fits.
type Parts = &'static [(&'static str, &'static [&'static str])];

const TRANSLATOR: Parts = &[
    ("postcarding", &["rows", "row_", "postcard", "no_hop", "tbl_no_hop", "tbl_rows", "tbl_postcard"]),
    (
        "sketch-merge",
        &[
            "columns",
            "tbl_columns",
            "place.",
            "tbl_place_turn",
            "tbl_place_column",
            "column_",
            "tbl_column_",
            "sketch_reporter",
        ],
    ),
    ("append", &["lists", "ring", "tbl_lists", "tbl_ring", "tbl_sequence_and_count", "tbl_check"]),
    ("iCRC", &["tbl_icrc", "icrc"]),
    (
        "sequences and NACKs",
        &["sequences", "tbl_sequences", "nack", "tbl_number_nack", "tbl_make_nack", "tbl_sums_nacked"],
    ),
    ("checksums of elements", &["tbl_sum"]),
    ("forwarding", &["forwarding", "tbl_forwarding"]),
    ("key-write, key-increment, and all together", &[""]),
];

const REPORTER: Parts = &[
    ("keys of reports", &["make_report.report_key", "tbl_make_report_report_key"]),
    ("reports", &["make_report", "tbl_make_report", "tbl_report", "tbl_widen", "tbl_place", "tbl_time"]),
    ("filter", &["filter", "tbl_filter"]),
    ("what is watched", &["watchlist", "excluded", "own_traffic", "flow"]),
    ("forwarding, and the rest", &[""]),
];

/// The figures of a program.
fn figures(compiled: &str) -> String {
    let of_parts = if compiled.starts_with("reporter") { REPORTER } else { TRANSLATOR };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(compiled).join("resources.json");
    let resources: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let stages = resources["stages"].as_array().unwrap();
    let head = |first: &str| {
        let names = KINDS.map(|(_, name)| name).join(" | ");
        format!("| {first} | {names} |\n|---|{}\n", "---|".repeat(KINDS.len()))
    };
    let row = |name: &str, of: &dyn Fn(&str) -> u64| {
        let cells = KINDS.map(|(kind, _)| of(kind).to_string()).join(" | ");
        format!("| {name} | {cells} |\n")
    };
    let mut text = String::new();
    writeln!(
        text,
        "Stages: {} of ingress, {} of egress, of 12.\n",
        resources["stages_used"]["ingress"], resources["stages_used"]["egress"]
    )
    .unwrap();
    text += &head("stage");
    for stage in stages {
        text += &row(&stage["stage"].to_string(), &|kind| stage[kind].as_u64().unwrap());
    }
    text += &row("all", &|kind| stages.iter().map(|stage| stage[kind].as_u64().unwrap()).sum());
    text += &row("of 12 stages", &|kind| 12 * resources["of_a_stage"][kind].as_u64().unwrap());

    let mut parts: BTreeMap<usize, BTreeMap<&str, u64>> = BTreeMap::new();
    for (name, takes) in resources["tables"].as_object().unwrap() {
        let name = name.split_once('.').map_or(name.as_str(), |(_, rest)| rest);
        let is = |part: &(&str, &[&str])| part.1.iter().any(|begin| name.starts_with(begin));
        let part = of_parts.iter().position(is).unwrap();
        for (kind, _) in KINDS {
            *parts.entry(part).or_default().entry(kind).or_default() += takes[kind].as_u64().unwrap_or(0);
        }
    }
    writeln!(text, "\nThe same by what the tables are for:\n").unwrap();
    text += &head("part");
    for (part, takes) in &parts {
        text += &row(of_parts[*part].0, &|kind| takes[kind]);
    }
    text
}

#[test]
fn the_page_has_the_compilers_figures() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tofino-resources.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let mut wanted = String::new();
    let mut rest = page.as_str();
    let mut programs = 0;
    // Between two marks, of which the first names the folder.
    while let Some((before, behind)) = rest.split_once("<!-- figures of ") {
        let (folder, behind) = behind.split_once(" -->\n").expect("the end of a mark");
        let (_, behind) = behind.split_once("<!-- end -->").expect("the end of the figures");
        write!(wanted, "{before}<!-- figures of {folder} -->\n{}<!-- end -->", figures(folder)).unwrap();
        rest = behind;
        programs += 1;
    }
    wanted += rest;
    // Three profiles of the translator, and the reporter.
    assert_eq!(programs, 4);
    if std::env::var_os("DTA_WRITE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), wanted, "run it with DTA_WRITE_DOCS=1");
}
