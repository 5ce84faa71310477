//! Webhooks: one POST for each alert that fires or is resolved, in order. Each is sent once, unless this program ends
//! between the receiver's answer and its own note of it. `docs/schemas/alert-webhook.json` documents the message.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::client::{Attempts, PostOutcome, ReceiverClient};
use super::outbox::TransitionFeed;
use super::{DeliveryOptions, count_outcome};
use crate::alerts::alert::fingerprint;
use crate::alerts::board::AlertBoard;

pub(super) struct WebhookSender {
    attempts: Attempts,
    board: Arc<AlertBoard>,
    feed: TransitionFeed,
}

impl WebhookSender {
    /// Reads what was delivered before.
    pub(super) fn open(
        client: Arc<ReceiverClient>,
        options: &DeliveryOptions,
        board: &Arc<AlertBoard>,
    ) -> WebhookSender {
        // The same on all collectors of a cluster; hashed, as the path of a webhook is often its secret.
        let receiver = fingerprint(&client.url, &BTreeMap::new());
        let feed = TransitionFeed::open(board.clone(), options, receiver);
        WebhookSender { attempts: Attempts::new(client, ""), board: board.clone(), feed }
    }

    pub(super) async fn run(mut self) {
        loop {
            let message = self.feed.next_message().await;
            let body = serde_json::to_vec(&message).unwrap_or_default();
            while self.feed.is_due() {
                let outcome = self.attempts.post_json(body.clone()).await;
                count_outcome(&self.board, outcome, 1);
                if outcome != PostOutcome::Later {
                    self.feed.note_delivered(message.transition.number).await;
                    break;
                }
                tokio::time::sleep(self.attempts.next_pause()).await;
            }
        }
    }
}
