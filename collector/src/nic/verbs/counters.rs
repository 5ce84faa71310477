//! Counters that the kernel keeps of a device's port, under `/sys/class/infiniband`.

use std::fs;
use std::path::PathBuf;

/// The counters of one port, counted from the moment this was made: the kernel's go on from when the device was made.
pub(super) struct PortCounters {
    directories: [PathBuf; 2],
    start: Vec<(String, u64)>,
}

impl PortCounters {
    /// Begins to count.
    pub(super) fn new(device: &str, port: u8) -> PortCounters {
        let port = PathBuf::from(format!("/sys/class/infiniband/{device}/ports/{port}"));
        let mut counters = PortCounters {
            directories: [port.join("hw_counters"), port.join("counters")],
            start: Vec::new(),
        };
        counters.start = counters.now();
        counters
    }

    /// What was counted since, as `device.NAME` under the kernel's own names; a counter that cannot be read is left out.
    /// A value lower than at the start means a device that was made anew: then all of it counts.
    pub(super) fn read(&self) -> Vec<(String, u64)> {
        let since = |name: &str, value: u64| {
            let start = self.start.iter().find(|(n, _)| n == name).map_or(0, |&(_, v)| v);
            value.checked_sub(start).unwrap_or(value)
        };
        self.now().into_iter().map(|(name, value)| (format!("device.{name}"), since(&name, value))).collect()
    }

    fn now(&self) -> Vec<(String, u64)> {
        let mut all: Vec<(String, u64)> = self
            .directories
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
            .collect();
        all.sort();
        all
    }
}
