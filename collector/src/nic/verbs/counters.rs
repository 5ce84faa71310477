//! Counters that the kernel keeps of a device's port, under `/sys/class/infiniband`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// The counters of one port, counted from when this collector's memory was made: the kernel's go on from when the device was.
pub(super) struct PortCounters {
    directories: [PathBuf; 2],
    start: BTreeMap<String, u64>,
}

/// Where counting began, kept so that a collector that was killed goes on with its counts.
#[derive(Serialize, Deserialize)]
struct Baseline {
    device: String,
    port: u8,
    start: BTreeMap<String, u64>,
}

impl PortCounters {
    /// Begins to count, or goes on from where `file` says that counting began.
    pub(super) fn new(device: &str, port: u8, file: Option<&Path>) -> io::Result<PortCounters> {
        let directory = PathBuf::from(format!("/sys/class/infiniband/{device}/ports/{port}"));
        let directories = [directory.join("hw_counters"), directory.join("counters")];
        let mut counters = PortCounters { directories, start: BTreeMap::new() };
        let now = counters.now();
        let kept = file
            .and_then(|file| fs::read_to_string(file).ok())
            .and_then(|text| serde_json::from_str::<Baseline>(&text).ok())
            // Lower values than at the start are those of a device that was made anew.
            .filter(|kept| {
                (kept.device.as_str(), kept.port) == (device, port) && not_below(&now, &kept.start)
            });
        if let Some(kept) = kept {
            counters.start = kept.start;
            return Ok(counters);
        }
        counters.start = now;
        if let Some(file) = file {
            let baseline = Baseline { device: device.to_owned(), port, start: counters.start.clone() };
            fs::write(file, serde_json::to_vec(&baseline)?)?;
        }
        Ok(counters)
    }

    /// What was counted since, as `device.NAME` under the kernel's own names; a counter that cannot be read is left out. What
    /// is lower than at the start was made anew since, and counts in full. Where the device counts packets, as rxe does, they
    /// come under the names that other back ends give them as well.
    pub(super) fn read(&self) -> Vec<(String, u64)> {
        let now = self.now();
        let since = |name: &str, value: u64| {
            value.checked_sub(self.start.get(name).copied().unwrap_or(0)).unwrap_or(value)
        };
        let mut all = Vec::new();
        let also: [(&str, &[&str]); 2] =
            [("rcvd_pkts", &["received", "link.received"]), ("sent_pkts", &["sent.packets", "link.sent"])];
        for (theirs, ours) in also {
            if let Some(&value) = now.get(theirs) {
                all.extend(ours.iter().map(|name| ((*name).to_owned(), since(theirs, value))));
            }
        }
        all.extend(now.iter().map(|(name, &value)| (format!("device.{name}"), since(name, value))));
        all
    }

    fn now(&self) -> BTreeMap<String, u64> {
        self.directories
            .iter()
            .filter_map(|directory| fs::read_dir(directory).ok())
            .flatten()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name().into_string().ok()?;
                // How long the kernel caches the values: a setting, not a counter.
                if name == "lifespan" {
                    return None;
                }
                let value = fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
                Some((name, value))
            })
            .collect()
    }
}

fn not_below(now: &BTreeMap<String, u64>, start: &BTreeMap<String, u64>) -> bool {
    start.iter().all(|(name, value)| now.get(name).is_some_and(|now| now >= value))
}
