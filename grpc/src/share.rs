//! What one caller may have of a server at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

use crate::Limits;

/// One caller's share, over all its connections.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) calls: Arc<Semaphore>,
    pub(crate) streams: Arc<Semaphore>,
}

impl Share {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            calls: Arc::new(Semaphore::new(limits.calls_per_caller)),
            streams: Arc::new(Semaphore::new(limits.streams_per_caller)),
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
