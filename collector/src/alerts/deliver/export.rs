//! Feeds alerts to the exporters that send them on: Kafka, and OTLP logs.

use std::sync::Arc;

use dta_export::alert::{AlertFeeds, ExportedAlert};
use tokio::sync::{mpsc, oneshot};

use super::DeliveryOptions;
use super::outbox::TransitionFeed;
use crate::alerts::board::AlertBoard;

/// Feeds exporters from a board. Needs a tokio runtime when an exporter begins.
pub fn export_feeds(board: Arc<AlertBoard>, options: DeliveryOptions) -> AlertFeeds {
    Arc::new(move |sink| {
        let (sender, receiver) = mpsc::channel(1);
        let feed = TransitionFeed::open(board.clone(), &options, format!("export-{sink}"));
        tokio::spawn(feed_exporter(feed, sender));
        receiver
    })
}

/// Hands over one alert at a time, the next once the exporter has spooled the previous one.
async fn feed_exporter(mut feed: TransitionFeed, exporter: mpsc::Sender<ExportedAlert>) {
    loop {
        let message = tokio::select! {
            message = feed.next_message() => message,
            () = exporter.closed() => return,
        };
        let number = message.transition.number;
        let (spooled, is_spooled) = oneshot::channel();
        if exporter.send(ExportedAlert { message, spooled }).await.is_err() || is_spooled.await.is_err() {
            return;
        }
        feed.note_delivered(number).await;
    }
}
