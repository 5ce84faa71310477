//! What a translator tells for Prometheus.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dta_grpc::standard::Health;
use dta_grpc::tls::Validity;
use dta_metrics::{Kind, Labels, Page, Port, Process, Served};

use crate::config::Translator;
use crate::lease::Event;
use crate::packets::Command;
use crate::switches::software::InProcess;

/// How long the data plane is waited for. A page without its counters says that it stands still.
const ASK: Duration = Duration::from_secs(3);

/// How many sessions there are, for whoever asks, and how long the certificate with which they are opened lasts.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    open: AtomicUsize,
    wanted: AtomicUsize,
    /// Seconds since 1970; 0 if there is none.
    certificate_end: AtomicU64,
}

impl Sessions {
    /// Takes how they are. Nothing else is read by way of these numbers.
    pub(super) fn tell(&self, event: &Event<'_>) {
        self.open.store(event.open.0, Ordering::Relaxed);
        self.wanted.store(event.open.1, Ordering::Relaxed);
    }

    /// Takes when the certificate of a configuration that is in use from now on ends.
    pub(super) fn set_certificate(&self, config: &Translator) {
        let validity = config.tls.as_ref().and_then(|tls| Validity::read(&tls.cert).ok());
        let end = validity.map_or(0, |validity| validity.not_after().as_secs());
        self.certificate_end.store(end, Ordering::Relaxed);
    }
}

/// Serves metrics until what it gives is dropped.
pub(super) fn serve(port: Port, target: InProcess, health: Health, sessions: Arc<Sessions>) -> Served {
    let process = Process::new("dta-translator", env!("CARGO_PKG_VERSION"));
    port.serve(move || {
        let (target, health, sessions) = (target.clone(), health.clone(), sessions.clone());
        async move {
            let mut page = match tokio::time::timeout(ASK, target.snapshot(Command::Snapshot)).await {
                Ok(Ok(snapshot)) => {
                    // It may hear many reporters.
                    let filled = tokio::task::spawn_blocking(move || {
                        let mut page = Page::default();
                        dta_metrics::nodes(&mut page, &target.nodes(&snapshot));
                        page
                    });
                    filled.await.map_err(|error| error.to_string())?
                }
                Ok(Err(error)) => return Err(error.to_string()),
                Err(_) => Page::default(),
            };
            process.put(&mut page);
            let mut gauge = |name: &'static str, help: &'static str, value: u64| {
                page.add(name, Kind::Gauge, help, Labels::new(), value);
            };
            let help = "1 if the data plane moves and a session is open, as the health service tells";
            gauge("dta_translator_serving", help, health.is_serving().into());
            let number = |number: &AtomicUsize| number.load(Ordering::Relaxed) as u64;
            let help = "collectors with which a session is open";
            gauge("dta_translator_sessions_open", help, number(&sessions.open));
            let help = "collectors with which one is wanted; 0 until it is known, or if programs come from elsewhere";
            gauge("dta_translator_sessions_wanted", help, number(&sessions.wanted));
            let end = sessions.certificate_end.load(Ordering::Relaxed);
            if end > 0 {
                let help = "when the TLS certificate that this translator opens sessions with ends, in seconds since 1970";
                gauge("dta_translator_certificate_end_timestamp_seconds", help, end);
            }
            Ok(page)
        }
    })
}

/// As the ready line tells it.
pub(super) fn address(served: Option<&Served>) -> Option<SocketAddr> {
    served.map(|served| served.address)
}
