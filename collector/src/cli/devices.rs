//! `dta-collector devices`

use std::process::ExitCode;

use serde::Serialize;

use super::output::{self, Output};
use crate::nic::verbs::{self, DeviceInfo, PortInfo};

#[derive(clap::Args)]
pub(super) struct Args {
    /// How to print
    #[arg(long, short, value_enum, default_value_t, env = "DTA_OUTPUT")]
    output: Output,
}

#[derive(Serialize)]
struct Device<'a> {
    name: &'a str,
    firmware: &'a str,
    atomics: &'a str,
    largest_region: u64,
    regions: u32,
    queue_pairs: u32,
    atomics_in_flight: u32,
    ports: Vec<Port<'a>>,
}

#[derive(Serialize)]
struct Port<'a> {
    number: u8,
    state: &'a str,
    link: &'a str,
    mtu: u32,
    gids: Vec<String>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let devices = verbs::devices()?;
    let devices: Vec<Device<'_>> = devices.iter().map(device).collect();
    if args.output == Output::Json {
        output::json(&devices)?;
        return Ok(ExitCode::SUCCESS);
    }
    if devices.is_empty() {
        output::line(
            "no RDMA device; soft-RoCE on a network interface: `rdma link add rxe0 type rxe netdev eth0`, \
             or use the software NIC (--device soft)",
        )?;
    }
    for d in &devices {
        output::line(format!(
            "{}{}: atomics {}, {} in flight, regions up to {}, {} queue pairs",
            d.name,
            if d.firmware.is_empty() { String::new() } else { format!(" (firmware {})", d.firmware) },
            d.atomics,
            d.atomics_in_flight,
            output::bytes(d.largest_region),
            output::count(d.queue_pairs.into())
        ))?;
        for p in &d.ports {
            output::line(format!("  port {}: {}, {}, MTU {}", p.number, p.state, p.link, p.mtu))?;
            for gid in &p.gids {
                output::line(format!("    {gid}"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn device(info: &DeviceInfo) -> Device<'_> {
    Device {
        name: &info.name,
        firmware: &info.firmware,
        atomics: info.atomics,
        largest_region: info.limits.region_len,
        regions: info.limits.regions,
        queue_pairs: info.limits.queue_pairs,
        atomics_in_flight: info.limits.rd_atomic,
        ports: info.ports.iter().map(port).collect(),
    }
}

fn port(info: &PortInfo) -> Port<'_> {
    Port {
        number: info.number,
        state: info.state,
        link: info.link,
        mtu: info.active_mtu,
        gids: info.gids.iter().map(ToString::to_string).collect(),
    }
}
