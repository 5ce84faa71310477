//! What is kept of stores with epochs.

use std::path::PathBuf;
use std::time::Duration;

use dta_proto::store::StoreSpec;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use crate::epochs;

/// The shortest epoch: translators move to other memory with their renewals, one in a second.
const SHORTEST: Duration = Duration::from_secs(2);

/// Table `[history]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// Folder with a table for each store that has epochs; unset, [`History::directory`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Epochs that ended longer ago are removed.
    #[serde(with = "dta_files::span")]
    pub keep: Duration,
    /// Bound of each store's files, in MiB: beyond it, the oldest epochs are removed.
    pub keep_mib: u64,
}

impl Default for History {
    fn default() -> Self {
        Self { directory: None, keep: Duration::from_secs(7 * 86_400), keep_mib: 4096 }
    }
}

impl History {
    /// Where the tables are: what is configured, or `history` in the folder of what the collector `name` keeps.
    pub fn directory(&self, name: &str) -> PathBuf {
        let folder = || dta_files::state_directory(&format!("history-{name}"));
        self.directory.clone().unwrap_or_else(folder)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.keep_mib == 0 {
            return Err(ConfigError::value("history.keep_mib", 0, "at least 1"));
        }
        Ok(())
    }
}

/// Checks the length of a store's epochs.
pub(super) fn check_epoch(store: &StoreSpec, every: Duration) -> Result<(), ConfigError> {
    if !epochs::can_have_epochs(&store.kind) {
        let must = "left out: stores of key-write and postcarding have epochs, and no others";
        return Err(ConfigError::value("store.epoch", &store.name, must));
    }
    if every < SHORTEST {
        return Err(ConfigError::value("store.epoch", format!("{every:?}"), "at least 2 seconds"));
    }
    Ok(())
}
