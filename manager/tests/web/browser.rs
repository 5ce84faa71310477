//! A browser without a window, driven through chromedriver (W3C WebDriver).

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::int_bed::PATIENCE;
use crate::http;

const FLAGS: [&str; 8] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];

pub(crate) struct Browser {
    driver: Child,
    address: String,
    session: String,
    /// Of its profile.
    _folder: tempfile::TempDir,
}

impl Browser {
    /// Starts one; `None` where there is none, and then says which test goes without.
    pub(crate) fn start(test: &str) -> Option<Browser> {
        let chromium = Path::new("/usr/bin/chromium");
        let driver = Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).spawn();
        let (Ok(mut driver), true) = (driver, chromium.exists()) else {
            println!("SKIPPED: {test}: there is no chromium with chromedriver (scripts/install-deps test)");
            return None;
        };
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.map_while(Result::ok).find_map(|line| {
            let rest = line.split("started successfully on port ").nth(1)?;
            rest.trim_end_matches('.').parse::<u16>().ok()
        });
        let address = format!("127.0.0.1:{}", port.expect("chromedriver says its port"));
        let folder = tempfile::tempdir().unwrap();
        let profile = format!("--user-data-dir={}", folder.path().display());
        let arguments: Vec<&str> = FLAGS.into_iter().chain([profile.as_str()]).collect();
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments, "binary": chromium },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let mut browser = Browser { driver, address, session: String::new(), _folder: folder };
        let started = browser.command("POST", "/session", &capabilities);
        browser.session = format!("/session/{}", started["sessionId"].as_str().unwrap());
        Some(browser)
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let headers = [("Content-Type", "application/json")];
        let answer =
            http::request(&self.address, method, path, &headers, &body).expect("chromedriver answers");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()["value"].take()
    }

    fn of_session(&self, path: &str, body: &Value) -> Value {
        self.command("POST", &format!("{}{path}", self.session), body)
    }

    pub(crate) fn open(&self, url: &str) {
        self.of_session("/url", &json!({ "url": url }));
    }

    pub(crate) fn reload(&self) {
        self.of_session("/refresh", &json!({}));
    }

    pub(crate) fn resize(&self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        let command = json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": metrics });
        self.of_session("/goog/cdp/execute", &command);
    }

    /// What an expression of JavaScript is.
    pub(crate) fn evaluate(&self, expression: &str) -> Value {
        self.of_session("/execute/sync", &json!({ "script": format!("return {expression}"), "args": [] }))
    }

    /// Waits until an expression is `expected`.
    pub(crate) fn until(&self, expression: &str, expected: impl Into<Value>) {
        let (begun, expected) = (Instant::now(), expected.into());
        loop {
            let found = self.evaluate(expression);
            if found == expected {
                return;
            }
            let text = || self.evaluate("document.body.innerText");
            assert!(begun.elapsed() < PATIENCE, "{expression} is {found}, not {expected}, on {}", text());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the page complained about so far, but for answers that it asks for again because others had the turns.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let entries = self.of_session("/se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().unwrap().iter();
        let severe =
            entries.filter(|entry| entry["level"] == "SEVERE").map(|entry| entry["message"].to_string());
        severe.filter(|message| !message.contains("responded with a status of 503")).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            http::request(&self.address, "DELETE", &self.session, &[], "");
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
