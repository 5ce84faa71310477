//! `dta-collector devices`

use std::path::Path;

use dta_cli::CommandStatus;
use dta_cli::number;
use dta_cli::output::OutputFlag;
use dta_memory::nic::NicError;
use dta_memory::nic::verbs::{self, DeviceInfo, VerbsError};

#[derive(clap::Args)]
#[command(after_help = "Example:\n  dta-collector devices")]
pub(super) struct Args {
    #[command(flatten)]
    output: OutputFlag,
}

pub(super) fn run(args: &Args) -> anyhow::Result<CommandStatus> {
    let devices = verbs::list_devices().map_err(|error| match error {
        // The kernel lists devices even without the library, but their capabilities need it.
        NicError::Verbs(VerbsError::NotBuilt) => {
            let kernel = in_kernel(Path::new("/sys/class/infiniband"));
            anyhow::anyhow!("{error}. The kernel shows {kernel}; `dta-manager doctor` says more")
        }
        error => error.into(),
    })?;
    args.output.print_document(&devices, |devices| device_lines(devices).join("\n"))?;
    Ok(CommandStatus::Done)
}

/// The names of the kernel's devices, in words.
fn in_kernel(class: &Path) -> String {
    let entries = std::fs::read_dir(class).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.is_empty() { "no RDMA device".to_owned() } else { names.join(", ") }
}

fn device_lines(devices: &[DeviceInfo]) -> Vec<String> {
    if devices.is_empty() {
        return vec![
            "no RDMA device".to_owned(),
            "soft-RoCE on a network interface: `rdma link add rxe0 type rxe netdev eth0`".to_owned(),
            "or use the software NIC: --device soft".to_owned(),
        ];
    }
    let mut lines = Vec::new();
    for d in devices {
        let firmware =
            if d.firmware.is_empty() { String::new() } else { format!(" (firmware {})", d.firmware) };
        lines.push(format!("{}{firmware}", d.name));
        lines.push(format!("  atomics {}, {} in flight", d.atomics, d.limits.rd_atomic));
        lines.push(format!(
            "  regions up to {}, {}",
            number::format_bytes(d.limits.region_len),
            number::format_count(d.limits.queue_pairs.into(), "queue pair", "queue pairs")
        ));
        for p in &d.ports {
            lines.push(format!("  port {}: {}, {}, MTU {}", p.number, p.state, p.link, p.active_mtu));
            lines.extend(p.gids.iter().map(|gid| format!("    {gid}")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_memory::nic::verbs::{DeviceLimits, GidEntry, GidType, PortInfo};

    #[test]
    fn a_device_is_shown_with_its_ports_and_gids() {
        let gid = std::net::Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped().octets();
        let shown = [DeviceInfo {
            name: "mlx5_0".into(),
            firmware: "20.31.1014".into(),
            atomics: "device",
            limits: DeviceLimits {
                region_len: 1 << 40,
                regions: 1 << 24,
                queue_pairs: 262_144,
                rd_atomic: 16,
                rd_atomic_sent: 16,
                work_requests: 32_768,
                completions: 4_194_303,
            },
            ports: vec![PortInfo {
                number: 1,
                state: "active",
                link: "ethernet",
                active_mtu: 1024,
                gids: vec![GidEntry { port: 1, index: 3, gid, kind: GidType::RoceV2, interface: None }],
            }],
        }];
        let expected = [
            "mlx5_0 (firmware 20.31.1014)",
            "  atomics device, 16 in flight",
            "  regions up to 1 TiB, 262,144 queue pairs",
            "  port 1: active, ethernet, MTU 1024",
            "    port 1 index 3: 10.9.0.1 (RoCE v2)",
        ];
        assert_eq!(device_lines(&shown), expected);
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(json[0]["ports"][0]["gids"][0], "port 1 index 3: 10.9.0.1 (RoCE v2)");
        assert_eq!(
            (&json[0]["largest_region"], &json[0]["atomics_in_flight"]),
            (&(1u64 << 40).into(), &16.into())
        );
        assert!(device_lines(&[]).join("\n").contains("rdma link add rxe0"));
    }

    #[test]
    fn what_the_kernel_has_is_named_without_the_library() {
        let class = tempfile::tempdir().unwrap();
        assert_eq!(in_kernel(class.path()), "no RDMA device");
        for name in ["mlx5_1", "mlx5_0"] {
            std::fs::create_dir(class.path().join(name)).unwrap();
        }
        assert_eq!(in_kernel(class.path()), "mlx5_0, mlx5_1");
        assert_eq!(in_kernel(&class.path().join("none")), "no RDMA device");
    }
}
