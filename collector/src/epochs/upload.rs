//! The thread that keeps copies of histories in object storage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dta_history::s3::{Mirror, MirrorProgress, S3Error, StorageBucket, Variables};
use dta_proto::counter::collector as names;
use tokio::sync::watch;

use super::keeper::add_to_counter;
use super::{StoreEpochs, follow};

/// How long a start waits for object storage to answer before it continues without.
const START: Duration = Duration::from_secs(5);

dta_proto::shared_counters! {
    pub(super) struct UploadCounters {
        epochs = names::UPLOAD_EPOCHS,
        missed = names::UPLOAD_MISSED,
        bytes = names::UPLOAD_BYTES,
        commits = names::UPLOAD_COMMITS,
        removed = names::UPLOAD_REMOVED,
        failed = names::UPLOAD_FAILED,
        waiting = names::UPLOAD_WAITING,
    }
}

/// Opens a place in object storage and checks it. `false` means that it did not answer and must be checked later.
pub(super) fn open(url: &str, stop: &watch::Receiver<bool>) -> Result<(StorageBucket, bool), S3Error> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let variables: Variables = std::env::vars_os().filter_map(text).collect::<BTreeMap<_, _>>();
    let bucket = StorageBucket::open(url, &variables, stop.clone())?;
    match bucket.check_access(START) {
        Ok(()) => {
            tracing::info!(url, "object storage is accepting copies of histories");
            Ok((bucket, true))
        }
        Err(error) if error.is_transient() => {
            tracing::warn!(%error, "object storage does not answer: histories stay here until it does");
            Ok((bucket, false))
        }
        Err(error) => Err(error),
    }
}

pub(super) struct Uploader {
    bucket: Arc<StorageBucket>,
    is_checked: bool,
    copies: Vec<(Arc<StoreEpochs>, Vec<Mirror>)>,
    counters: Arc<UploadCounters>,
    stop: watch::Receiver<bool>,
}

impl Uploader {
    pub(super) fn new(
        (bucket, is_checked): (StorageBucket, bool),
        all: Vec<Arc<StoreEpochs>>,
        stop: watch::Receiver<bool>,
    ) -> Uploader {
        let bucket = Arc::new(bucket);
        let copies = |of: Arc<StoreEpochs>| {
            let mirrors =
                of.history_tables().map(|table| Mirror::new(bucket.clone(), &table.table_name())).collect();
            (of, mirrors)
        };
        let copies = all.into_iter().map(copies).collect();
        Uploader { bucket, is_checked, copies, counters: Arc::default(), stop }
    }

    pub(super) fn shared_counters(&self) -> Arc<UploadCounters> {
        self.counters.clone()
    }

    pub(super) fn run(mut self) {
        let (counters, stop) = (self.counters.clone(), self.stop.clone());
        follow::run("object storage", &stop, &counters.failed, &counters.waiting, || self.update_copies());
    }

    /// Brings all copies up to date. Returns the first failure, or one that concerns all tables.
    fn update_copies(&mut self) -> Result<(), S3Error> {
        let mut all = if self.is_checked { Ok(()) } else { self.bucket.check_access(START) };
        self.is_checked = all.is_ok();
        for (of, mirrors) in &mut self.copies {
            for (table, mirror) in of.history_tables().zip(mirrors) {
                let mut done = MirrorProgress::default();
                let before = mirror.waiting_epoch_count();
                // While nothing can be copied, still count what is waiting and what is removed meanwhile.
                let followed = match &all {
                    Err(error) if !self.is_checked || is_of_all(error) => {
                        mirror.update_waiting(table, &mut done)
                    }
                    _ => mirror.mirror_table(table, &mut done),
                };
                follow::adjust_waiting(&self.counters.waiting, before, mirror.waiting_epoch_count());
                let MirrorProgress { epochs, missed, bytes, commits, removed } = done;
                for (counter, by) in [
                    (&self.counters.epochs, epochs),
                    (&self.counters.missed, missed),
                    (&self.counters.bytes, bytes),
                    (&self.counters.commits, commits),
                    (&self.counters.removed, removed),
                ] {
                    add_to_counter(counter, by);
                }
                if missed > 0 {
                    tracing::warn!(table = %table.table_path().display(), missed, "epochs were removed before object storage had them");
                }
                if let Err(error) = followed
                    && (all.is_ok() || is_of_all(&error))
                {
                    all = Err(error);
                }
            }
        }
        all
    }
}

/// Whether the error concerns all tables, so that the others need not be tried.
fn is_of_all(error: &S3Error) -> bool {
    error.is_transient() || matches!(error, S3Error::Stopped)
}
