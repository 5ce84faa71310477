//! A translator's Prometheus metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dta_export::metrics::{Labels, MetricKind, MetricsPage, MetricsPort, Process, Served};
use dta_rpc::transport::standard::Health;
use dta_rpc::transport::tls::Validity;

use crate::config::TranslatorConfig;
use crate::lease::LeaseEvent;
use crate::packets::Command;
use crate::software::InProcess;

/// Timeout for the data plane. Without its counters, a page says that it stands still.
const ASK: Duration = Duration::from_secs(3);

/// The number of sessions, for the metrics page, and the expiry of the certificate for opening them.
#[derive(Debug, Default)]
pub(super) struct TranslatorSessionMetrics {
    open: AtomicUsize,
    wanted: AtomicUsize,
    /// Seconds since 1970; 0 if there is none.
    certificate_end: AtomicU64,
}

impl TranslatorSessionMetrics {
    /// Updates the numbers. They order no other reads.
    pub(super) fn update_counts(&self, event: &LeaseEvent<'_>) {
        self.open.store(event.open.0, Ordering::Relaxed);
        self.wanted.store(event.open.1, Ordering::Relaxed);
    }

    /// Updates the certificate's expiry for the configuration now in use, and warns of problems with its files.
    pub(super) fn set_certificate(&self, config: &TranslatorConfig) {
        for warning in config.client_tls_warnings() {
            tracing::warn!("{warning}");
        }
        let validity = config.tls.as_ref().and_then(|tls| Validity::read(&tls.cert).ok());
        let end = validity.map_or(0, |validity| validity.not_after().as_secs());
        self.certificate_end.store(end, Ordering::Relaxed);
    }
}

/// Serves metrics until the returned value is dropped.
pub(super) fn serve_metrics(
    port: MetricsPort,
    target: InProcess,
    health: Health,
    sessions: Arc<TranslatorSessionMetrics>,
) -> Served {
    let process = Process::new("dta-translator", env!("CARGO_PKG_VERSION"));
    port.serve_pages(move || {
        let (target, health, sessions) = (target.clone(), health.clone(), sessions.clone());
        async move {
            let mut page = match tokio::time::timeout(ASK, target.combined_snapshot(Command::Snapshot)).await {
                Ok(Ok(snapshot)) => {
                    // It may hear many reporters.
                    let filled = tokio::task::spawn_blocking(move || {
                        let mut page = MetricsPage::default();
                        dta_export::metrics::add_node_metrics(&mut page, &target.node_statistics(&snapshot));
                        page
                    });
                    filled.await.map_err(|error| error.to_string())?
                }
                Ok(Err(error)) => return Err(error.to_string()),
                Err(_) => MetricsPage::default(),
            };
            process.add_process_metrics(&mut page);
            let mut gauge = |name: &'static str, help: &'static str, value: u64| {
                page.add(name, MetricKind::Gauge, help, Labels::new(), value);
            };
            let help = "1 if the data plane makes progress and a session is open, as in the health service";
            gauge("dta_translator_serving", help, health.is_serving().into());
            let number = |number: &AtomicUsize| number.load(Ordering::Relaxed) as u64;
            let help = "collectors with an open session";
            gauge("dta_translator_sessions_open", help, number(&sessions.open));
            let help = "configured collectors; 0 until known, or if programs come from elsewhere";
            gauge("dta_translator_sessions_wanted", help, number(&sessions.wanted));
            let end = sessions.certificate_end.load(Ordering::Relaxed);
            if end > 0 {
                let help = "expiry of the TLS certificate with which this translator opens sessions, in seconds since 1970";
                gauge("dta_translator_certificate_end_timestamp_seconds", help, end);
            }
            Ok(page)
        }
    })
}

/// As in the ready line.
pub(super) fn served_address(served: Option<&Served>) -> Option<SocketAddr> {
    served.map(|served| served.address)
}
