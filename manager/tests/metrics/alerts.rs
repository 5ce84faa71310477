//! The alerts in `testbed/alerts/`: Prometheus' own tool tests each, what they ask for is there, and each has its place in
//! the runbook.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

const RUNBOOK: &str = "https://github.com/dta-telemetry/dta/blob/main/docs/runbook.md#";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// What follows a word, in each line that begins with it.
fn behind<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix(word)).collect()
}

#[test]
fn every_alert_has_a_test_and_its_place_in_the_runbook() {
    let rules = text("testbed/alerts/dta.yml");
    let alerts = behind(&rules, "- alert: ");
    let links: Vec<_> = alerts.iter().map(|alert| format!("{RUNBOOK}{}", alert.to_lowercase())).collect();
    assert_eq!(behind(&rules, "runbook_url: "), links);
    let (all, runbook): (BTreeSet<_>, _) = (alerts.iter().copied().collect(), text("docs/runbook.md"));
    let headings: BTreeSet<_> = behind(&runbook, "### ").into_iter().collect();
    assert_eq!(headings, all, "headings of docs/runbook.md, and alerts");
    let tests = text("testbed/alerts/dta_test.yml");
    for alert in alerts {
        for what in ["fires", "is quiet"] {
            let name = format!("- name: {alert} {what}\n");
            assert!(tests.contains(&name), "testbed/alerts/dta_test.yml does not test that {alert} {what}");
        }
    }
}

#[test]
fn alerts_ask_for_metrics_that_there_are() {
    let (rules, document) = (text("testbed/alerts/dta.yml"), text("docs/metrics.md"));
    let mut asked = BTreeSet::new();
    for line in rules.lines().filter(|line| !line.trim_start().starts_with("- name:")) {
        let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        asked.extend(words.filter(|word| word.starts_with("dta_")));
    }
    assert!(asked.len() > 30, "{asked:?}");
    for metric in asked {
        let known = document.contains(&format!("`{metric}`")) || metric == "dta_test";
        assert!(known, "docs/metrics.md has no {metric}");
    }
}

#[test]
#[ignore = "needs Debian's prometheus"]
fn promtool_finds_that_each_alert_fires_when_it_is_to() {
    for arguments in [["check", "rules", "dta.yml"], ["test", "rules", "dta_test.yml"]] {
        let mut command = Command::new("promtool");
        let output = command.args(arguments).current_dir(root().join("testbed/alerts")).output();
        let output = output.expect("Debian's package prometheus is installed (scripts/install-deps test)");
        let printed = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&printed));
    }
}
