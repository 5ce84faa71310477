//! What a server's callers share, for each kind of call.

use std::sync::Arc;

use crate::transport::pool::Pool;
use crate::transport::{MAX_MESSAGE, ServerLimits};

/// Places for calls of one kind.
pub(crate) struct Shares {
    /// Waiting calls.
    pub(crate) waiting: Arc<Pool>,
    /// Calls that are running, or whose answers are not sent yet.
    pub(crate) calls: Arc<Pool>,
    /// Bytes of waiting requests.
    pub(crate) bodies: Arc<Pool>,
}

impl Shares {
    pub(crate) fn for_ordinary_calls(limits: &ServerLimits) -> Self {
        Self {
            waiting: Pool::new(4096, 128),
            calls: Pool::new(limits.calls, limits.calls_per_caller),
            bodies: message_pool(16, 4),
        }
    }

    /// For methods that wait for no others.
    pub(crate) fn for_first_calls() -> Self {
        Self { waiting: Pool::new(1024, 64), calls: Pool::new(32, 4), bodies: message_pool(8, 2) }
    }
}

/// Bytes for this many of the longest messages, in total and per caller.
fn message_pool(all: usize, of_one: usize) -> Arc<Pool> {
    let longest = MAX_MESSAGE + 16;
    Pool::new(all * longest, of_one * longest)
}
