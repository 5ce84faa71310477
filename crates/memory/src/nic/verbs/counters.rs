//! Counters that the kernel keeps of a device's port, under `/sys/class/infiniband`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use dta_proto::counter::nic as names;
use serde::{Deserialize, Serialize};

use dta_files::own_file;

/// How long the kernel may answer with cached values, with some margin (`RDMA_HW_STATS_DEFAULT_LIFESPAN`, 10 ms, in
/// jiffies).
pub(super) const CACHED: Duration = Duration::from_millis(25);

/// The counters of one port, counted from when this collector's memory was created; the kernel counts from when the
/// device was created.
pub(super) struct PortCounters {
    directories: [PathBuf; 2],
    file: Option<PathBuf>,
    baseline: Baseline,
    /// The kernel's last values.
    last: BTreeMap<String, u64>,
}

/// Where counting began, kept in a file so that a collector that was killed continues its counts.
#[derive(Default, Serialize, Deserialize)]
struct Baseline {
    device: String,
    port: u8,
    /// The kernel's values that count as 0.
    start: BTreeMap<String, u64>,
    /// What earlier devices of this name counted.
    earlier: BTreeMap<String, u64>,
}

impl PortCounters {
    /// Starts counting, or continues from the start that `file` holds.
    ///
    /// # Errors
    /// The file cannot be read or written, or is not one that this program wrote.
    pub(super) fn new(device: &str, port: u8, file: Option<&Path>) -> io::Result<PortCounters> {
        PortCounters::from_directories(directories(device, port), device, port, file)
    }

    fn from_directories(
        directories: [PathBuf; 2],
        device: &str,
        port: u8,
        file: Option<&Path>,
    ) -> io::Result<PortCounters> {
        let last = read_counters(&directories);
        let kept = file.map(load).transpose()?.flatten();
        let kept = kept.filter(|kept| (kept.device.as_str(), kept.port) == (device, port));
        let fresh =
            || Baseline { device: device.to_owned(), port, start: last.clone(), ..Baseline::default() };
        let mut baseline = kept.unwrap_or_else(fresh);
        if !not_below(&last, &baseline.start) {
            // Lower values than at the start mean that the device was recreated.
            baseline.start = BTreeMap::new();
        }
        let counters = PortCounters { directories, file: file.map(Path::to_owned), baseline, last };
        counters.save_baseline()?;
        Ok(counters)
    }

    /// Continues with a device that was away and is back, perhaps as another one: the counts so far stay.
    pub(super) fn follow_device(&mut self, device: &str, port: u8) {
        let earlier = self.counter_sums();
        self.directories = directories(device, port);
        let now = read_counters(&self.directories);
        if !not_below(&now, &self.last) {
            self.baseline = Baseline { device: device.to_owned(), port, start: BTreeMap::new(), earlier };
        }
        self.last = now;
        if let Err(error) = self.save_baseline() {
            tracing::warn!(%error, "cannot write the counter file");
        }
    }

    /// The counts so far, as `device.NAME` under the kernel's own names, without counters that cannot be read. If
    /// the device counts packets, as rxe does, these counts also appear under the names that other back ends use.
    /// While the device is away, the values stay at the last ones.
    pub(super) fn read(&mut self) -> Vec<(String, u64)> {
        let mut set_back = false;
        // One by one, so that a counter that is gone stands still while the others go on.
        for (name, value) in read_counters(&self.directories) {
            let last = self.last.insert(name.clone(), value).unwrap_or(0);
            if value < last {
                // It was reset, probably to 0: its count so far stays, and counting continues from there.
                let start = self.baseline.start.remove(&name).unwrap_or(0);
                *self.baseline.earlier.entry(name).or_default() += last.saturating_sub(start);
                set_back = true;
            }
        }
        if set_back && let Err(error) = self.save_baseline() {
            tracing::warn!(%error, "cannot write the counter file");
        }
        let sums = self.counter_sums();
        let mut all = Vec::new();
        let also = [
            ("rcvd_pkts", [&names::DEVICE_RECEIVED, &names::DEVICE_LINK_RECEIVED]),
            ("sent_pkts", [&names::DEVICE_SENT, &names::DEVICE_LINK_SENT]),
        ];
        for (theirs, ours) in also {
            if let Some(&value) = sums.get(theirs) {
                all.extend(ours.map(|counter| (counter.format_name(&[]), value)));
            }
        }
        all.extend(
            sums.into_iter().map(|(name, value)| (names::DEVICE_COUNTER.format_name(&[&name]), value)),
        );
        all
    }

