//! The page and its interface by programs of others: axe-core looks for barriers, a client of the Model Context Protocol
//! asks, and pyarrow and DuckDB read what is saved. `scripts/install-outside-readers` installs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::common::MANAGER;
use crate::flows::FlowsBed;
use crate::{WebBed, encoded};

/// A folder of Python packages that were installed; `None` where they could not be, and then says which test goes without.
fn installed_packages(package: &str, test: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("outside-readers");
    if folder.join(package).exists() {
        return Some(folder);
    }
    let missing =
        format!("{package} is not installed in {} (scripts/install-outside-readers)", folder.display());
    assert!(std::env::var_os("CI").is_none(), "{test}: {missing}");
    println!("SKIPPED: {test}: {missing}");
    None
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs axe-core: make privileged"]
async fn no_view_has_serious_barriers() {
    let Some(packages) = installed_packages("axe_playwright_python", "barriers of the page") else { return };
    let axe = std::fs::read_to_string(packages.join("axe_playwright_python/axe.min.js")).unwrap();
    let Some(browser) = Browser::start("barriers of the page") else { return };
    let Some(bed) = WebBed::start().await else { return };
    let flows_bed = FlowsBed::start().await;
    flows_bed.until_firing(3).await;
    let (with_flow, mut found) = (format!("flow?flow={}", encoded(&bed.first_flow())), Vec::new());
    let of_reports = [
        "overview",
        "top?by=reports",
        "map",
        &with_flow,
        "events",
        "drops",
        "memory?store=int-paths",
        "overview?at=-1h",
    ];
    let of_records = ["overview", "alerts", "flows?group=src,dst,dst-port", "flows?where=dst-prot", "map"];
    let views = of_reports.map(|view| (&bed.page, view)).into_iter();
    let views: Vec<_> = views.chain(of_records.map(|view| (&flows_bed.page, view))).collect();
    for (width, theme) in [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")] {
        browser.resize(width, 900);
        for (page, view) in &views {
            browser.open("about:blank");
            browser.open(&format!("http://{page}/#/{view}"));
            browser.until("document.querySelectorAll(\"main .card, main .empty\").length > 0", true);
            browser.evaluate(&format!("void (document.documentElement.dataset.theme = {theme:?})"));
            // What is being asked for comes within this time or the next view's: a barrier is in every view's frame.
            browser.until("[...document.querySelectorAll(\"main .hint\")].some((hint) => hint.innerText.endsWith(\"…\"))", false);
            browser.evaluate(&format!("void (() => {{ {axe} }})()"));
            browser.evaluate("void axe.run({ resultTypes: [\"violations\"] }).then((result) => { window.barriers = result.violations; })");
            browser.until("Array.isArray(window.barriers)", true);
            let barriers = browser.evaluate(
                "window.barriers.filter((one) => [\"serious\", \"critical\"].includes(one.impact)).map((one) => \
                 `${one.id}: ${one.help}: ${one.nodes.map((node) => node.html).slice(0, 3).join(\" \")}`)",
            );
            let barriers = barriers.as_array().unwrap().iter();
            found.extend(barriers.map(|one| format!("{view} ({theme}, {width} pixels): {one}")));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a client of the Model Context Protocol: make privileged"]
async fn a_client_of_others_finds_the_path_of_a_flow() {
    let Some(packages) = installed_packages("mcp", "an agent's client") else { return };
    let Some(bed) = WebBed::start().await else { return };
    let page = format!("http://{}/mcp", bed.page);
    // Over HTTP, and over standard input and output.
    for server in [vec![&*page], vec![MANAGER, "__collector", "mcp", "--collector", bed.int.address()]] {
        let client = run_python(&packages, "agent_client.py", &server);
        let found: Value = serde_json::from_str(&client).unwrap();
        assert_eq!((&found["path"], &found["refused"]), (&json!([6, 5, 4]), &json!(true)), "{found}");
        assert!(found["tools"].as_array().unwrap().iter().any(|tool| tool == "map"), "{found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs pyarrow and DuckDB: make privileged"]
async fn others_read_flows_as_parquet() {
    let Some(packages) = installed_packages("pyarrow", "flows as Parquet") else { return };
    let bed = FlowsBed::start().await;
    let read = run_python(&packages, "parquet_client.py", &[&format!("http://{}/", bed.page)]);
    let read: Value = serde_json::from_str(&read).unwrap();
    let largest = json!(["10.0.0.2", 6, 8080, 400_000, 4000, 1]);
    assert_eq!((&read["rows"][0], &read["bytes"]), (&largest, &json!(1_000_000)), "{read}");
    let types = ["string", "int32", "int32", "int64", "int64", "int64"];
    assert_eq!(read["types"], json!(types));
    assert_eq!(read["names"], json!(["dst", "protocol", "dst_port", "bytes", "packets", "flows"]));
}

/// What a script beside this file prints.
fn run_python(packages: &Path, script: &str, arguments: &[&str]) -> String {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "/usr/bin/python3".into());
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web")).join(script);
    let mut command = Command::new(python);
    let output = command.arg(script).args(arguments).env("PYTHONPATH", packages).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
