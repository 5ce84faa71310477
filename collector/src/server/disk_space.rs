//! Free space where a collector writes: in its file systems and in the spools of its exporters.

use std::path::{Path, PathBuf};

#[cfg(feature = "web")]
use dta_cli::number::format_percent;
use dta_export::config::{ConfiguredSpool, Influx};
use dta_export::metrics::{MetricKind, MetricsPage};
#[cfg(feature = "web")]
use dta_web::{Notice, Severity};

use crate::config::{Config, MemoryBacking};

/// The folders that a collector writes to.
pub(super) struct DiskSpace {
    /// By purpose: `memory`, `history`, `json`, `spool` (InfluxDB's), `spool-SINK`.
    folders: Vec<(String, PathBuf)>,
    spools: Vec<ConfiguredSpool>,
}

impl DiskSpace {
    pub(super) fn from_config(config: &Config) -> DiskSpace {
        let spools = config.export.configured_spools(&config.name);
        let memory = match &config.memory {
            MemoryBacking::Anonymous => None,
            MemoryBacking::Directory(folder) => Some(folder.clone()),
        };
        // `-` is standard output.
        let json = config.export.json.as_ref().map(|json| json.file.as_path());
        let json = json.filter(|file| *file != Path::new("-")).and_then(Path::parent);
        let json = json.map(|folder| Path::new(".").join(folder));
        let of_sink = |ConfiguredSpool { sink, directory, .. }: &ConfiguredSpool| {
            let name = if *sink == Influx::SINK { "spool".to_owned() } else { format!("spool-{sink}") };
            (name, directory.clone())
        };
        let named = |name: &str, folder: Option<PathBuf>| Some((name.to_owned(), folder?));
        let history = (!config.epochs.is_empty()).then(|| config.history.directory(&config.name));
        let folders = named("memory", memory).into_iter().chain(named("history", history));
        let folders = folders.chain(named("json", json));
        let folders = folders.chain(spools.iter().map(of_sink)).collect();
        DiskSpace { folders, spools }
    }

    /// File systems that are nearly full, and spools that are about to lose data. May block.
    #[cfg(feature = "web")]
    pub(super) fn find_notices(&self) -> Vec<Notice> {
        // Least free share of a disk, and greatest used share of a spool, before they need attention.
        const LEAST_FREE: f64 = 0.1;
        const ALMOST_NONE: f64 = 0.01;
        const FULL_SPOOL: f64 = 0.8;
        let mut notices = Vec::new();
        let mut notice = |severity, about, text, advice: &str| {
            notices.push(Notice { severity, about, text, advice: advice.to_owned() });
        };
        for (name, folder) in &self.folders {
            let Ok(system) = rustix::fs::statfs(folder) else { continue };
            // All of hugetlbfs (by its number in statfs(2)) is taken by regions, and nothing else is written there.
            if system.f_blocks == 0 || system.f_type == 0x9584_58f6 {
                continue;
            }
            let share = system.f_bavail as f64 / system.f_blocks as f64;
            if share < LEAST_FREE {
                let severity = if share < ALMOST_NONE { Severity::Problem } else { Severity::Warning };
                let text = format!("{} of the disk with {} is free", format_percent(share), folder.display());
                notice(
                    severity,
                    format!("disk of {name}"),
                    text,
                    "free some space, or keep less: docs/operating.md",
                );
            }
        }
        for ConfiguredSpool { sink, directory, most } in &self.spools {
            let share = folder_bytes(directory) as f64 / (*most).max(1) as f64;
            if share > FULL_SPOOL {
                let text = format!(
                    "{} of its spool is full: the receiver is not accepting data",
                    format_percent(share)
                );
                let advice = "check the receiver; once the spool is full, the oldest points are dropped";
                notice(Severity::Warning, format!("export to {sink}"), text, advice);
            }
        }
        notices
    }

    /// Queries the file systems, so it may block.
    pub(super) fn add_disk_metrics(&self, page: &mut MetricsPage) {
        for (name, folder) in &self.folders {
            // A folder that cannot be read has no series.
            let Ok(system) = rustix::fs::statvfs(folder) else { continue };
            let labels = || vec![("folder".into(), name.clone())];
            let bytes = |blocks: u64| blocks.saturating_mul(system.f_frsize);
            let free = "bytes that this collector may still write to the file system of a folder";
            page.add(
                "dta_collector_disk_free_bytes",
                MetricKind::Gauge,
                free,
                labels(),
                bytes(system.f_bavail),
            );
            let size = "bytes of the file system of a folder that this collector writes to";
            page.add(
                "dta_collector_disk_size_bytes",
                MetricKind::Gauge,
                size,
                labels(),
                bytes(system.f_blocks),
            );
        }
        for ConfiguredSpool { sink, directory, most } in &self.spools {
            let labels = || vec![("sink".into(), (*sink).to_owned())];
            let help = "bytes of an exporter's spool, which has what its receiver has not taken yet";
            page.add(
                "dta_collector_export_spool_bytes",
                MetricKind::Gauge,
                help,
                labels(),
                folder_bytes(directory),
            );
            let help = "bytes that the spool may have (spool_mib); beyond, the oldest points are dropped";
            page.add("dta_collector_export_spool_limit_bytes", MetricKind::Gauge, help, labels(), *most);
        }
    }
}

/// Bytes of the files in a folder; 0 if it cannot be read.
fn folder_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten();
    files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum()
}

#[cfg(test)]
mod tests {
    use dta_export::config::Json;

    use super::*;

    #[test]
    fn each_folder_has_its_room_and_the_spool_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let spool = dir.path().join("spool");
        std::fs::create_dir(&spool).unwrap();
        std::fs::write(spool.join("1.spool"), [0; 1000]).unwrap();
        std::fs::write(spool.join("2.spool"), [0; 24]).unwrap();
        let mut config = Config { memory: MemoryBacking::Directory(dir.path().into()), ..Config::default() };
        config.export.influx = Some(Influx { spool: Some(spool), spool_mib: 16, ..Influx::default() });
        config.export.json = Some(Json { file: "events.json".into(), names: true });
        let mut page = MetricsPage::default();
        DiskSpace::from_config(&config).add_disk_metrics(&mut page);
        let text = page.into_text();
        for line in [
            "dta_collector_export_spool_bytes{sink=\"influx\"} 1024",
            "dta_collector_export_spool_limit_bytes{sink=\"influx\"} 16777216",
        ] {
            assert!(text.lines().any(|shown| shown == line), "no {line} in {text}");
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

    #[cfg(feature = "web")]
    #[test]
    fn a_spool_that_fills_up_needs_attention() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config { memory: MemoryBacking::Anonymous, ..Config::default() };
        let spool = Some(dir.path().to_owned());
        config.export.influx = Some(Influx { spool, spool_mib: 1, ..Influx::default() });
        let about_spool = |config: &Config| {
            let notices = DiskSpace::from_config(config).find_notices();
            notices.into_iter().find(|notice| notice.about == "export to influx")
        };
        assert_eq!(about_spool(&config), None);
        std::fs::write(dir.path().join("1.spool"), vec![0; 1_000_000]).unwrap();
        assert!(about_spool(&config).unwrap().text.starts_with("95"));
    }

    #[test]
    fn what_writes_nowhere_has_no_series() {
        let mut config = Config { memory: MemoryBacking::Anonymous, ..Config::default() };
        config.export.json = Some(Json { file: "-".into(), names: true });
        let mut page = MetricsPage::default();
        DiskSpace::from_config(&config).add_disk_metrics(&mut page);
        assert_eq!(page.series_count(), 0);
    }
}
