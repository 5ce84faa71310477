//! Programming a reporter switch of the configuration (`role = "reporter"`): what it should hold, what it holds, and
//! the difference.

use dta_proto::control::NodeStatistics;
use tracing::warn;

use crate::config::settings::Settings;
use crate::config::{Config, P4, Switch};
use crate::switches::TargetError;
use crate::switches::p4::bfruntime::BfRuntime;
use crate::switches::p4::counters::Counts;
use crate::switches::p4::p4runtime::P4Runtime;
use crate::switches::p4::pipeline::REPORTER;
use crate::switches::p4::reporter::{ReporterSwitch, tables, tofino};
use crate::switches::p4::schema::Used;
use crate::switches::p4::tables::{Tables, Update};

/// A reporter switch, however it is spoken to.
pub enum Reporter {
    /// On bmv2.
    Bmv2(ReporterSwitch<P4Runtime>),
    /// On Tofino.
    Tofino(ReporterSwitch<BfRuntime>),
}

/// Does the same with either.
macro_rules! with {
    ($reporter:expr, $switch:ident => $does:expr) => {
        match $reporter {
            Reporter::Bmv2($switch) => $does,
            Reporter::Tofino($switch) => $does,
        }
    };
}

impl Reporter {
    /// The switch of a name; `None` where it is no reporter. Nothing is asked yet, but a runtime has to be there. What
    /// of its netcfg is not used is told in the log.
    ///
    /// # Errors
    /// A configuration that cannot be used.
    pub fn of(config: &Config, switch: &str) -> anyhow::Result<Option<Reporter>> {
        let Some((p4, settings)) = config.reporter_of(switch)? else { return Ok(None) };
        for note in &settings.notes {
            warn!(switch, netcfg = ?p4.netcfg, "{note}");
        }
        let is_tofino = matches!(config.switch(switch)?, Switch::Tofino(_));
        Ok(Some(Reporter::new(switch, p4, &settings, is_tofino)?))
    }

    fn new(name: &str, p4: &P4, settings: &Settings, is_tofino: bool) -> Result<Reporter, TargetError> {
        Ok(match is_tofino {
            true => Reporter::Tofino(ReporterSwitch::new(BfRuntime::new(p4, &REPORTER)?, name, p4, settings)),
            false => Reporter::Bmv2(ReporterSwitch::new(P4Runtime::new(p4, &REPORTER)?, name, p4, settings)),
        })
    }

    /// Names of its tables, keys and parameters.
    pub fn used(&self) -> &'static Used {
        match self {
            Reporter::Bmv2(_) => &tables::USED,
            Reporter::Tofino(_) => &tofino::USED,
        }
    }

    /// What it should hold.
    pub fn wanted(&self) -> Tables {
        with!(self, switch => switch.wanted())
    }

    /// What it holds.
    ///
    /// # Errors
    /// It does not answer, or not as it should.
    pub async fn held(&mut self) -> anyhow::Result<Tables> {
        Ok(with!(self, switch => switch.held().await?))
    }

    /// The updates by which it comes to hold what it should. Nothing changes.
    ///
    /// # Errors
    /// As [`Self::held`]; and what it has no room for.
    pub async fn lacks(&mut self) -> anyhow::Result<Vec<Update>> {
        Ok(with!(self, switch => switch.lacks().await?))
    }

    /// Brings it to what it should hold. Gives the updates that were needed.
    ///
    /// # Errors
    /// As [`Self::lacks`], with how far it got. It can be called again, and does what was left.
    pub async fn setup(&mut self) -> anyhow::Result<Vec<Update>> {
        Ok(with!(self, switch => switch.apply().await?))
    }

    /// Lets it report no more, and forward as before.
    ///
    /// # Errors
    /// As [`Self::setup`].
    pub async fn empty(&mut self) -> anyhow::Result<Vec<Update>> {
        Ok(with!(self, switch => switch.empty().await?))
    }

    /// What it counts.
    ///
    /// # Errors
    /// As [`Self::held`].
    pub async fn statistics(&mut self) -> anyhow::Result<NodeStatistics> {
        Ok(with!(self, switch => switch.statistics().await?))
    }

    /// All counters of its program by name.
    ///
    /// # Errors
    /// As [`Self::held`].
    pub async fn counters(&mut self) -> anyhow::Result<Counts> {
        Ok(with!(self, switch => switch.counters().await?))
    }
}
