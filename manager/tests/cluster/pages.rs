//! The page of each collector, which shows all of the cluster.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dta_proto::to_hex_digits;
use serde_json::Value;

use super::ground::{Ground, PATIENCE};
use super::schema::hold;
use super::scrape::get;

/// Keys that a page is asked for: of two collectors, each has some of so many.
const KEYS: usize = 20;

/// What a collector's page says of its cluster.
struct Page<'a> {
    id: &'a str,
    /// Host and port.
    address: String,
}

impl Page<'_> {
    fn ask(&self, path: &str) -> Result<Vec<Value>, String> {
        let answer = get(&self.address, path);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        if !head.starts_with("HTTP/1.1 200") {
            return Err(format!("{}: {path}: {answer}", self.id));
        }
        Ok(serde_json::from_str(body).unwrap())
    }

    /// Whether it knows all collectors, and has the values of the keys that a question names. Who is slow to answer counts as
    /// unreachable for a while.
    fn check(&self, addresses: &BTreeSet<&str>, question: &str) -> Result<(), String> {
        let members = self.ask("/api/v1/members")?;
        members.iter().for_each(|member| hold("member", member));
        let known: BTreeSet<&str> =
            members.iter().map(|member| member["address"].as_str().unwrap()).collect();
        let are_reached = members.iter().all(|member| member["unreachable"].is_null());
        if known != *addresses || !are_reached {
            return Err(format!("{}: {members:#?}, not {addresses:?}", self.id));
        }
        let parts: BTreeSet<&str> = members
            .iter()
            .flat_map(|member| member["stores"].as_array().unwrap())
            .filter(|store| store["name"] == "flows")
            .map(|store| store["part"].as_str().unwrap())
            .collect();
        assert_eq!(parts.len(), members.len(), "{}: {parts:?}", self.id);
        let answers = self.ask(question)?;
        assert_eq!(answers.len(), KEYS, "{}", self.id);
        let missing: Vec<&Value> = answers.iter().filter(|answer| !answer["value"].is_string()).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{}: {missing:#?}", self.id)) }
    }
}

impl Ground {
    /// Asserts that the page of each collector knows all of them, and has the values of keys wherever they are.
    pub(crate) fn check_pages(&mut self) {
        let view = self.view().unwrap();
        let addresses: BTreeSet<&str> =
            view.collectors.values().map(|collector| collector.address.as_str()).collect();
        let keys: Vec<String> = self.truth.keys().take(KEYS).map(|key| to_hex_digits(&key.0)).collect();
        let question = format!("/api/v1/query/key-write?store=flows&key={}", keys.join("&key="));
        for id in view.collectors.keys() {
            let url = std::fs::read_to_string(self.folder.path().join(format!("{id}.page"))).unwrap();
            let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
            let (page, begun) = (Page { id, address }, Instant::now());
            while let Err(lack) = page.check(&addresses, &question) {
                assert!(begun.elapsed() < PATIENCE, "{lack}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}
