//! The two places where a placement may stand.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::View;

/// Where it is said who has what.
#[derive(Clone, Debug)]
pub enum Source {
    /// In the configuration: it stays as it is.
    Configured(View),
    /// In etcd.
    #[cfg(feature = "etcd")]
    Etcd(crate::etcd::Config),
}

impl Source {
    /// Follows it, in a task of its own if it can change. The first view may place nothing: of what is in etcd it says
    /// nothing yet.
    pub fn follow(self) -> Views {
        match self {
            Source::Configured(view) => Views::new(watch::channel(Arc::new(view)).1, None),
            #[cfg(feature = "etcd")]
            Source::Etcd(config) => crate::etcd::follow(config),
        }
    }
}

/// The newest view. While the source cannot be reached, it is the last one that was heard of.
#[derive(Debug)]
pub struct Views {
    newest: watch::Receiver<Arc<View>>,
    /// What keeps it new.
    task: Option<JoinHandle<()>>,
}

impl Views {
    pub(crate) fn new(newest: watch::Receiver<Arc<View>>, task: Option<JoinHandle<()>>) -> Views {
        Views { newest, task }
    }

    /// The newest view.
    pub fn now(&self) -> Arc<View> {
        self.newest.borrow().clone()
    }

    /// Waits for another view than the last one that this call returned.
    pub async fn changed(&mut self) -> Arc<View> {
        if self.newest.changed().await.is_err() {
            // Nobody will say anything new.
            std::future::pending::<()>().await;
        }
        self.newest.borrow_and_update().clone()
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_configured_placement_never_changes() {
        let all = "0-255".parse().unwrap();
        let view = View::configured([("a:1".to_owned(), all, Vec::new())]).unwrap();
        let mut views = Source::Configured(view.clone()).follow();
        assert_eq!(*views.now(), view);
        tokio::select! {
            biased;
            _ = views.changed() => panic!("it changed"),
            () = tokio::task::yield_now() => {}
        }
    }
}
