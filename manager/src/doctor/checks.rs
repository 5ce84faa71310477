//! The checks, each a plain function of a file tree that looks like `/`, so that tests can supply their own.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use dta_link::{RunUse, UdpConfig, UdpLink};
use dta_proto::wire::{dta, roce};

use super::{Finding, rdma, read_trimmed};

/// Checks everything. `root` is `/` except in tests.
pub fn examine_machine(root: &Path) -> Vec<Finding> {
    let mut findings = vec![
        check_loopback(),
        runs_of_reports(),
        runs_of_frames(),
        check_af_xdp(),
        check_xdp_events(),
        check_cpu(root),
        check_cores(),
        hugepages(root),
        transparent(root),
        shared_memory(root),
    ];
    findings.extend([receive_buffers(root), check_ports(root), privileges(root), check_memlock(root)]);
    findings.extend(rdma::examine_rdma(root));
    findings
}

fn check_cpu(root: &Path) -> Finding {
    let info = read_trimmed(root.join("proc/cpuinfo")).unwrap_or_default();
    let flags: Vec<&str> = info
        .lines()
        .find(|line| line.starts_with("flags") || line.starts_with("Features"))
        .and_then(|line| line.split_once(':'))
        .map(|(_, flags)| flags.split_whitespace().collect())
        .unwrap_or_default();
    let has = |names: &[&str]| names.iter().all(|name| flags.contains(name));
    if has(&["sse4_2", "pclmulqdq"]) {
        let wide =
            if has(&["avx512f", "vpclmulqdq"]) { ", and 512-bit carry-less multiplication" } else { "" };
        Finding::new_ok("cpu", format!("CRC-32C and CRC-32 in hardware (sse4.2, pclmulqdq){wide}"))
    } else if has(&["crc32"]) {
        Finding::new_ok("cpu", "CRC-32C and CRC-32 in hardware (ARMv8 crc32)")
    } else {
        Finding::new_note(
            "cpu",
            "no CRC instructions: checksums are computed from tables",
            "expect a tenth of the usual rates; on a virtual machine, pass the host's CPU through (-cpu host)",
        )
    }
}

/// Collector and translator talk over two addresses of 127/8.
fn check_loopback() -> Finding {
    let first = std::net::UdpSocket::bind("127.0.0.1:0");
    match first.and_then(|_| std::net::UdpSocket::bind("127.0.0.2:0")) {
        Ok(_) => Finding::new_ok("loopback", "127.0.0.1 and 127.0.0.2 can be used"),
        Err(error) => Finding::new_problem("loopback", format!("{error}"), "ip link set dev lo up"),
    }
}

/// Whether many reports pass the kernel as one message.
fn runs_of_reports() -> Finding {
    check_datagram_runs("runs of reports", |any| UdpConfig::for_reports(any, false), "report")
}

/// Whether many RoCEv2 frames do, which also takes a kernel that numbers them from 0.
fn runs_of_frames() -> Finding {
    let text = match dta_link::udp::numbers_from_zero() {
        Ok(true) => return check_datagram_runs(RUNS_OF_FRAMES, UdpConfig::roce_in_runs, "RoCEv2 frame"),
        Ok(false) => "the kernel does not number the datagrams of a message 0, 1, 2, …".to_owned(),
        Err(error) => error.to_string(),
    };
    Finding::new_note(
        RUNS_OF_FRAMES,
        text,
        "RoCEv2 frames leave one by one: each costs a pass through the kernel",
    )
}

const RUNS_OF_FRAMES: &str = "runs of frames";

fn check_datagram_runs(check: &'static str, config: impl Fn(SocketAddr) -> UdpConfig, what: &str) -> Finding {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let found = match UdpLink::open(&config(any)) {
        Ok(link) => link.run_use(),
        Err(error) => return Finding::new_problem(check, error.to_string(), "ip link set dev lo up"),
    };
    let text = format!("{found} (UDP_SEGMENT, UDP_GRO)");
    match found == RunUse::BOTH {
        true => Finding::new_ok(check, text),
        false => Finding::new_note(
            check,
            text,
            format!(
                "each {what} costs a pass through the kernel at both ends; Linux 5.0 and later can do better"
            ),
        ),
    }
}

/// Whether frames can bypass the kernel's network stack.
fn check_af_xdp() -> Finding {
    match dta_link::xdp::probe_support() {
        Ok(()) => Finding::new_ok(
            "AF_XDP",
            "sockets and programs are available; what an interface supports is logged when a link is opened on it",
        ),
        Err(error) => Finding::new_note(
            "AF_XDP",
            error.to_string(),
            "needed only for \"xdp:INTERFACE\", links and listeners",
        ),
    }
}

