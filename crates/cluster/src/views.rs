//! The newest view.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::View;

/// The newest view. While etcd cannot be reached, it is the last one that was heard of.
#[derive(Debug)]
pub struct Views {
    newest: watch::Receiver<Arc<View>>,
    task: JoinHandle<()>,
}

impl Views {
    #[cfg(feature = "etcd")]
    pub(crate) fn new(newest: watch::Receiver<Arc<View>>, task: JoinHandle<()>) -> Views {
        Views { newest, task }
    }

    pub fn now(&self) -> Arc<View> {
        self.newest.borrow().clone()
    }

    /// Waits for another view than the last one that this call returned.
    pub async fn next_view(&mut self) -> Arc<View> {
        if self.newest.changed().await.is_err() {
            // Nobody will say anything new.
            std::future::pending::<()>().await;
        }
        self.newest.borrow_and_update().clone()
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        self.task.abort();
    }
}