    fn counter_sums(&self) -> BTreeMap<String, u64> {
        let of = |map: &BTreeMap<String, u64>, name: &str| map.get(name).copied().unwrap_or(0);
        self.last
            .iter()
            .map(|(name, value)| {
                let since = value.saturating_sub(of(&self.baseline.start, name));
                (name.clone(), since + of(&self.baseline.earlier, name))
            })
            .collect()
    }

    fn save_baseline(&self) -> io::Result<()> {
        match &self.file {
            Some(file) => own_file::replace_file(file, &serde_json::to_vec(&self.baseline)?),
            None => Ok(()),
        }
    }
}

/// Where counting began, according to the file; `None` if there is no file.
fn load(file: &Path) -> io::Result<Option<Baseline>> {
    let fail = |reason: String| {
        let file = file.display();
        io::Error::other(format!("{file}: {reason}; move it away to start counting from 0"))
    };
    match own_file::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| fail(format!("is damaged ({e})"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fail(error.to_string())),
    }
}

fn directories(device: &str, port: u8) -> [PathBuf; 2] {
    let directory = PathBuf::from(format!("/sys/class/infiniband/{device}/ports/{port}"));
    [directory.join("hw_counters"), directory.join("counters")]
}

fn read_counters(directories: &[PathBuf; 2]) -> BTreeMap<String, u64> {
    directories
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

/// Whether these can be later values of the same device.
fn not_below(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> bool {
    before.iter().all(|(name, value)| now.get(name).is_some_and(|now| now >= value))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Port {
        dir: tempfile::TempDir,
    }

    impl Port {
        fn new() -> Port {
            let dir = tempfile::tempdir().unwrap();
            for directory in ["hw_counters", "counters"] {
                fs::create_dir(dir.path().join(directory)).unwrap();
            }
            Port { dir }
        }

        fn set(&self, name: &str, value: u64) {
            fs::write(self.dir.path().join("hw_counters").join(name), format!("{value}\n")).unwrap();
        }

        fn file(&self) -> PathBuf {
            self.dir.path().join("device.counters")
        }

        fn open(&self) -> io::Result<PortCounters> {
            let directories = ["hw_counters", "counters"].map(|name| self.dir.path().join(name));
            PortCounters::from_directories(directories, "rxe0", 1, Some(&self.file()))
        }
    }

    fn of(counters: &mut PortCounters, name: &str) -> u64 {
        counters.read().into_iter().find(|(n, _)| n == name).unwrap().1
    }

    #[test]
    fn a_counter_that_was_set_back_goes_on_at_once() {
        let port = Port::new();
        port.set("rcvd_pkts", 1000);
        port.set("other", 5);
        let mut counters = port.open().unwrap();
        port.set("rcvd_pkts", 1100);
        port.set("other", 6);
        assert_eq!((of(&mut counters, "received"), of(&mut counters, "device.other")), (100, 1));
        port.set("rcvd_pkts", 30);
        assert_eq!(of(&mut counters, "received"), 130);
        port.set("rcvd_pkts", 40);
        assert_eq!((of(&mut counters, "received"), of(&mut counters, "device.other")), (140, 1));
        // A collector that starts now also continues.
        drop(counters);
        port.set("rcvd_pkts", 45);
        let mut counters = port.open().unwrap();
        assert_eq!((of(&mut counters, "received"), of(&mut counters, "device.other")), (145, 1));
    }

    #[test]
    fn a_file_cut_short_is_refused_and_left_as_it_is() {
        let port = Port::new();
        port.set("rcvd_pkts", 7);
        drop(port.open().unwrap());
        let whole = fs::read(port.file()).unwrap();
        for len in 0..whole.len() {
            fs::write(port.file(), &whole[..len]).unwrap();
            let error = port.open().err().expect("damaged").to_string();
            assert!(error.contains("device.counters") && error.contains("move it away"), "{len}: {error}");
            assert_eq!(fs::read(port.file()).unwrap(), &whole[..len]);
        }
    }
}