/// Whether a program can drop unchanged Telemetry Reports at an interface.
fn check_xdp_events() -> Finding {
    match dta_link::xdp::probe_events() {
        Ok(()) => Finding::new_ok("events in XDP", "the program that drops unchanged reports can be loaded"),
        Err(error) => Finding::new_note(
            "events in XDP",
            error.to_string(),
            "needed only for INT listeners with \"events=kernel\": leave that out",
        ),
    }
}

fn check_cores() -> Finding {
    match std::thread::available_parallelism() {
        Ok(n) if n.get() >= 2 => Finding::new_ok("cores", format!("{n} usable")),
        _ => Finding::new_note(
            "cores",
            "1 usable",
            "collector, translator and reporters take turns on it: expect a third of the usual rates",
        ),
    }
}

fn hugepages(root: &Path) -> Finding {
    let pools = root.join("sys/kernel/mm/hugepages");
    let mut found = Vec::new();
    let mut free_bytes = 0u64;
    for entry in fs::read_dir(pools).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(kib) = name
            .strip_prefix("hugepages-")
            .and_then(|n| n.strip_suffix("kB"))
            .and_then(|n| n.parse::<u64>().ok())
        else {
            continue;
        };
        let number =
            |file| read_trimmed(entry.path().join(file)).and_then(|s| s.parse::<u64>().ok()).unwrap_or(0);
        let (total, free) = (number("nr_hugepages"), number("free_hugepages"));
        if total > 0 {
            free_bytes += free * kib * 1024;
            found.push(format!("{free} of {total} pages of {} MiB free", kib / 1024));
        }
    }
    found.sort();
    let advice = "without them a random write costs a page walk; reserve some: sysctl -w vm.nr_hugepages=600";
    if found.is_empty() {
        Finding::new_note("hugepages", "none reserved", advice)
    } else if free_bytes == 0 {
        Finding::new_note("hugepages", found.join("; "), advice)
    } else {
        Finding::new_ok("hugepages", found.join("; "))
    }
}

