//! Follows a cluster: its views as they come, and a data plane's sessions with the collectors in them.

use std::sync::Arc;

use dta_cluster::{View, Views};
use dta_proto::program::Endpoint;
use tokio::sync::watch;
use tracing::{error, info};

use super::roster::Roster;
use crate::collectors::Collectors;
use crate::config::TranslatorConfig;
use crate::lease::{self, Halted, KnownLeases, LeaseEvent};
use crate::session::{LeasedSession, SessionError};
use dta_switch::Target;

pub(crate) struct ClusterFollower {
    views: Option<Views>,
    roster: Roster,
    /// How many collectors the data plane has queue pairs for.
    most: u8,
    config: TranslatorConfig,
}

impl ClusterFollower {
    /// Begins to follow the cluster of a configuration, for a data plane that has queue pairs for `most` collectors.
    /// Also returns the configuration to begin with, which has no collectors if there is a cluster.
    pub(crate) fn from_config(
        config: &TranslatorConfig,
        most: u8,
    ) -> anyhow::Result<(ClusterFollower, TranslatorConfig)> {
        let mut begin = config.clone();
        if config.cluster.is_some() {
            begin.collector = Collectors::default();
        }
        let views = config.cluster.clone().map(dta_cluster::follow_cluster).transpose()?;
        Ok((ClusterFollower { views, roster: Roster::default(), most, config: begin.clone() }, begin))
    }

    /// The next view; never returns without a cluster.
    pub(crate) async fn next_view(&mut self) -> Arc<View> {
        match &mut self.views {
            Some(views) => views.next_view().await,
            None => std::future::pending().await,
        }
    }

    /// Makes the sessions of all data planes follow a view. Their leases must be halted. Returns the collectors in the view.
    pub(crate) fn apply_view<'a>(
        &mut self,
        view: &Arc<View>,
        all: impl Iterator<Item = &'a mut DataPlaneSessions>,
    ) -> Collectors {
        let view = &self.usable_view(view);
        let (next, collectors) = self.roster.next(view, self.most);
        let mut all = all;
        match all.try_for_each(|sessions| sessions.apply_view(view, &next, &collectors)) {
            Ok(()) => {
                let (version, collectors) = (view.placement.version, collectors.count());
                info!(version, collectors, "new view of the cluster");
            }
            Err(error) => error!(%error, "cannot use the cluster's newest view: keeping the last one"),
        }
        self.roster = next;
        collectors
    }

    /// The view without the collectors that this translator cannot ask for a session.
    fn usable_view(&self, view: &Arc<View>) -> Arc<View> {
        let mut usable = View::clone(view);
        usable.collectors.retain(|id, collector| {
            let alone = Collectors::from_addresses([collector.address.as_str()]);
            let config = TranslatorConfig { collector: alone, ..self.config.clone() };
            let session = LeasedSession::new(&config, 0, config.frame_endpoint());
            if let Err(error) = &session {
                error!(collector = id, %error, "cannot use this collector: dropping reports for its stores");
            }
            session.is_ok()
        });
        Arc::new(usable)
    }
}

pub(crate) struct DataPlaneSessions {
    pub(crate) config: TranslatorConfig,
    endpoint: Endpoint,
    /// One per collector, in the order of indices.
    pub(crate) all: Vec<LeasedSession>,
    pub(crate) kept: KnownLeases,
}

impl DataPlaneSessions {
    /// Starts with the collectors of a configuration, none of them open.
    pub(crate) fn new(
        config: TranslatorConfig,
        endpoint: Endpoint,
    ) -> Result<DataPlaneSessions, SessionError> {
        let session = |collector| LeasedSession::new(&config, collector, endpoint);
        let all = config.collector.indices().map(session).collect::<Result<_, _>>()?;
        Ok(DataPlaneSessions { all, kept: KnownLeases::new(&config), config, endpoint })
    }

    /// As [`lease::maintain_leases`].
    pub(crate) async fn maintain_leases(
        &mut self,
        target: &mut impl Target,
        halt: watch::Receiver<bool>,
        report: impl Fn(LeaseEvent<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Halted> {
        lease::maintain_leases(&self.config, &mut self.all, target, &mut self.kept, halt, report).await
    }

    /// Takes in a newer view of the cluster, with the indices of its collectors. The leases must be halted.
    ///
    /// # Errors
    /// An address that cannot be used, or TLS files. Nothing has changed then.
    fn apply_view(
        &mut self,
        view: &Arc<View>,
        roster: &Roster,
        collectors: &Collectors,
    ) -> Result<(), SessionError> {
        let config = TranslatorConfig { collector: collectors.clone(), ..self.config.clone() };
        let session = |index: u8| match self.all.iter().find(|session| session.collector() == index) {
            Some(session) => session.with_config(&config),
            None => LeasedSession::new(&config, index, self.endpoint),
        };
        let all = collectors.indices().map(session).collect::<Result<_, _>>()?;
        (self.all, self.config) = (all, config);
        self.kept.apply_view(view, roster);
        Ok(())
    }
}
