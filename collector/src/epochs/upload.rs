//! The thread that keeps copies of histories in object storage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dta_history::s3::{Bucket, Followed, Mirror, S3Error, Variables};
use tokio::sync::watch;

use super::keeper::count;
use super::{StoreEpochs, follow};

/// How long a start waits for object storage that does not answer: then it goes on without.
const START: Duration = Duration::from_secs(5);

/// What became of copies.
#[derive(Default)]
pub(super) struct UploadCounters {
    epochs: AtomicU64,
    missed: AtomicU64,
    bytes: AtomicU64,
    commits: AtomicU64,
    removed: AtomicU64,
    failed: AtomicU64,
    waiting: AtomicU64,
}

impl UploadCounters {
    /// Names are explained in docs/counters.md.
    pub(super) fn all(&self) -> Vec<(String, u64)> {
        use dta_proto::counter::collector as names;
        [
            (&names::UPLOAD_EPOCHS, &self.epochs),
            (&names::UPLOAD_MISSED, &self.missed),
            (&names::UPLOAD_BYTES, &self.bytes),
            (&names::UPLOAD_COMMITS, &self.commits),
            (&names::UPLOAD_REMOVED, &self.removed),
            (&names::UPLOAD_FAILED, &self.failed),
            (&names::UPLOAD_WAITING, &self.waiting),
        ]
        .map(|(counter, value)| (counter.of(&[]), value.load(Ordering::Relaxed)))
        .into()
    }
}

/// Opens a place in object storage and checks it. One that does not answer is checked later: `false`.
pub(super) fn open(url: &str, stop: &watch::Receiver<bool>) -> Result<(Bucket, bool), S3Error> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let variables: Variables = std::env::vars_os().filter_map(text).collect::<BTreeMap<_, _>>();
    let bucket = Bucket::open(url, &variables, stop.clone())?;
    match bucket.check(START) {
        Ok(()) => {
            tracing::info!(url, "object storage takes copies of histories");
            Ok((bucket, true))
        }
        Err(error) if error.is_away() => {
            tracing::warn!(%error, "object storage does not answer: histories stay here until it does");
            Ok((bucket, false))
        }
        Err(error) => Err(error),
    }
}

pub(super) struct Uploader {
    bucket: Arc<Bucket>,
    is_checked: bool,
    /// The copies of each store's tables.
    copies: Vec<(Arc<StoreEpochs>, Vec<Mirror>)>,
    counters: Arc<UploadCounters>,
    stop: watch::Receiver<bool>,
}

impl Uploader {
    pub(super) fn new(
        (bucket, is_checked): (Bucket, bool),
        all: Vec<Arc<StoreEpochs>>,
        stop: watch::Receiver<bool>,
    ) -> Uploader {
        let bucket = Arc::new(bucket);
        let copies = |of: Arc<StoreEpochs>| {
            let mirrors = of.tables().map(|table| Mirror::new(bucket.clone(), &table.name())).collect();
            (of, mirrors)
        };
        let copies = all.into_iter().map(copies).collect();
        Uploader { bucket, is_checked, copies, counters: Arc::default(), stop }
    }

    pub(super) fn counters(&self) -> Arc<UploadCounters> {
        self.counters.clone()
    }

    /// Until the collector stops.
    pub(super) fn run(mut self) {
        let (counters, stop) = (self.counters.clone(), self.stop.clone());
        follow::run("object storage", &stop, &counters.failed, &counters.waiting, || self.look());
    }

    /// Brings all copies up to date; gives the first failure, or that of all tables.
    fn look(&mut self) -> Result<(), S3Error> {
        let mut all = if self.is_checked { Ok(()) } else { self.bucket.check(START) };
        self.is_checked = all.is_ok();
        for (of, mirrors) in &mut self.copies {
            for (table, mirror) in of.tables().zip(mirrors) {
                let mut done = Followed::default();
                let before = mirror.waiting();
                // While nothing can be copied, it is still counted what waits, and what goes meanwhile.
                let followed = match &all {
                    Err(error) if !self.is_checked || is_of_all(error) => mirror.look(table, &mut done),
                    _ => mirror.follow(table, &mut done),
                };
                follow::moved(&self.counters.waiting, before, mirror.waiting());
                let Followed { epochs, missed, bytes, commits, removed } = done;
                for (counter, by) in [
                    (&self.counters.epochs, epochs),
                    (&self.counters.missed, missed),
                    (&self.counters.bytes, bytes),
                    (&self.counters.commits, commits),
                    (&self.counters.removed, removed),
                ] {
                    count(counter, by);
                }
                if missed > 0 {
                    tracing::warn!(table = %table.path().display(), missed, "epochs were removed before object storage had them");
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

/// Whether it holds up all tables, and is not tried with each of them.
fn is_of_all(error: &S3Error) -> bool {
    error.is_away() || matches!(error, S3Error::Stopped)
}
