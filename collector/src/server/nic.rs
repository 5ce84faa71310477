//! Opens the configured NIC. This is the only place that chooses between backends.

use std::net::SocketAddr;
use std::sync::Arc;

use dta_memory::nic::soft::{SoftNic, SoftNicConfig};
use dta_memory::nic::verbs::{self, GidWish, VerbsOptions};
use dta_memory::nic::{Nic, NicError, SOFT};

use dta_proto::store::StoreSpec;

use crate::config::{Config, MemoryBacking, RingUse, SoftLink};

/// Opens the configured device: `soft`, or an RDMA device by name.
pub(super) fn open_nic(config: &Config) -> Result<Arc<dyn Nic>, NicError> {
    if config.device != SOFT {
        return verbs::open(&VerbsOptions {
            device: config.device.clone(),
            port: config.verbs.port,
            gid: GidWish { address: config.verbs.address, index: config.verbs.gid_index },
            max_dest_rd_atomic: None,
            counter_file: match &config.memory {
                MemoryBacking::Anonymous => None,
                MemoryBacking::Directory(dir) => Some(dir.join("device.counters")),
            },
        });
    }
    let soft = &config.soft;
    let mut nic = SoftNicConfig::new(SocketAddr::new(soft.address, soft.port));
    // Batches may be as long as jumbo frames can carry. Whether the network carries those is for its links to say.
    let longest = config.stores.iter().map(StoreSpec::element_len).max().unwrap_or(0);
    nic.responder.mtu = nic.responder.mtu.max(longest as u32);
    nic.counter_file = match &config.memory {
        MemoryBacking::Anonymous => None,
        MemoryBacking::Directory(dir) => Some(dir.join("nic.counters")),
    };
    nic.faults = soft.faults;
    nic.seed = soft.fault_seed;
    nic.threads = soft.threads;
    nic.ring = soft.ring == RingUse::Auto;
    nic.runs = soft.runs;
    let nic = match &soft.link {
        SoftLink::Udp => SoftNic::with_udp(nic),
        SoftLink::Wire(wire) => {
            nic.mac = soft.mac;
            SoftNic::with_wire(nic, wire)
        }
    };
    Ok(Arc::new(nic?))
}
