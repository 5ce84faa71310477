//! The page in a real browser: its numbers are the collector's, a reload keeps what is shown, and nothing is complained about.

use serde_json::Value;

use crate::browser::Browser;
use crate::common::loopback::free_address;
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
        let queryable = stages.as_array().unwrap().last().unwrap();
        assert_eq!(queryable["name"], "queryable");
        let shown =
            format!("{}.match(/[\\d,]+/)?.[0].replace(/,/g, \"\")", text_of("[data-stage=queryable] b"));
        browser.until(&shown, queryable["count"].to_string());
        let stores = get("/api/v1/stores").as_array().unwrap().len();
        browser.until(&count_of("#stores tbody tr"), stores);
        browser.until(&count_of("#sessions tbody tr"), 1);
        browser.until(&format!("{}.startsWith(\"live\")", text_of("#state")), true);
        let sources = get("/api/v1/sources").as_array().unwrap().len();
        assert!(sources >= 3, "{sources} sources of events");
        browser.until(&count_of("#sources tbody tr"), sources);

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

        browser.until(&format!("{}.includes(\"copies agree\")", text_of("#flow .badge")), true);
        browser.until(&format!("{} > 0", count_of("#history .point")), true);

        browser.open(&url("map"));
        browser.until("[...document.querySelectorAll(\".map-node.switch\")].map((node) => node.dataset.node).sort().join()", "switch:4,switch:5,switch:6");
        browser.until(&count_of("#network .link"), get("/api/v1/map")["links"].as_array().unwrap().len());
        browser.evaluate("document.querySelector(\"[data-node='switch:6']\").dispatchEvent(new MouseEvent(\"click\", { bubbles: true }))");
        browser.until(&count_of(".map-node.chosen"), 1);
        browser.until(&count_of(".map-node.switch"), 2);

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

        browser.open(&url("memory?store=int-events&by=age"));
        browser.until(&count_of(".legend i.age"), 1);

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

#[tokio::test(flavor = "multi_thread")]
async fn an_open_page_goes_on_when_the_collector_returns() {
    let Some(browser) = Browser::start("a collector that returns") else { return };
    let free = free_address();
    let Some(mut bed) = WebBed::start_at(&free.to_string()).await else { return };
    browser.open(&format!("http://{free}/#/overview"));
    let is_live = format!("{}.startsWith(\"live\")", text_of("#state"));
    browser.until(&is_live, true);
    bed.int.collector = None;
    browser.until(&text_of("#state"), "no answer, trying again");
    bed.int.restart_collector();
    browser.until(&is_live, true);
    browser.until(&format!("{} > 0", count_of("#stores tbody tr")), true);
    browser.open(&format!("http://{free}/#/top?by=reports"));
    browser.until(&count_of("#top tbody tr"), 1);
}
