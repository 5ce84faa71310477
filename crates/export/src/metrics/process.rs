//! What the system knows about this process, under the usual metric names.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::metrics::page::{Labels, MetricKind, MetricsPage};

#[derive(Clone, Copy, Debug)]
pub struct Process {
    program: &'static str,
    version: &'static str,
    started: SystemTime,
}

impl Process {
    /// Call this at the start of the program. `program` is `dta-collector` or `dta-translator`.
    pub fn new(program: &'static str, version: &'static str) -> Process {
        Process { program, version, started: SystemTime::now() }
    }

    /// Adds the process and its build to a page. Numbers that the system does not provide are left out.
    pub fn add_process_metrics(&self, page: &mut MetricsPage) {
        let build =
            vec![("program".into(), self.program.to_owned()), ("version".into(), self.version.to_owned())];
        page.add(
            "dta_build_info",
            MetricKind::Gauge,
            "always 1; program and version of this process",
            build,
            1,
        );
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let help = "when this process started, in seconds since 1970";
        page.add_real_gauge("process_start_time_seconds", help, Labels::new(), started.as_secs_f64());
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let help = "processor time of this process";
        page.add_seconds("process_cpu_seconds", help, cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9);
        if let Some(bytes) =
            std::fs::read_to_string("/proc/self/status").ok().as_deref().and_then(resident_bytes)
        {
            let help = "memory of this process that is in RAM, region files included";
            page.add("process_resident_memory_bytes", MetricKind::Gauge, help, Labels::new(), bytes);
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            page.add(
                "process_open_fds",
                MetricKind::Gauge,
                "open files",
                Labels::new(),
                files.count() as u64,
            );
        }
    }
}

/// Bytes in RAM, from `/proc/PID/status` (proc(5)).
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_reported() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let mut page = MetricsPage::default();
        Process::new("dta-collector", "1.2.3").add_process_metrics(&mut page);
        let text = page.into_text();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
        };
        assert!(text.contains("dta_build_info{program=\"dta-collector\",version=\"1.2.3\"} 1\n"), "{text}");
        let started = value("process_start_time_seconds");
        assert!((before - 1.0..before + 60.0).contains(&started), "{started} is not {before}");
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_cpu_seconds_total") > 0.0);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(resident_bytes("Name:\tVmRSS: 1 kB\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(resident_bytes("Name:\tx\n"), None);
    }
}
