//! A P4 switch that reports: `reporter-p4`.
//!
//! It is programmed from its [settings] alone, so there is no session, and nothing is kept beside the switch: its
//! tables are read, compared with what they should hold ([`lower::lower_settings`]), and the difference is written.
//! The next attempt finds and writes what the last one left undone.

pub mod lower;
pub mod settings;
pub mod tables;
pub mod tofino;

use dta_proto::control::{Counter, NodeStatistics};
use dta_proto::counter::Stage;
use tracing::info;

use self::settings::{SwitchReportKind, SwitchReporterSettings};
use crate::counters::SwitchCounts;
use crate::options::SwitchOptions;
use crate::p4_switch::{unix_time_us, write_all};
use crate::runtime::Runtime;
use crate::schema::Used;
use crate::tables::{Item, SwitchUpdate, Tables};
use crate::{ApplyError, TargetError};

/// A switch that runs `reporter-p4`.
pub struct ReporterSwitch {
    runtime: Box<dyn Runtime>,
    name: String,
    options: SwitchOptions,
    settings: SwitchReporterSettings,
}

impl ReporterSwitch {
    /// The switch behind a runtime. `name` is its name in the configuration.
    pub fn new(
        runtime: Box<dyn Runtime>,
        name: &str,
        options: &SwitchOptions,
        settings: &SwitchReporterSettings,
    ) -> ReporterSwitch {
        ReporterSwitch { runtime, name: name.into(), options: options.clone(), settings: settings.clone() }
    }

    /// Names of its tables, keys and parameters.
    pub fn required_schema(&self) -> &'static Used {
        self.runtime.required_schema()
    }

    pub fn wanted_tables(&self) -> Tables {
        lower::lower_settings(&self.settings, &self.options, self.runtime.platform())
    }

    /// What it holds; empty if it runs another program.
    pub async fn held_tables(&mut self) -> Result<Tables, TargetError> {
        Ok(self.runtime.read().await?.unwrap_or_default())
    }

    /// The updates that make it hold what it should. Nothing changes.
    pub async fn required_updates(&mut self) -> Result<Vec<SwitchUpdate>, TargetError> {
        let held = self.held_tables().await?;
        let wanted = self.wanted_tables();
        self.check_capacity(&wanted)?;
        Ok(held.updates_to(&wanted))
    }

    /// Makes it hold what it should, and returns the updates that this took. Also completes what an earlier
    /// attempt left undone.
    ///
    /// # Errors
    /// As [`Self::required_updates`], with how far it got.
    pub async fn apply_settings(&mut self) -> Result<Vec<SwitchUpdate>, ApplyError> {
        let wanted = self.wanted_tables();
        self.write_tables(&wanted).await
    }

    /// Makes it stop reporting; forwarding is unchanged.
    pub async fn stop_reporting(&mut self) -> Result<Vec<SwitchUpdate>, ApplyError> {
        // A switch that runs another program reports nothing.
        if self.runtime.read().await.map_err(ApplyError::before_first_change)?.is_none() {
            return Ok(Vec::new());
        }
        let forwarding = lower::forwarding(&self.settings, &self.options, self.runtime.platform());
        self.write_tables(&forwarding).await
    }

    async fn write_tables(&mut self, wanted: &Tables) -> Result<Vec<SwitchUpdate>, ApplyError> {
        // Rejected before the first change, if the program's tables are known without the switch.
        self.check_capacity(wanted).map_err(ApplyError::before_first_change)?;
        self.runtime.load().await.map_err(ApplyError::before_first_change)?;
        self.check_capacity(wanted).map_err(ApplyError::before_first_change)?;
        let held = self.runtime.read().await.map_err(ApplyError::before_first_change)?.unwrap_or_default();
        let updates = held.updates_to(wanted);
        if !updates.is_empty() {
            info!(switch = self.name, updates = updates.len(), "programming the switch");
            write_all(&mut *self.runtime, &updates).await?;
        }
        Ok(updates)
    }

    /// Rejects more entries than fit a table.
    fn check_capacity(&self, wanted: &Tables) -> Result<(), TargetError> {
        let mut rows = std::collections::BTreeMap::<&str, u64>::new();
        for (item, _) in wanted.iter() {
            if let Item::Row { table, .. } = item {
                *rows.entry(table).or_default() += 1;
            }
        }
        for (table, rows) in rows {
            if let Some(room) = self.runtime.table_capacity(table).filter(|room| rows > *room) {
                return Err(TargetError::Refused(format!(
                    "[switch.{}] has {rows} entries for table {table}, but the switch has room for {room}",
                    self.name
                )));
            }
        }
        Ok(())
    }

    /// All counters of the program by name.
    pub async fn read_counters(&mut self) -> Result<SwitchCounts, TargetError> {
        self.runtime.read_counters().await
    }

    /// Its counters, under the names of its program: see `reporter-p4/README.md`. Drops have their reason
    /// appended, reports their destination, clones their kinds, and ports their numbers.
    pub async fn statistics(&mut self) -> Result<NodeStatistics, TargetError> {
        let counts = self.read_counters().await?;
        let mut counters = Vec::new();
        for (name, cells) in &counts.0 {
            let counted = cells.iter().enumerate().filter(|(_, count)| **count != 0);
            counters.extend(counted.map(|(index, count)| Counter {
                name: self.counter_name(name, index, cells.len()),
                value: *count,
            }));
        }
        Ok(NodeStatistics {
            node: Stage::Reporter.node_name(&self.name),
            counters,
            age_seconds: 0.0,
            session: String::new(),
            life: 0,
            time_us: unix_time_us(),
        })
    }

    fn counter_name(&self, counter: &str, index: usize, of: usize) -> String {
        let part = match counter {
            "sent" => {
                let receiver = index.checked_sub(1).and_then(|place| self.settings.destinations.get(place));
                receiver.map(|receiver| receiver.name.clone())
            }
            "mirrored" | "ingress_mirrored" => {
                let name = |what: &SwitchReportKind| match what {
                    SwitchReportKind::Flow => "flow",
                    SwitchReportKind::Queue => "queue",
                    SwitchReportKind::Drop => "drop",
                };
                let session = u32::try_from(index).unwrap_or(0);
                Some(lower::of_session(session).iter().map(name).collect::<Vec<_>>().join("-and-"))
            }
            "no_flow" => Some(["ipv6", "other"].get(index).copied().unwrap_or("other").to_owned()),
            _ => None,
        };
        match (part, of) {
            (Some(part), _) => format!("{counter}.{part}"),
            (None, 1) => counter.into(),
            (None, _) => format!("{counter}.{index}"),
        }
    }
}
