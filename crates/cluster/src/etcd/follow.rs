//! Follows the cluster without taking part in it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::connect::random_turn;
use super::watched::WatchedCluster;
use crate::{Config, EtcdError, View, Views};

/// How long to wait before trying the next node. It doubles each time all nodes have failed.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Takes turns between the nodes, and warns once whenever none of them answers.
#[derive(Debug)]
pub(super) struct Turns {
    nodes: usize,
    turn: usize,
    failures: usize,
}

impl Turns {
    pub(super) fn new(config: &Config) -> Turns {
        Turns { nodes: config.endpoints.len().max(1), turn: random_turn(), failures: 0 }
    }

    pub(super) fn current_node(&self) -> usize {
        self.turn
    }

    pub(super) fn record_answer(&mut self) {
        if self.failures >= self.nodes {
            tracing::info!("etcd is responding again");
        }
        self.failures = 0;
    }

    /// Moves on to the next node after a pause, because this one does not answer or no longer does.
    pub(super) async fn record_failure(&mut self, error: &EtcdError) {
        self.turn = self.turn.wrapping_add(1);
        self.failures += 1;
        if self.failures == self.nodes {
            tracing::warn!("{error}; retrying, the placement stays in effect");
        }
        let doubled = (self.failures / self.nodes).min(8) as u32;
        tokio::time::sleep((FIRST_WAIT * 2u32.pow(doubled)).min(LONGEST_WAIT)).await;
    }
}

/// Follows the cluster in a task of its own. The first view is empty.
pub fn follow_cluster(config: Config) -> Result<Views, EtcdError> {
    let (newest, views) = watch::channel(Arc::new(View::default()));
    let task = async move {
        let mut turns = Turns::new(&config);
        loop {
            let Err(error) = until_it_ends(&config, &newest, &mut turns).await;
            turns.record_failure(&error).await;
        }
    };
    Ok(Views::new(views, tokio::spawn(task)))
}

async fn until_it_ends(
    config: &Config,
    newest: &watch::Sender<Arc<View>>,
    turns: &mut Turns,
) -> Result<Infallible, EtcdError> {
    let last = View::clone(&newest.borrow());
    let mut client = config.connect_node(turns.current_node()).await?;
    let mut watched = WatchedCluster::start_watching(client.clone(), &config.prefix, last).await?;
    watched.learn_earlier(&mut client).await?;
    turns.record_answer();
    loop {
        publish_view(newest, &watched.cluster.view);
        watched.apply_changes().await?;
    }
}

/// Publishes a view if it differs from the last one.
pub(super) fn publish_view(newest: &watch::Sender<Arc<View>>, view: &View) {
    newest.send_if_modified(|last| {
        let is_new = **last != *view;
        if is_new {
            *last = Arc::new(view.clone());
        }
        is_new
    });
}
