//! What one caller may have of a server at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

use crate::{Limits, MAX_MESSAGE};

/// Places for calls of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Calls that are not worked on yet.
    pub(crate) waiting: Arc<Semaphore>,
    /// Calls that are worked on, or whose answers have not left.
    pub(crate) calls: Arc<Semaphore>,
    /// Bytes of requests that are not worked on yet.
    pub(crate) bodies: Arc<Semaphore>,
}

impl Places {
    fn new(waiting: usize, calls: usize, messages: usize) -> Self {
        let of = |places| Arc::new(Semaphore::new(places));
        Self { waiting: of(waiting), calls: of(calls), bodies: of(messages * (MAX_MESSAGE + 16)) }
    }
}

/// One caller's share, over all its connections; or what all callers share.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) ordinary: Places,
    /// Of methods that wait for no others.
    pub(crate) first: Places,
    pub(crate) streams: Arc<Semaphore>,
}

impl Share {
    fn new(limits: &Limits) -> Self {
        Self {
            ordinary: Places::new(128, limits.calls_per_caller, 4),
            first: Places::new(64, 4, 2),
            streams: Arc::new(Semaphore::new(limits.streams_per_caller)),
        }
    }

    /// What all callers have together, four times and more of what one has.
    pub(crate) fn of_all(limits: &Limits, streams: usize) -> Self {
        Self {
            ordinary: Places::new(4096, limits.calls, 16),
            first: Places::new(1024, 32, 8),
            streams: Arc::new(Semaphore::new(streams)),
        }
    }
}

/// The shares of callers that have a connection.
#[derive(Debug)]
pub(crate) struct Shares {
    limits: Limits,
    by_caller: Mutex<HashMap<String, Weak<Share>>>,
}

impl Shares {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, by_caller: Mutex::default() }
    }

    /// The share of a caller: the same one as long as any of its connections is there.
    pub(crate) fn of(&self, caller: String) -> Arc<Share> {
        let mut shares = self.by_caller.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(&caller).and_then(Weak::upgrade) {
            return share;
        }
        // At most as many remain as there are connections.
        shares.retain(|_, share| share.strong_count() != 0);
        let share = Arc::new(Share::new(&self.limits));
        shares.insert(caller, Arc::downgrade(&share));
        share
    }
}
