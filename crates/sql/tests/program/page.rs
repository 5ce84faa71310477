//! The questions of docs/sql.md, each with its answer worked out here from what was reported.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::made::{
    BEGIN, EPOCHS, FLOWS, LINK, MINUTE, copies, hops, key_writes, postcards, region, reported, used,
};
use super::{history, rows};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sql.md");

/// The statements below each heading of the third level.
pub(crate) fn questions() -> Vec<(String, String)> {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (mut heading, mut statement, mut found) = (String::new(), None::<String>, Vec::new());
    for line in page.lines() {
        match (&mut statement, line) {
            (None, "```sql") => statement = Some(String::new()),
            (None, line) => {
                if let Some(text) = line.strip_prefix("### ") {
                    heading = text.to_owned();
                }
            }
            (Some(text), "```") => {
                found.push((heading.clone(), std::mem::take(text)));
                statement = None;
            }
            (Some(text), line) => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    found
}

/// An epoch's opening in SQL.
fn opened(epoch: u64) -> String {
    format!("2026-11-24T14:{:02}:00Z", epoch - 1)
}

/// The path as text.
fn path(number: u64, epoch: u64) -> String {
    hops(number, epoch).map(|hop| hop.map_or("?".to_owned(), |hop| hop.to_string())).join(" > ")
}

/// The elements of used slots.
fn elements(spec: &dta_proto::store::StoreSpec, epoch: u64) -> Vec<Vec<u8>> {
    let region = region(spec, epoch);
    let elements = region.chunks_exact(spec.element_len() as usize);
    elements.filter(|element| element.iter().any(|byte| *byte != 0)).map(<[u8]>::to_vec).collect()
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// What each question must be answered.
fn truth(heading: &str) -> Vec<Value> {
    let flows = key_writes();
    match heading {
        "What is kept?" => {
            let of = |spec: &dta_proto::store::StoreSpec| {
                let rows: usize = EPOCHS.map(|epoch| used(spec, epoch)).sum();
                json!({ "store": spec.name, "since": opened(1), "until": "2026-11-24T14:10:00.500Z", "epochs": 10, "rows": rows })
            };
            vec![of(&flows), of(&postcards())]
        }
        "What did a flow report at 14:02:30?" => {
            let [packets, bytes, _] = reported(7, 3).unwrap();
            assert!(!copies(&flows, 7, 3).is_empty());
            vec![json!({ "packets": packets, "bytes": bytes })]
        }
        "How did it change over time?" => {
            let there = EPOCHS.filter(|epoch| !copies(&flows, 7, *epoch).is_empty());
            there
                .map(|epoch| json!({ "opened": opened(epoch), "packets": reported(7, epoch).unwrap()[0] }))
                .collect()
        }
        "In which epochs did nothing arrive of it?" => {
            let absent = EPOCHS.filter(|epoch| copies(&flows, 7, *epoch).is_empty());
            absent.map(|epoch| json!({ "opened": opened(epoch) })).collect()
        }
        "Which of these flows sent the most?" => {
            let most = |number: u64| {
                let there = EPOCHS.filter(|epoch| !copies(&flows, number, *epoch).is_empty());
                there.map(|epoch| reported(number, epoch).unwrap()[1]).max()
            };
            let of = |number| json!({ "flow": super::made::flow(number), "bytes": most(number).unwrap() });
            vec![of(8), of(2), of(1)]
        }
        "What were the ten deepest queues in five minutes?" => {
            let mut counts = BTreeMap::<_, BTreeSet<u32>>::new();
            for epoch in 6..=10 {
                for element in elements(&flows, epoch) {
                    let of_depth = counts.entry((std::cmp::Reverse(be32(&element, 12)), epoch)).or_default();
                    of_depth.insert(be32(&element, 0));
                }
            }
            let rows = counts.into_iter().take(10);
            rows.map(|((depth, epoch), flows)| {
                json!({ "opened": opened(epoch), "depth": depth.0, "flows": flows.len() })
            })
            .collect()
        }
        "Which paths do packets take?" => {
            let mut counts = BTreeMap::<String, usize>::new();
            for number in 0..FLOWS {
                let is_there = !copies(&postcards(), number, 7).is_empty();
                *counts.entry(path(number, 7)).or_default() += usize::from(is_there);
            }
            let mut counts: Vec<_> = counts.into_iter().collect();
            counts.sort_by_key(|(path, rows)| (std::cmp::Reverse(*rows), path.clone()));
            counts.into_iter().map(|(path, flows)| json!({ "path": path, "flows": flows })).collect()
        }
        "When did a flow's path change?" => {
            let changes = EPOCHS.filter(|epoch| *epoch == 1 || path(1, *epoch) != path(1, epoch - 1));
            changes.map(|epoch| json!({ "opened": opened(epoch), "path": path(1, epoch) })).collect()
        }
        "How many paths went through a switch, epoch by epoch?" => EPOCHS
            .map(|epoch| {
                let there: Vec<u64> =
                    (0..FLOWS).filter(|number| !copies(&postcards(), *number, epoch).is_empty()).collect();
                let through = there.iter().filter(|number| hops(**number, epoch).contains(&Some(11))).count();
                json!({ "opened": opened(epoch), "through_11": through, "paths": there.len() })
            })
            .collect(),
        "Where may an answer be incomplete?" => {
            let of = |what: &str, epoch: u64| json!({ "what": what, "since": opened(epoch), "until": format!("2026-11-24T14:{epoch:02}:00.500Z") });
            vec![of("epoch of flows", 7), of("epoch of paths", 7), of(LINK, 9), of(LINK, 10)]
        }
        other => panic!("docs/sql.md asks {other:?}: say here what must be answered"),
    }
}

#[test]
fn each_question_of_the_page_is_answered_rightly() {
    let folder = history();
    let questions = questions();
    assert_eq!(questions.len(), 10);
    assert_eq!(BEGIN % MINUTE, 0);
    for (heading, statement) in questions {
        let expected = truth(&heading);
        assert!(!expected.is_empty(), "{heading}");
        assert_eq!(rows(folder.path(), &statement), expected, "{heading}");
    }
}
