//! What is kept of stores with epochs.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// The shortest epoch: translators move to other memory with their renewals, one in a second.
const SHORTEST: Duration = Duration::from_secs(2);

/// Table `[history]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// Folder with a table for each store that has epochs; unset, [`History::directory`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Place in object storage that has a copy of all tables, `s3://BUCKET/PREFIX`, for this collector alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Epochs that ended longer ago are removed.
    #[serde(with = "dta_files::span")]
    pub keep: Duration,
    /// Bound of the data files of all stores together, in bytes: beyond it, the oldest epochs of the largest table are removed.
    #[serde(with = "dta_files::size")]
    pub keep_bytes: u64,
    /// What becomes of old epochs.
    pub coarse: Coarse,
}

/// Old epochs become fewer: of those that were opened in one span of `every`, one is made, with what each slot held at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coarse {
    /// How long ago such a span ended; as long as `keep` or longer, none is made.
    #[serde(with = "dta_files::span")]
    pub after: Duration,
    /// How long it is; spans begin at multiples of it since 1970.
    #[serde(with = "dta_files::span")]
    pub every: Duration,
}

impl Default for History {
    fn default() -> Self {
        let day = Duration::from_secs(86_400);
        let coarse = Coarse { after: day, every: Duration::from_secs(3600) };
        Self { directory: None, url: None, keep: 7 * day, keep_bytes: 20 << 30, coarse }
    }
}

impl History {
    /// Where the tables are: what is configured, or `history` in the folder of what the collector `name` keeps.
    pub fn directory(&self, name: &str) -> PathBuf {
        let folder = || dta_files::state_directory(&format!("history-{name}"));
        self.directory.clone().unwrap_or_else(folder)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        match &self.url {
            Some(url) if url.strip_prefix("s3://").is_none_or(|place| place.trim_matches('/').is_empty()) => {
                Err(ConfigError::value("history.url", url, "s3://BUCKET or s3://BUCKET/PREFIX"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks the length of a store's epochs.
pub(super) fn check_epoch(every: Duration) -> Result<(), ConfigError> {
    if every < SHORTEST {
        return Err(ConfigError::value("store.epoch", format!("{every:?}"), "at least 2 seconds"));
    }
    Ok(())
}
