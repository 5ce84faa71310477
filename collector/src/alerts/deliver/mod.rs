//! Delivers alerts to those who act on them: Alertmanager, webhooks and exporters. Each receiver has a task of its own that
//! reads the [`AlertBoard`], so that none waits for another and nothing is queued in between. In a cluster, one collector
//! delivers what all of them find: see `outbox`.

mod alertmanager;
mod client;
mod export;
mod outbox;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dta_export::run::clear_text_warning;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::board::AlertBoard;
use super::rule::AlertsConfig;

use self::alertmanager::AlertmanagerSender;
use self::client::{PostOutcome, ReceiverClient};
use self::webhook::WebhookSender;

pub use self::export::export_feeds;

/// Counts the outcome of an attempt to send this many alerts.
fn count_outcome(board: &AlertBoard, outcome: PostOutcome, alerts: usize) {
    let counter = match outcome {
        PostOutcome::Accepted => &board.counters().delivered,
        PostOutcome::Rejected => &board.counters().rejected,
        PostOutcome::Later => &board.counters().retried,
    };
    counter.fetch_add(alerts as u64, Ordering::Relaxed);
}

/// How deliveries identify the collector that sends them.
#[derive(Clone, Debug)]
pub struct DeliveryOptions {
    /// The name of the collector.
    pub collector: String,
    /// The address of its page, which the links in alerts point to; empty = none.
    pub page: String,
    /// Folder that notes what each receiver has; without it, they start with new alerts. A cluster uses etcd instead.
    pub folder: Option<PathBuf>,
}

/// Running deliveries; they end when this is dropped.
#[derive(Debug)]
pub struct AlertDeliveries {
    tasks: Vec<JoinHandle<()>>,
}

/// A table `[[alerts.alertmanager]]` or `[[alerts.webhook]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertReceiver {
    /// `http://HOST:PORT` or `https://HOST:PORT`; a path may follow.
    pub url: String,
    /// File whose first line is the token sent as `Authorization: Bearer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// CAs of the receiver's certificate (PEM); if unset, those that browsers trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

/// Checks the files that [`AlertDeliveries::start`] reads: secrets and certificates. Does not connect. Returns warnings.
///
/// # Errors
/// Whatever would keep the deliveries from starting.
pub fn check_receivers(config: &AlertsConfig) -> Result<Vec<String>, String> {
    let alertmanagers = config.alertmanager.iter().map(|receiver| ("alerts.alertmanager", receiver));
    let receivers = alertmanagers.chain(config.webhook.iter().map(|receiver| ("alerts.webhook", receiver)));
    let mut warnings = Vec::new();
    for (table, receiver) in receivers {
        ReceiverClient::new(receiver)?;
        let in_clear = receiver.secret_file.is_some().then(|| clear_text_warning(table, &receiver.url));
        warnings.extend(in_clear.flatten());
    }
    Ok(warnings)
}

impl AlertDeliveries {
    /// Starts delivering a board's alerts. Needs a tokio runtime.
    ///
    /// # Errors
    /// A secret or a certificate cannot be read.
    pub fn start(
        config: &AlertsConfig,
        board: &Arc<AlertBoard>,
        options: &DeliveryOptions,
    ) -> Result<AlertDeliveries, String> {
        let client = |receiver: &AlertReceiver| ReceiverClient::new(receiver).map(Arc::new);
        let mut deliveries = AlertDeliveries { tasks: Vec::new() };
        for receiver in &config.alertmanager {
            let sender = AlertmanagerSender::new(client(receiver)?, options.page.clone());
            deliveries.tasks.push(tokio::spawn(sender.run(board.clone())));
        }
        for receiver in &config.webhook {
            let sender = WebhookSender::open(client(receiver)?, options, board);
            deliveries.tasks.push(tokio::spawn(sender.run()));
        }
        if let Some(cluster) = board.cluster() {
            let share = outbox::share_findings(board.clone(), cluster.clone());
            deliveries.tasks.push(tokio::spawn(share));
        }
        Ok(deliveries)
    }
}

impl Drop for AlertDeliveries {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