fn transparent(root: &Path) -> Finding {
    let chosen = |file: &str| {
        let text = read_trimmed(root.join("sys/kernel/mm/transparent_hugepage").join(file))?;
        Some(text.split('[').nth(1)?.split(']').next()?.to_owned())
    };
    let (anonymous, shared) = (chosen("enabled"), chosen("shmem_enabled"));
    match (anonymous.as_deref(), shared.as_deref()) {
        (None, _) => Finding::new_note(
            "transparent hugepages",
            "the kernel has none",
            "reserve hugepages instead: sysctl -w vm.nr_hugepages=600",
        ),
        (Some("never"), _) => Finding::new_note(
            "transparent hugepages",
            "off",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        (Some(anonymous), shared) => {
            let shared = shared.unwrap_or("never");
            let found = format!("{anonymous} for anonymous memory, {shared} for shared memory");
            if shared == "never" && kernel_version(root).is_some_and(|version| version >= (6, 1)) {
                Finding::new_ok(
                    "transparent hugepages",
                    format!("{found}; a collector joins pages of its files (MADV_COLLAPSE)"),
                )
            } else if matches!(shared, "never" | "deny") {
                Finding::new_note(
                    "transparent hugepages",
                    found,
                    "for stores in named files: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
                )
            } else {
                Finding::new_ok("transparent hugepages", found)
            }
        }
    }
}

/// The kernel's version, as far as features depend on it.
fn kernel_version(root: &Path) -> Option<(u32, u32)> {
    let release = read_trimmed(root.join("proc/sys/kernel/osrelease"))?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn shared_memory(root: &Path) -> Finding {
    let path = root.join("dev/shm");
    match rustix::fs::statvfs(&path) {
        Ok(stat) if path.is_dir() => {
            let free = (stat.f_bavail * stat.f_frsize) >> 20;
            if free < 256 {
                Finding::new_note(
                    "shared memory",
                    format!("{free} MiB free in /dev/shm"),
                    "stores in named files go elsewhere (--memory DIR); or: mount -o remount,size=1G /dev/shm",
                )
            } else {
                Finding::new_ok("shared memory", format!("{free} MiB free in /dev/shm"))
            }
        }
        _ => Finding::new_note(
            "shared memory",
            "no /dev/shm",
            "the testbed then keeps its stores in the temporary directory, on disk",
        ),
    }
}

/// Below this the kernel drops bursts that a healthy reader would have caught up with.
const GOOD_BUFFER: u64 = 4 << 20;

fn receive_buffers(root: &Path) -> Finding {
    let core = root.join("proc/sys/net/core");
    let Some(most) = read_trimmed(core.join("rmem_max")).and_then(|s| s.parse::<u64>().ok()) else {
        return Finding::new_note(
            "receive buffers",
            "not readable",
            "is /proc/sys mounted? bursts may be dropped",
        );
    };
    let found = format!("sockets may ask for {} KiB", most / 1024);
    if most >= GOOD_BUFFER {
        Finding::new_ok("receive buffers", found)
    } else {
        Finding::new_note(
            "receive buffers",
            found,
            "the kernel drops bursts (counted as receive-queue): sysctl -w net.core.rmem_max=16777216",
        )
    }
}

/// Default ports of the daemons.
const PORTS: [(u16, &str); 3] = [
    (dta::PORT, "DTA reports"),
    (roce::PORT, "RoCEv2"),
    (dta_collector::config::DEFAULT_LISTEN.port(), "collector gRPC"),
];

fn check_ports(root: &Path) -> Finding {
    let mut taken = Vec::new();
    for table in ["udp", "udp6", "tcp", "tcp6"] {
        let text = read_trimmed(root.join("proc/net").join(table)).unwrap_or_default();
        for line in text.lines().skip(1) {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().and_then(|a| u16::from_str_radix(a.rsplit(':').next()?, 16).ok());
            // State 0A is listening, 07 an unconnected UDP socket.
            let state = fields.nth(1);
            let wanted = PORTS.iter().find(|(port, _)| Some(*port) == local);
            if let (Some((port, what)), Some("0A" | "07")) = (wanted, state) {
                let proto = table.trim_end_matches('6');
                let found = format!("{proto} {port} ({what}) is in use");
                if !taken.contains(&found) {
                    taken.push(found);
                }
            }
        }
    }
    if taken.is_empty() {
        let [reports, roce, grpc] = PORTS.map(|(port, _)| port);
        Finding::new_ok("ports", format!("{reports}, {roce} and {grpc} are free"))
    } else {
        Finding::new_note(
            "ports",
            taken.join("; "),
            "the testbed chooses free ports; give daemons others with --listen: `ss -lunp` shows who has them",
        )
    }
}

/// Bit of CAP_BPF (`linux/capability.h`).
const BPF: u32 = 39;
/// Bit of CAP_IPC_LOCK.
const IPC_LOCK: u32 = 14;

/// Capabilities with a use here: bit, name, purpose.
const CAPABILITIES: [(u32, &str, &str); 4] = [
    (12, "CAP_NET_ADMIN", "large receive buffers, namespaces, AF_XDP"),
    (13, "CAP_NET_RAW", "raw frames (packet links, AF_XDP, replay --raw)"),
    (BPF, "CAP_BPF", "AF_XDP (xdp links)"),
    (IPC_LOCK, "CAP_IPC_LOCK", "locking memory beyond the limit"),
];

/// The effective capabilities of this process, one bit each.
fn capabilities(root: &Path) -> u64 {
    read_trimmed(root.join("proc/self/status"))
        .and_then(|s| {
            let line = s.lines().find(|line| line.starts_with("CapEff:"))?;
            u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
        })
        .unwrap_or(0)
}

fn privileges(root: &Path) -> Finding {
    let effective = capabilities(root);
    let (have, lack): (Vec<_>, Vec<_>) = CAPABILITIES.iter().partition(|(bit, ..)| effective >> bit & 1 == 1);
    let names =
        |list: &[&(u32, &str, &str)]| list.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ");
    if lack.is_empty() {
        Finding::new_ok("privileges", names(&have))
    } else {
        let without: Vec<_> = lack.iter().map(|(_, _, what)| *what).collect();
        let found = if have.is_empty() { "none".into() } else { names(&have) };
        Finding::new_note(
            "privileges",
            format!("{found}; not {}", names(&lack)),
            format!("the embedded testbed needs none; run as root for {}", without.join("; ")),
        )
    }
}

fn check_memlock(root: &Path) -> Finding {
    let limits = read_trimmed(root.join("proc/self/limits")).unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))
        .and_then(|rest| rest.split_whitespace().next().map(str::to_owned));
    match soft.as_deref() {
        Some("unlimited") => Finding::new_ok("locked memory", "unlimited"),
        // The kernel checks the limit only without the capability (`ib_umem_get`).
        Some(bytes) if capabilities(root) >> IPC_LOCK & 1 == 1 => {
            Finding::new_ok("locked memory", format!("CAP_IPC_LOCK overrides the limit of {bytes} bytes"))
        }
        Some(bytes) => match bytes.parse::<u64>() {
            Ok(n) if n >= 1 << 30 => Finding::new_ok("locked memory", format!("{} MiB", n >> 20)),
            Ok(n) => Finding::new_note(
                "locked memory",
                format!("{} KiB", n >> 10),
                "an RDMA device pins its regions: ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit",
            ),
            Err(_) => Finding::new_note("locked memory", bytes, "`ulimit -l` shows the limit"),
        },
        None => Finding::new_note("locked memory", "not readable", "`ulimit -l` shows the limit"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::test_machine::TestMachine;
    use super::*;

    #[test]
    fn an_empty_machine_gives_advice_on_everything() {
        for finding in examine_machine(TestMachine::new(&[]).root_path()) {
            let of_the_kernel = ["loopback", "runs of reports", "runs of frames", "AF_XDP", "events in XDP"];
            if !["cores", "ports"].iter().chain(&of_the_kernel).any(|check| *check == finding.check) {
                assert_ne!(finding.level, Level::Ok, "{finding:?}");
                assert!(finding.advice.is_some(), "{finding:?}");
            }
        }
    }

    #[test]
    fn hugepages_are_counted_and_missing_ones_advised() {
        let pool = "sys/kernel/mm/hugepages/hugepages-2048kB/";
        let (total, free) = (format!("{pool}nr_hugepages"), format!("{pool}free_hugepages"));
        let good = TestMachine::new(&[(&total, "600\n"), (&free, "512\n")]).finding_of_check("hugepages");
        assert_eq!((good.level, good.found.as_str()), (Level::Ok, "512 of 600 pages of 2 MiB free"));
        let used_up = TestMachine::new(&[(&total, "600\n"), (&free, "0\n")]).finding_of_check("hugepages");
        assert_eq!(used_up.level, Level::Note);
        let none = TestMachine::new(&[(&total, "0\n"), (&free, "0\n")]).finding_of_check("hugepages");
        assert!(none.advice.unwrap().contains("vm.nr_hugepages"));
    }

    #[test]
    fn files_in_base_pages_need_nothing_where_the_collector_can_join_them() {
        let level = |shared: &str, release: &str| {
            let folder = "sys/kernel/mm/transparent_hugepage/";
            let (enabled, of_files) = (format!("{folder}enabled"), format!("{folder}shmem_enabled"));
            let tree = TestMachine::new(&[
                (&enabled, "always [madvise] never\n"),
                (&of_files, shared),
                ("proc/sys/kernel/osrelease", release),
            ]);
            tree.finding_of_check("transparent hugepages").level
        };
        assert_eq!(level("always advise [never] deny\n", "6.1.0-37-amd64\n"), Level::Ok);
        assert_eq!(level("always advise [never] deny\n", "5.15.0\n"), Level::Note);
        assert_eq!(level("always advise never [deny]\n", "6.18.44\n"), Level::Note);
        assert_eq!(level("always [advise] never deny\n", "5.10.0\n"), Level::Ok);
    }

    #[test]
    fn this_machine_sends_and_receives_runs() {
        // Every kernel since 5.0 does.
        for found in [runs_of_reports(), runs_of_frames()] {
            assert_eq!(found.level, Level::Ok, "{found:?}");
        }
    }

    #[test]
    fn a_port_in_use_is_named() {
        let udp =
            "  sl  local_address rem_address   st\n   0: 0100007F:9C68 00000000:0000 07 00000000:00000000\n";
        let finding = TestMachine::new(&[("proc/net/udp", udp)]).finding_of_check("ports");
        assert_eq!(finding.found, "udp 40040 (DTA reports) is in use");
        let other =
            TestMachine::new(&[("proc/net/udp", &udp.replace("9C68", "9C69"))]).finding_of_check("ports");
        assert_eq!(other.level, Level::Ok);
    }

    #[test]
    fn capabilities_limits_and_buffers_are_read() {
        let tree = TestMachine::new(&[
            ("proc/self/status", "Name:\tx\nCapEff:\t0000000000002000\n"),
            (
                "proc/self/limits",
                "Max locked memory         8388608              8388608              bytes\n",
            ),
            ("proc/sys/net/core/rmem_max", "212992\n"),
        ]);
        let privileges = tree.finding_of_check("privileges");
        assert_eq!(privileges.found, "CAP_NET_RAW; not CAP_NET_ADMIN, CAP_BPF, CAP_IPC_LOCK");
        assert_eq!(tree.finding_of_check("locked memory").found, "8192 KiB");
        tree.add(&[("proc/self/status", "CapEff:\t0000000000004000\n")]);
        let over = tree.finding_of_check("locked memory");
        assert!(over.level == Level::Ok && over.found.contains("CAP_IPC_LOCK"), "{over:?}");
        assert!(tree.finding_of_check("receive buffers").advice.unwrap().contains("rmem_max"));
    }
}
