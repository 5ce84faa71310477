//! This collector's certificate: told of ahead of its end.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use dta_grpc::tls::{Validity, for_people};
use tokio::sync::watch;

use super::until;

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(3600);

/// What there is to tell of a certificate now, if anything.
pub(super) fn told(validity: &Validity, now: SystemTime) -> Option<String> {
    let cure = "put a new one in its place and start this collector again";
    match validity.ends_soon(now)? {
        Duration::ZERO => Some(format!("has expired: clients are refused by it; {cure}")),
        left => Some(format!("ends in {}: {cure} before", for_people(left))),
    }
}

/// Logs it every hour from when there is something to tell.
pub(super) async fn watch(path: PathBuf, validity: Validity, stopped: watch::Receiver<bool>) {
    let mut interval = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = until(stopped.clone()) => return,
        }
        if let Some(told) = told(&validity, SystemTime::now()) {
            tracing::warn!("the TLS certificate {} {told}", path.display());
        }
    }
}
