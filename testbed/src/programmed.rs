//! Stores on a NIC in this process, and the program by which a translator writes them: what a session sets up,
//! without collector and session. For benchmarks and tests.

use std::net::SocketAddrV4;
use std::sync::Arc;

use dta_memory::nic::{Access, NicError, QueuePairInfo, QueuePairRequest, Registration};
use dta_memory::region::{Region, RegionOptions};
use dta_memory::store::MemoryBacking;
use dta_memory::store::Store;
use dta_proto::buckets::Copies;
use dta_proto::program::{
    self, DataPlaneEntry, Endpoint, Lists, Program, ProgramQueuePair, Purpose, Rkey, Transport,
};
use dta_proto::store::{StoreKind, StoreSpec};

/// The queue pairs between the translator and the NIC.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    /// The translator's address and port, as the NIC knows them.
    pub translator: SocketAddrV4,
    pub nic: SocketAddrV4,
    /// Transport of the writes; atomics take RC.
    pub writes: Transport,
    /// First PSN of each pair.
    pub start_psn: u32,
    /// The translator's numbers for writes and atomics.
    pub local_qpns: [u32; 2],
    /// Receives posted on each pair: WRITEs with immediate that it accepts before anybody reads the immediates.
    pub receives: u32,
}

/// Opens the stores in anonymous memory, registers them, and connects the pairs. Returns the stores and the program.
///
/// # Errors
/// A store that cannot be opened; what the NIC refuses.
pub fn programmed(
    specs: &[StoreSpec],
    options: RegionOptions,
    pairs: &Pairs,
    register: impl Fn(Arc<Region>, Access) -> Result<Registration, NicError>,
    connect: impl Fn(&QueuePairRequest) -> Result<QueuePairInfo, NicError>,
) -> anyhow::Result<(Vec<Store>, Program)> {
    let mut program = Program::default();
    for (purpose, transport, access) in
        [(Purpose::Write, pairs.writes, Access::WRITE), (Purpose::Atomic, Transport::Rc, Access::ATOMIC)]
    {
        program.set(DataPlaneEntry::QueuePair(queue_pair(&connect, pairs, purpose, transport, access)?));
    }
    let stores = specs
        .iter()
        .map(|spec| Store::open(spec, &MemoryBacking::Anonymous, options))
        .collect::<Result<Vec<_>, _>>()?;
    for store in &stores {
        let registration = register(Arc::clone(&store.region), Access::for_store(&store.spec.kind))?;
        program.set(DataPlaneEntry::Store(program::Store {
            collector: 0,
            spec: store.spec.clone(),
            buckets: Copies::default(),
            address: registration.iova,
            length: registration.len,
            rkey: Rkey(registration.rkey),
            generation: 1,
            queue_pair: store.spec.kind.primitive().queue_pair_purpose(),
        }));
        if let StoreKind::Append { lists, .. } = store.spec.kind {
            program.set(DataPlaneEntry::Lists(Lists {
                store: store.spec.id,
                collector: 0,
                first: 0,
                count: lists,
                positions: Vec::new(),
            }));
        }
    }
    Ok((stores, program))
}

fn queue_pair(
    connect: impl Fn(&QueuePairRequest) -> Result<QueuePairInfo, NicError>,
    pairs: &Pairs,
    purpose: Purpose,
    transport: Transport,
    access: Access,
) -> anyhow::Result<ProgramQueuePair> {
    let local_qpn = pairs.local_qpns[purpose as usize];
    let endpoint = |at: SocketAddrV4| Endpoint { port: at.port(), ..Endpoint::new((*at.ip()).into()) };
    let info = connect(&QueuePairRequest {
        purpose,
        transport,
        peer: endpoint(pairs.translator),
        peer_qpn: local_qpn,
        start_psn: pairs.start_psn,
        access,
        receives: pairs.receives,
    })?;
    Ok(ProgramQueuePair {
        collector: 0,
        purpose,
        transport,
        remote_qpn: info.qpn,
        local_qpn,
        source: endpoint(pairs.translator),
        destination: endpoint(pairs.nic),
        tos: 0,
        max_dest_rd_atomic: info.max_dest_rd_atomic.into(),
        generation: 1,
        start_psn: info.expected_psn,
        replaced: None,
    })
}
