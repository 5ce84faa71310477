//! Warns before this collector's certificate expires.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use dta_rpc::transport::tls::{Validity, for_people};
#[cfg(feature = "web")]
use dta_web::{Notice, Severity};
use tokio::sync::watch;

use super::wait_until_stopped;

/// How often the certificate is checked.
const LOOK: Duration = Duration::from_secs(3600);

/// The warning about a certificate that has expired or soon will; `None` while there is enough time.
pub(super) fn expiry_warning(validity: &Validity, now: SystemTime) -> Option<String> {
    let cure = "replace it and send this collector SIGHUP";
    match validity.ends_soon(now)? {
        Duration::ZERO => Some(format!("has expired, so clients reject this collector; {cure}")),
        left => Some(format!("expires in {}: {cure} before then", for_people(left))),
    }
}

/// Like [`expiry_warning`], for the page.
#[cfg(feature = "web")]
pub(super) fn expiry_notice(validity: &Validity, now: SystemTime) -> Option<Notice> {
    let (severity, text) = match validity.ends_soon(now)? {
        Duration::ZERO => (Severity::Problem, "has expired, so clients reject this collector".to_owned()),
        left => (Severity::Warning, format!("expires in {}", for_people(left))),
    };
    let advice = "replace it and send this collector SIGHUP".to_owned();
    Some(Notice { severity, about: "TLS certificate".to_owned(), text, advice })
}

/// Logs the warning every hour, as long as it applies.
pub(super) async fn watch_expiry(path: PathBuf, validity: Validity, stopped: watch::Receiver<bool>) {
    let mut interval = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = wait_until_stopped(stopped.clone()) => return,
        }
        if let Some(warning) = expiry_warning(&validity, SystemTime::now()) {
            tracing::warn!("the TLS certificate {} {warning}", path.display());
        }
    }
}
