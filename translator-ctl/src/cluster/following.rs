//! Follows a cluster: its views as they come, and the sessions of a data plane with the collectors in them.

use std::sync::Arc;

use dta_cluster::{View, Views};
use dta_proto::program::Endpoint;
use tokio::sync::watch;
use tracing::{error, info};

use super::roster::Roster;
use crate::collectors::Collectors;
use crate::config::Translator;
use crate::lease::{self, Event, Halted, KnownLeases};
use crate::session::{Session, SessionError};
use crate::switches::Target;

/// The cluster of a translator, if it is in one.
pub(crate) struct Following {
    views: Option<Views>,
    roster: Roster,
    /// Most collectors that the data plane has queue pairs for.
    most: u8,
    config: Translator,
}

impl Following {
    /// Begins to follow the cluster of a configuration, for a data plane that has queue pairs for so many collectors. Returns also the configuration to begin with, which has no
    /// collectors if there is a cluster.
    ///
    /// # Errors
    /// The cluster's TLS files or credentials cannot be read.
    pub(crate) fn of(config: &Translator, most: u8) -> anyhow::Result<(Following, Translator)> {
        let mut begin = config.clone();
        if config.cluster.is_some() {
            begin.collector = Collectors::default();
        }
        let views = config.cluster.clone().map(dta_cluster::follow).transpose()?;
        Ok((Following { views, roster: Roster::default(), most, config: begin.clone() }, begin))
    }

    /// The next view; never, without a cluster.
    pub(crate) async fn newer(&mut self) -> Arc<View> {
        match &mut self.views {
            Some(views) => views.changed().await,
            None => std::future::pending().await,
        }
    }

    /// Has the sessions of all data planes go by a view. Their leases are halted. Returns the collectors in it.
    pub(crate) fn learn<'a>(
        &mut self,
        view: &Arc<View>,
        all: impl Iterator<Item = &'a mut Sessions>,
    ) -> Collectors {
        let view = &self.usable(view);
        let (next, collectors) = self.roster.next(view, self.most);
        let mut all = all;
        match all.try_for_each(|sessions| sessions.learn(view, &next, &collectors)) {
            Ok(()) => {
                let (version, collectors) = (view.placement.version, collectors.count());
                info!(version, collectors, "another view of the cluster");
            }
            Err(error) => error!(%error, "the cluster's newest view cannot be used: the last one stays"),
        }
        self.roster = next;
        collectors
    }

    /// A view without collectors that this translator cannot ask for a session.
    fn usable(&self, view: &Arc<View>) -> Arc<View> {
        let mut usable = View::clone(view);
        usable.collectors.retain(|id, collector| {
            let alone = Collectors::at([collector.address.as_str()]);
            let config = Translator { collector: alone, ..self.config.clone() };
            let session = Session::new(&config, 0, config.endpoint());
            if let Err(error) = &session {
                error!(collector = id, %error, "reports for what this collector of the cluster has are dropped");
            }
            session.is_ok()
        });
        Arc::new(usable)
    }
}

/// The sessions of one data plane.
pub(crate) struct Sessions {
    /// Its configuration.
    pub(crate) config: Translator,
    /// Source of its frames.
    endpoint: Endpoint,
    /// One per collector, in the order of indices.
    pub(crate) all: Vec<Session>,
    /// State of its leases.
    pub(crate) kept: KnownLeases,
}

impl Sessions {
    /// With the collectors of a configuration, none of them open.
    ///
    /// # Errors
    /// An address that cannot be used, or TLS files.
    pub(crate) fn new(config: Translator, endpoint: Endpoint) -> Result<Sessions, SessionError> {
        let session = |collector| Session::new(&config, collector, endpoint);
        let all = config.collector.indices().map(session).collect::<Result<_, _>>()?;
        Ok(Sessions { all, kept: KnownLeases::new(&config), config, endpoint })
    }

    /// As [`lease::keep`].
    pub(crate) async fn keep(
        &mut self,
        target: &mut impl Target,
        halt: watch::Receiver<bool>,
        tell: impl Fn(Event<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Halted> {
        lease::keep(&self.config, &mut self.all, target, &mut self.kept, halt, tell).await
    }

    /// Takes in a newer view of the cluster, with the indices of its collectors. The leases are halted.
    ///
    /// # Errors
    /// An address that cannot be used, or TLS files. Nothing has changed then.
    fn learn(
        &mut self,
        view: &Arc<View>,
        roster: &Roster,
        collectors: &Collectors,
    ) -> Result<(), SessionError> {
        let config = Translator { collector: collectors.clone(), ..self.config.clone() };
        let session = |index: u8| match self.all.iter().find(|session| session.collector() == index) {
            Some(session) => session.again(&config),
            None => Session::new(&config, index, self.endpoint),
        };
        let all = collectors.indices().map(session).collect::<Result<_, _>>()?;
        (self.all, self.config) = (all, config);
        self.kept.learn(view, roster);
        Ok(())
    }
}
