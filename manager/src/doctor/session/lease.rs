//! Is there a session, and does it have queue pairs?

use dta_proto::counter::{Stage, collector};

use super::Evidence;
use crate::doctor::Finding;

const CHECK: &str = "session";

pub(super) fn check_lease(e: &Evidence) -> Vec<Finding> {
    if e.sessions.is_empty() {
        let refused =
            e.after.own_counter(Stage::Collector.name(), collector::SESSION_REFUSED.name).unwrap_or(0);
        let found = match (&e.asked, e.all_sessions.is_empty()) {
            (Some(name), false) => {
                format!("there is no session {name:?}; there are {}", e.all_sessions.join(", "))
            }
            _ => "there is no session: no translator has a key to this collector's memory".to_owned(),
        };
        let found =
            if refused == 0 { found } else { format!("{found}; {refused} opens or renewals were refused") };
        let advice = "start a translator, or read its log if it runs: it has the collector's reason for a refusal. Most often: it \
                      cannot be reached, it has no certificate, or another session owns a store";
        return vec![Finding::new_problem(CHECK, found, advice)];
    }
    e.sessions
        .iter()
        .map(|session| {
            let name = &session.name;
            if session.queue_pairs.is_empty() {
                Finding::new_problem(
                    CHECK,
                    format!("{name}: it has no queue pairs: the collector has restarted, and its translator has not renewed since"),
                    "a running translator renews automatically; is it still there? For a switch: dta-translator setup",
                )
            } else {
                let until = match session.expires_in_seconds {
                    left if left < 0.0 => "without expiry".to_owned(),
                    left => format!("expires in {left:.0} s unless renewed"),
                };
                let by = match session.frames_by.as_str() {
                    "" => String::new(),
                    "ring" => ", frames through a ring in shared memory".to_owned(),
                    other => format!(", frames by {other}"),
                };
                Finding::new_ok(CHECK, format!("{name}: generation {}, {until}{by}", session.generation))
            }
        })
        .collect()
}
