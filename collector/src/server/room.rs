//! Free space where a collector writes: its file systems, and the spool of its exporter.

use std::path::{Path, PathBuf};

use dta_metrics::{Kind, Labels, Page};

use crate::config::{Config, MemoryConfig};

/// The folders that a collector writes to.
pub(super) struct Room {
    /// By purpose: `memory`, `spool`, `json`.
    folders: Vec<(&'static str, PathBuf)>,
    /// The spool, and its limit in bytes.
    spool: Option<(PathBuf, u64)>,
}

impl Room {
    pub(super) fn of(config: &Config) -> Room {
        let spool = config.export.influx.as_ref();
        let spool = spool.map(|influx| (influx.spool_directory(&config.name), influx.spool_mib << 20));
        let memory = match &config.memory {
            MemoryConfig::Anonymous => None,
            MemoryConfig::Directory(folder) => Some(folder.clone()),
        };
        // `-` is standard output.
        let json = config.export.json.as_ref().map(|json| json.file.as_path());
        let json = json.filter(|file| *file != Path::new("-")).and_then(Path::parent);
        let folders = [
            ("memory", memory),
            ("spool", spool.as_ref().map(|(folder, _)| folder.clone())),
            ("json", json.map(|folder| Path::new(".").join(folder))),
        ];
        let folders = folders.into_iter().filter_map(|(name, folder)| Some((name, folder?))).collect();
        Room { folders, spool }
    }

    /// Asks the file systems, so it may block.
    pub(super) fn put(&self, page: &mut Page) {
        for (name, folder) in &self.folders {
            // One that cannot be read has no series.
            let Ok(system) = rustix::fs::statvfs(folder) else { continue };
            let labels = || vec![("folder".into(), (*name).to_owned())];
            let bytes = |blocks: u64| blocks.saturating_mul(system.f_frsize);
            let free = "bytes that this collector may still write to the file system of a folder";
            page.add("dta_collector_disk_free_bytes", Kind::Gauge, free, labels(), bytes(system.f_bavail));
            let size = "bytes of the file system of a folder that this collector writes to";
            page.add("dta_collector_disk_size_bytes", Kind::Gauge, size, labels(), bytes(system.f_blocks));
        }
        if let Some((folder, most)) = &self.spool {
            let help = "bytes of the spool, which has what the database has not taken yet";
            page.add("dta_collector_export_spool_bytes", Kind::Gauge, help, Labels::new(), size(folder));
            let help = "bytes that the spool may have (spool_mib); beyond, the oldest points are dropped";
            page.add("dta_collector_export_spool_limit_bytes", Kind::Gauge, help, Labels::new(), *most);
        }
    }
}

/// Bytes of the files in a folder; 0 if it cannot be read.
fn size(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten();
    files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum()
}

#[cfg(test)]
mod tests {
    use dta_export::config::{Influx, Json};

    use super::*;

    #[test]
    fn each_folder_has_its_room_and_the_spool_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let spool = dir.path().join("spool");
        std::fs::create_dir(&spool).unwrap();
        std::fs::write(spool.join("1.spool"), [0; 1000]).unwrap();
        std::fs::write(spool.join("2.spool"), [0; 24]).unwrap();
        let mut config = Config { memory: MemoryConfig::Directory(dir.path().into()), ..Config::default() };
        config.export.influx = Some(Influx { spool: Some(spool), spool_mib: 16, ..Influx::default() });
        config.export.json = Some(Json { file: "events.json".into(), names: true });
        let mut page = Page::default();
        Room::of(&config).put(&mut page);
        let text = page.text();
        for line in
            ["dta_collector_export_spool_bytes 1024", "dta_collector_export_spool_limit_bytes 16777216"]
        {
            assert!(text.lines().any(|told| told == line), "no {line} in {text}");
        }
        for folder in ["memory", "spool", "json"] {
            let value = |name: &str| -> u64 {
                let begin = format!("dta_collector_disk_{name}_bytes{{folder=\"{folder}\"}} ");
                let line = text.lines().find_map(|line| line.strip_prefix(&begin));
                line.unwrap_or_else(|| panic!("no {begin} in {text}")).parse().unwrap()
            };
            assert!(value("free") <= value("size") && value("size") > 0, "{text}");
        }
    }

    #[test]
    fn what_writes_nowhere_has_no_series() {
        let mut config = Config { memory: MemoryConfig::Anonymous, ..Config::default() };
        config.export.json = Some(Json { file: "-".into(), names: true });
        let mut page = Page::default();
        Room::of(&config).put(&mut page);
        assert_eq!(page.series(), 0);
    }
}
