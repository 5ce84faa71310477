//! Alertmanager's API v2: firing alerts are sent repeatedly, with the moment at which they end if not sent again.
//!
//! There is no need to remember what was sent: Alertmanager knows an alert by its labels, and these are the
//! same after a restart and on every collector of a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dta_files::moment::{format_utc, now};
use dta_proto::control::Alert;
use serde::Serialize;

use super::client::{Attempts, PostOutcome, ReceiverClient};
use super::count_outcome;
use super::outbox::PresentAlerts;
use crate::alerts::board::AlertBoard;

/// How often firing alerts are sent again.
const RESEND: Duration = Duration::from_secs(60);
/// Milliseconds after which an alert ends unless it is sent again. Leaves room for a few failed attempts.
const ENDS_AFTER: u64 = 5 * 60 * 1000;
/// Milliseconds for which a resolved alert is sent again, as by Prometheus, for an Alertmanager that was down.
pub(super) const RESOLVED_RESENT: u64 = 15 * 60 * 1000;

/// `postableAlert` of Alertmanager's OpenAPI.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PostableAlert {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<&'static str, String>,
    starts_at: String,
    ends_at: String,
    #[serde(rename = "generatorURL", skip_serializing_if = "String::is_empty")]
    generator_url: String,
}

pub(super) struct AlertmanagerSender {
    attempts: Attempts,
    page: String,
}

impl AlertmanagerSender {
    pub(super) fn new(client: Arc<ReceiverClient>, page: String) -> Self {
        Self { attempts: Attempts::new(client, "/api/v2/alerts"), page }
    }

    pub(super) async fn run(mut self, board: Arc<AlertBoard>) {
        let mut present = PresentAlerts::new(board.clone());
        loop {
            let alerts = to_postable(&present.list_alerts(), &self.page, now());
            let outcome = match serde_json::to_vec(&alerts) {
                Ok(body) if !alerts.is_empty() => self.attempts.post_json(body).await,
                _ => PostOutcome::Accepted,
            };
            count_outcome(&board, outcome, alerts.len());
            let pause = if outcome == PostOutcome::Later { self.attempts.next_pause() } else { RESEND };
            tokio::select! {
                () = present.next_change(), if outcome != PostOutcome::Later => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// What to send at a moment in milliseconds since 1970.
fn to_postable(alerts: &[Alert], page: &str, now: u64) -> Vec<PostableAlert> {
    let is_sent = |alert: &&Alert| {
        alert.is_firing() || alert.resolved_at.is_some_and(|at| now <= at.saturating_add(RESOLVED_RESENT))
    };
    let postable = |alert: &Alert| PostableAlert {
        labels: alert_labels(alert),
        annotations: alert_annotations(alert),
        starts_at: format_utc(alert.fired_at.unwrap_or(alert.since)),
        ends_at: format_utc(alert.resolved_at.unwrap_or(now + ENDS_AFTER)),
        generator_url: if page.is_empty() { String::new() } else { format!("{page}{}", alert.page) },
    };
    alerts.iter().filter(is_sent).map(postable).collect()
}

fn alert_labels(alert: &Alert) -> BTreeMap<String, String> {
    let group = alert.labels.iter().map(|(name, value)| (name.clone(), value.clone()));
    let own = [("alertname", &alert.rule), ("severity", &alert.severity)];
    group.chain(own.map(|(name, value)| (name.to_owned(), value.clone()))).collect()
}

fn alert_annotations(alert: &Alert) -> BTreeMap<&'static str, String> {
    let all = [
        ("summary", alert.text.clone()),
        ("command", alert.command.clone()),
        ("rows", alert.rows.join("\n")),
        ("notes", alert.notes.join("\n")),
        ("runbook_url", alert.runbook.clone()),
    ];
    all.into_iter().filter(|(_, text)| !text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use dta_proto::control::AlertState;

    use super::*;

    fn alert(state: AlertState, resolved_at: Option<u64>) -> Alert {
        Alert {
            rule: "syn-flood".into(),
            severity: "critical".into(),
            state: state.name().into(),
            labels: [("dst".to_owned(), "192.0.2.7".to_owned()), ("dst_port".to_owned(), "443".to_owned())]
                .into(),
            text: "120,000 SYN/s to 192.0.2.7".into(),
            since: 1_000,
            fired_at: Some(11_000),
            resolved_at,
            page: "#/flows?group=src".into(),
            ..Alert::default()
        }
    }

    #[test]
    fn what_fires_ends_by_itself_and_what_was_resolved_is_sent_for_a_while() {
        let resolved = 1_000_000;
        let alerts = [
            alert(AlertState::Pending, None),
            alert(AlertState::Firing, None),
            alert(AlertState::Resolved, Some(resolved)),
        ];
        let sent = to_postable(&alerts, "http://c/", resolved + 60_000);
        let json = serde_json::to_value(&sent).unwrap();
        assert_eq!(sent.len(), 2);
        assert_eq!(json[0]["startsAt"], "1970-01-01T00:00:11.000Z");
        assert_eq!(json[0]["endsAt"], "1970-01-01T00:22:40.000Z");
        assert_eq!(json[1]["endsAt"], "1970-01-01T00:16:40.000Z");
        assert_eq!(json[0]["generatorURL"], "http://c/#/flows?group=src");
        let labels = serde_json::json!({
            "alertname": "syn-flood", "severity": "critical", "dst": "192.0.2.7", "dst_port": "443"
        });
        assert_eq!(json[0]["labels"], labels);
        assert_eq!(json[0]["annotations"], serde_json::json!({"summary": "120,000 SYN/s to 192.0.2.7"}));

        let later = to_postable(&alerts, "", resolved + RESOLVED_RESENT + 1);
        assert_eq!(later.len(), 1);
        assert_eq!(serde_json::to_value(&later).unwrap()[0].get("generatorURL"), None);
    }
}
