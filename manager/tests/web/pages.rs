//! The page in a real browser: its numbers are the collector's, a reload keeps what is shown, and nothing is complained about.

use serde_json::Value;

use crate::browser::Browser;
use crate::{WebBed, encoded, http};

/// The text of an element, without line breaks.
fn text_of(selector: &str) -> String {
    format!("(document.querySelector({selector:?})?.innerText ?? \"\").replace(/\\s+/g, \" \").trim()")
}

fn count_of(selector: &str) -> String {
    format!("document.querySelectorAll({selector:?}).length")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_view_shows_what_the_collector_has() {
    let Some(browser) = Browser::start("each view in a browser") else { return };
    let Some(bed) = WebBed::start().await else { return };
    let flow = bed.first_flow();
    let url = |view: &str| format!("http://{}/#/{view}", bed.page);
    let get = |path: &str| http::get(&bed.page, path).json();
    for width in [1280, 400] {
        browser.resize(width, 900);

        browser.open(&url("overview"));
        let stages = get("/api/v1/waterfall")["stages"].take();
        let received = stages.as_array().unwrap().iter().find(|stage| stage["name"] == "received");
        let received = received.unwrap()["count"].as_u64().unwrap();
        let shown = format!(
            "parseInt({}.match(/[\\d,]+/)?.[0].replace(/,/g, \"\"))",
            text_of("[data-stage=received] b")
        );
        browser.until(&shown, received);
        let stores = get("/api/v1/stores").as_array().unwrap().len();
        browser.until(&count_of("#stores tbody tr"), stores);
        browser.until(&count_of("#sessions tbody tr"), 1);
        browser.until(&format!("{}.startsWith(\"live\")", text_of("#state")), true);

        browser.open(&url("top?by=reports"));
        browser.until(&text_of("#top tbody td:nth-child(2)"), flow.as_str());
        let reports = get("/api/v1/top?by=reports")["flows"][0]["value"].to_string();
        browser.until(&text_of("#top tbody td:nth-child(3)"), reports);
        browser.reload();
        browser.until(&text_of("#top tbody td:nth-child(2)"), flow.as_str());
        assert!(browser.evaluate("location.hash").as_str().unwrap().contains("by=reports"));

        browser.open(&url(&format!("flow?flow={}", encoded(&flow))));
        browser.until(
            "[...document.querySelectorAll(\".hop-box\")].map((box) => box.dataset.switch).join()",
            "6,5,4",
        );
        browser.until(&format!("{}.includes(\"latency of all hops 12 ns\")", text_of("#flow")), true);

        browser.open(&url("events?kind=flow-latency"));
        browser.until(&count_of("#events tr[data-kind=flow-latency]"), 2);
        browser.until(&count_of("#events tr"), 2);
        browser.until(&format!("{}.includes(\"408 ns → 12 ns\")", text_of("#events tr")), true);

        browser.open(&url("drops"));
        browser.until(&text_of("#drops strong"), "No drop is known");

        let map = get("/api/v1/memory/map?store=int-paths&cells=1024");
        let cells = map["cells"].as_array().unwrap();
        let full = cells.iter().position(|cell| cell["used"] != 0).expect("a path is there");
        browser.open(&url("memory?store=int-paths"));
        browser.until(&count_of("#map rect"), cells.len());
        browser.evaluate(&format!(
            "document.querySelector(\"[data-cell='{full}']\").dispatchEvent(new MouseEvent(\"click\"))"
        ));
        browser.until(&format!("{} > 0", count_of("#elements tbody tr")), true);
        let first = cells[full]["first"].as_u64().unwrap();
        browser.until("new URLSearchParams(location.hash.split(\"?\")[1]).get(\"first\")", first.to_string());
        browser.reload();
        browser.until(&format!("{} > 0", count_of("#elements tbody tr")), true);

        let is_wider = browser.evaluate("document.documentElement.scrollWidth > innerWidth");
        assert_eq!(is_wider, Value::Bool(false), "the page is wider than {width} pixels");
    }
    // A moment stays when the view changes.
    browser.open(&url("events?at=-1h"));
    browser.until(&text_of("#state"), "another moment");
    browser.evaluate("document.querySelector(\"nav a\").click()");
    browser.until("location.hash", "#/overview?at=-1h");
    browser.until(&text_of("main tbody td"), "int-values");
    // Most stores have no epochs, and so no events of then: a problem that the page shows.
    let complaints: Vec<String> =
        browser.complaints().into_iter().filter(|text| !text.contains("at=-1h")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
