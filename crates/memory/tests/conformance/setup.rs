//! What a responder is given for a case: regions with their rights, a key that has ended, a queue
//! pair. The same for all, so that what differs is the responder.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use dta_memory::nic::{
    self, Access, Endpoint, NicError, Purpose, QueuePairInfo, QueuePairRequest, Registration,
};
use dta_memory::region::{Region, RegionOptions};

use super::list::{Case, REGIONS, Right, Transport};
use super::run::{Handles, RegionHandle};

pub const RESPONDER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub const REQUESTER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub const PORT: u16 = 4791;
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 77);
const PEER_QPN: u32 = 0x123;

/// The part of a responder that sets up a case.
pub trait Device {
    fn register(&mut self, region: Arc<Region>, access: Access) -> Result<Registration, NicError>;
    fn deregister(&mut self, rkey: u32) -> Result<(), NicError>;
    fn create_queue_pair(&mut self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError>;
}

/// The memory of a case.
#[derive(Default)]
pub struct Memory(Vec<(String, Arc<Region>)>);

impl Memory {
    /// All bytes of a region.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let region = self.region(name);
        let mut bytes = vec![0; region.len() as usize];
        region.read(0, &mut bytes).unwrap();
        bytes
    }

    fn region(&self, name: &str) -> &Region {
        &self.0.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no region `{name}`")).1
    }
}

/// Sets up a device that has nothing yet.
pub fn set_up(device: &mut impl Device, case: &Case) -> (Memory, Handles) {
    let mut memory = Memory::default();
    let mut regions = Vec::new();
    for (n, (name, len, rights)) in REGIONS.into_iter().enumerate() {
        let iova = (n as u64 + 1) << 32;
        let region = Arc::new(Region::anonymous(len, iova, RegionOptions { huge_pages: false }).unwrap());
        let registration = device.register(Arc::clone(&region), access(rights)).unwrap();
        regions.push(RegionHandle { name: name.into(), iova, rkey: registration.rkey });
        memory.0.push((name.into(), region));
    }
    for patch in &case.initial {
        memory.region(&patch.region).write(patch.at as u64, &patch.bytes.0).unwrap();
    }
    let stale = device.register(Arc::clone(&memory.0[0].1), Access::WRITE).unwrap();
    device.deregister(stale.rkey).unwrap();
    let queue_pair = device.create_queue_pair(&request(case)).unwrap();
    let handles = Handles {
        responder: SocketAddrV4::new(RESPONDER, PORT),
        requester: REQUESTER,
        answers_to: SocketAddrV4::new(REQUESTER, PORT),
        stranger: STRANGER,
        qpn: queue_pair.qpn,
        peer_qpn: PEER_QPN,
        regions,
        stale_rkey: stale.rkey,
    };
    (memory, handles)
}

/// The queue pair of a case.
pub fn request(case: &Case) -> QueuePairRequest {
    QueuePairRequest {
        purpose: Purpose::Write,
        transport: match case.transport {
            Transport::Rc => nic::Transport::Rc,
            Transport::Uc => nic::Transport::Uc,
        },
        peer: Endpoint::new(REQUESTER.into()),
        peer_qpn: PEER_QPN,
        start_psn: case.start_psn,
        access: access(&case.access),
        receives: case.receives,
    }
}

fn access(rights: &[Right]) -> Access {
    Access {
        remote_write: rights.contains(&Right::Write),
        remote_read: rights.contains(&Right::Read),
        remote_atomic: rights.contains(&Right::Atomic),
    }
}
