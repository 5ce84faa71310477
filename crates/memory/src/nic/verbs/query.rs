//! The devices that exist, and what they can do.

use std::io;

use ibverbs_sys as ibv;

use super::devices::{DeviceInfo, DeviceLimits, PortInfo};
use super::error::{VerbsError, cannot_open, no_kernel_support};
use super::ffi::{self, Context};
use super::gid::{GidEntry, GidType};

/// Opens the device with this name; the error lists the devices that exist.
pub(super) fn open(device: &str) -> Result<Context, VerbsError> {
    match Context::open(device) {
        Ok(Some(context)) => Ok(context),
        Ok(None) => Err(VerbsError::Away(format!(
            "there is no RDMA device `{device}`; there are: {}. `dta-collector devices` lists them; soft-RoCE on a network interface: `rdma link add rxe0 type rxe netdev eth0`",
            present_device_names()
        ))),
        Err(source) if source.raw_os_error() == Some(rustix::io::Errno::NOSYS.raw_os_error()) => {
            Err(no_kernel_support(source))
        }
        Err(source) => Err(cannot_open(device, source)),
    }
}

fn present_device_names() -> String {
    match ffi::device_names() {
        Ok(names) if !names.is_empty() => names.join(", "),
        _ => "none".to_owned(),
    }
}

pub(super) fn list_devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let mut names = ffi::device_names().map_err(no_kernel_support)?;
    names.sort();
    let described =
        |name: &String| describe_device(name, &open(name)?).map_err(|source| cannot_open(name, source));
    names.iter().map(described).collect()
}

pub(super) fn describe_device(name: &str, context: &Context) -> io::Result<DeviceInfo> {
    let attributes = context.attributes()?;
    let firmware: Vec<u8> = attributes.fw_ver.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let mut ports = Vec::new();
    for number in 1..=attributes.phys_port_cnt {
        let port = context.query_port(number)?;
        ports.push(PortInfo {
            number,
            state: port_state_name(port.state),
            link: match u32::from(port.link_layer) {
                ibv::IBV_LINK_LAYER_ETHERNET => "ethernet",
                _ => "infiniband",
            },
            active_mtu: mtu_bytes(port.active_mtu),
            gids: Vec::new(),
        });
    }
    // The table may change in between; the number of ports times the largest table is still enough room.
    let mut room = 0;
    for number in 1..=attributes.phys_port_cnt {
        room += usize::try_from(context.query_port(number)?.gid_tbl_len).unwrap_or(0);
    }
    for entry in context.query_gids(room)? {
        let Ok(number) = u8::try_from(entry.port_num) else { continue };
        if let Some(port) = ports.iter_mut().find(|p| p.number == number) {
            port.gids.push(read_gid_entry(name, number, &entry));
        }
    }
    Ok(DeviceInfo {
        name: name.to_owned(),
        firmware: String::from_utf8_lossy(&firmware).into_owned(),
        atomics: match attributes.atomic_cap {
            ibv::IBV_ATOMIC_NONE => "none",
            ibv::IBV_ATOMIC_HCA => "device",
            _ => "global",
        },
        limits: DeviceLimits {
            region_len: attributes.max_mr_size,
            regions: count(attributes.max_mr),
            queue_pairs: count(attributes.max_qp),
            rd_atomic: count(attributes.max_qp_rd_atom),
            rd_atomic_sent: count(attributes.max_qp_init_rd_atom),
            work_requests: count(attributes.max_qp_wr),
            completions: count(attributes.max_cqe),
        },
        ports,
    })
}

fn read_gid_entry(device: &str, port: u8, entry: &ibv::ibv_gid_entry) -> GidEntry {
    let interface = std::fs::read_to_string(format!(
        "/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/{}",
        entry.gid_index
    ));
    GidEntry {
        port,
        index: entry.gid_index,
        gid: ffi::gid_bytes(entry),
        kind: match entry.gid_type {
            ibv::IBV_GID_TYPE_IB => GidType::InfiniBand,
            ibv::IBV_GID_TYPE_ROCE_V1 => GidType::RoceV1,
            ibv::IBV_GID_TYPE_ROCE_V2 => GidType::RoceV2,
            other => GidType::Other(other),
        },
        interface: interface.ok().map(|name| name.trim().to_owned()),
    }
}

fn port_state_name(state: ibv::ibv_port_state::Type) -> &'static str {
    use ibv::ibv_port_state as s;
    match state {
        s::IBV_PORT_NOP => "no state change",
        s::IBV_PORT_DOWN => "down",
        s::IBV_PORT_INIT => "initialising",
        s::IBV_PORT_ARMED => "armed",
        s::IBV_PORT_ACTIVE => "active",
        s::IBV_PORT_ACTIVE_DEFER => "active (deferred)",
        _ => "unknown",
    }
}

/// Payload bytes of an MTU code of the library.
fn mtu_bytes(mtu: ibv::ibv_mtu) -> u32 {
    match mtu {
        ibv::IBV_MTU_256 => 256,
        ibv::IBV_MTU_512 => 512,
        ibv::IBV_MTU_1024 => 1024,
        ibv::IBV_MTU_2048 => 2048,
        ibv::IBV_MTU_4096 => 4096,
        _ => 0,
    }
}

/// The library's code for an MTU of this many payload bytes.
pub(super) fn mtu_code(bytes: u32) -> ibv::ibv_mtu {
    match bytes {
        4096.. => ibv::IBV_MTU_4096,
        2048..4096 => ibv::IBV_MTU_2048,
        1024..2048 => ibv::IBV_MTU_1024,
        512..1024 => ibv::IBV_MTU_512,
        _ => ibv::IBV_MTU_256,
    }
}
