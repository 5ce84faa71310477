//! Alerts as documents and messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use dta_files::moment::format_utc;
use dta_proto::control::{Alert, AlertTransition, AlertsResponse};
use serde::{Serialize, Serializer};
use tokio::sync::{mpsc, oneshot};

/// Alerts and their transitions, as `dta-collector alerts -o json` and the HTTP interface show them.
#[derive(Debug, Serialize)]
pub struct AlertsDocument {
    /// Rules that are evaluated.
    rules: u32,
    /// Firing alerts come first.
    alerts: Vec<AlertDocument>,
    /// In order.
    transitions: Vec<TransitionDocument>,
}

/// One alert; moments are in UTC.
#[derive(Debug, Serialize)]
pub struct AlertDocument {
    pub rule: String,
    pub severity: String,
    pub state: String,
    pub labels: BTreeMap<String, String>,
    pub fingerprint: String,
    pub value: f64,
    pub unit: String,
    pub text: String,
    pub runbook: String,
    pub since: String,
    pub last_seen: String,
    pub fired_at: Option<String>,
    pub resolved_at: Option<String>,
    pub command: String,
    pub page: String,
    pub rows: Vec<String>,
    pub notes: Vec<String>,
}

/// An alert that fired or was resolved, as it was then.
#[derive(Debug, Serialize)]
pub struct TransitionDocument {
    pub number: u64,
    pub at: String,
    pub alert: Option<AlertDocument>,
}

/// An alert that fired or was resolved, as receivers get it: `docs/schemas/alert-webhook.json`.
#[derive(Clone, Debug)]
pub struct AlertMessage {
    /// Unique to this message, and unchanged when it is repeated.
    pub id: String,
    /// The name of the collector that sends it.
    pub collector: String,
    /// The page that shows the evidence, if any.
    pub url: Option<String>,
    pub transition: AlertTransition,
}

impl Serialize for AlertMessage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Document<'a> {
            version: u32,
            id: &'a str,
            collector: &'a str,
            #[serde(flatten)]
            transition: TransitionDocument,
            #[serde(skip_serializing_if = "Option::is_none")]
            url: Option<&'a str>,
        }
        let AlertMessage { id, collector, url, transition } = self;
        let (transition, url) = (transition.clone().into(), url.as_deref());
        Document { version: 1, id, collector, transition, url }.serialize(serializer)
    }
}

impl AlertMessage {
    /// The message as a line of JSON among those of events: `docs/schemas/alert-export.json`.
    ///
    /// # Errors
    /// A value cannot be written as JSON.
    pub fn to_event_line(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct EventLine<'a> {
            time: u64,
            event: &'static str,
            #[serde(flatten)]
            message: &'a AlertMessage,
        }
        let time = self.transition.at.saturating_mul(1_000_000);
        serde_json::to_string(&EventLine { time, event: "alert", message: self })
    }
}

/// An alert for an exporter.
#[derive(Debug)]
pub struct ExportedAlert {
    pub message: AlertMessage,
    /// Signalled once the message is in the spool.
    pub spooled: oneshot::Sender<()>,
}

/// Starts to feed alerts to the exporter of this name.
pub type AlertFeeds = Arc<dyn Fn(&'static str) -> mpsc::Receiver<ExportedAlert> + Send + Sync>;

impl From<AlertsResponse> for AlertsDocument {
    fn from(response: AlertsResponse) -> AlertsDocument {
        AlertsDocument {
            rules: response.rules,
            alerts: response.alerts.into_iter().map(AlertDocument::from).collect(),
            transitions: response.transitions.into_iter().map(TransitionDocument::from).collect(),
        }
    }
}

impl From<Alert> for AlertDocument {
    fn from(alert: Alert) -> AlertDocument {
        AlertDocument {
            rule: alert.rule,
            severity: alert.severity,
            state: alert.state,
            labels: alert.labels,
            fingerprint: alert.fingerprint,
            value: alert.value,
            unit: alert.unit,
            text: alert.text,
            runbook: alert.runbook,
            since: format_utc(alert.since),
            last_seen: format_utc(alert.last_seen),
            fired_at: alert.fired_at.map(format_utc),
            resolved_at: alert.resolved_at.map(format_utc),
            command: alert.command,
            page: alert.page,
            rows: alert.rows,
            notes: alert.notes,
        }
    }
}

impl From<AlertTransition> for TransitionDocument {
    fn from(transition: AlertTransition) -> TransitionDocument {
        TransitionDocument {
            number: transition.number,
            at: format_utc(transition.at),
            alert: transition.alert.map(AlertDocument::from),
        }
    }
}
