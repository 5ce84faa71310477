//! Stores leases and statistics in files.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bincode::{Decode, Encode};
use dta_memory::nic::{Endpoint, Purpose};
use dta_proto::list_range::ListRange;
use dta_proto::wire::ethernet::Mac;

use super::lease::{Lease, Leases, RequesterQueuePair};
use super::state::{self, StateError};
use super::statistics::{Nodes, SessionStatistics};

#[derive(Encode, Decode)]
struct Book {
    generation: u64,
    leases: Vec<Stored>,
}

#[derive(Encode, Decode)]
struct Stored {
    name: String,
    generation: u64,
    opened: u64,
    ip: IpAddr,
    mac: Option<[u8; 6]>,
    port: u16,
    /// Whether it is for atomics, its queue pair number, and its start PSN.
    queue_pairs: Vec<(bool, u32, u32)>,
    lease: Option<Duration>,
    stores: Vec<String>,
    /// Name of the store, first list, number of lists.
    lists: Vec<(String, u32, u32)>,
    owner: Option<String>,
}

fn leases_path(dir: &Path) -> PathBuf {
    dir.join("sessions.bin")
}

fn statistics_path(dir: &Path) -> PathBuf {
    dir.join("statistics.bin")
}

pub(super) fn encode_leases(dir: &Path, leases: &Leases) -> Result<Vec<u8>, StateError> {
    let stored = |lease: &Lease| Stored {
        name: lease.name.clone(),
        generation: lease.generation,
        opened: lease.opened,
        ip: lease.translator.ip,
        mac: lease.translator.known_mac().map(|mac| mac.0),
        port: lease.translator.port,
        queue_pairs: lease
            .queue_pairs
            .iter()
            .map(|p| (p.purpose == Purpose::Atomic, p.qpn, p.start_psn))
            .collect(),
        lease: lease.lease,
        stores: lease.stores.clone(),
        lists: lease.lists.iter().map(|l| (l.store.clone(), l.first, l.count)).collect(),
        owner: lease.owner.clone(),
    };
    let book = Book { generation: leases.generation(), leases: leases.iter().map(stored).collect() };
    state::encode_state(&leases_path(dir), &book)
}

pub(super) fn load_leases(dir: &Path, now: Instant) -> Result<Leases, StateError> {
    let Some(book) = state::load::<Book>(&leases_path(dir))? else {
        return Ok(Leases::default());
    };
    let lease = |stored: Stored| Lease {
        name: stored.name,
        generation: stored.generation,
        opened: stored.opened,
        translator: Endpoint {
            ip: stored.ip,
            mac: stored.mac.map(Mac).unwrap_or_default(),
            port: stored.port,
            runs: false,
        },
        queue_pairs: stored
            .queue_pairs
            .into_iter()
            .map(|(atomic, qpn, start_psn)| RequesterQueuePair {
                purpose: if atomic { Purpose::Atomic } else { Purpose::Write },
                qpn,
                start_psn,
            })
            .collect(),
        lease: stored.lease,
        stores: stored.stores,
        lists: stored
            .lists
            .into_iter()
            .map(|(store, first, count)| ListRange { store, first, count })
            .collect(),
        owner: stored.owner,
        from: None,
        expires: None,
    };
    Ok(Leases::from_stored(book.leases.into_iter().map(lease).collect(), book.generation, now))
}

/// Writes what [`encode_leases`] returned.
pub(super) fn write_leases(dir: &Path, bytes: &[u8]) -> Result<(), StateError> {
    state::write_state(&leases_path(dir), bytes)
}

pub(super) fn encode_statistics(dir: &Path, statistics: &SessionStatistics) -> Result<Vec<u8>, StateError> {
    state::encode_state(&statistics_path(dir), statistics.nodes())
}

/// Writes what [`encode_statistics`] returned.
pub(super) fn write_statistics(dir: &Path, bytes: &[u8]) -> Result<(), StateError> {
    state::write_state(&statistics_path(dir), bytes)
}

/// `leases` are the current ones; statistics without a lease belong to ended sessions.
pub(super) fn load_statistics(dir: &Path, leases: &Leases) -> Result<SessionStatistics, StateError> {
    let nodes = state::load::<Nodes>(&statistics_path(dir))?.unwrap_or_default();
    Ok(SessionStatistics::from_stored(nodes, |session| leases.get(session).is_some()))
}
