//! What the decoders of several threads share.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;

use super::{IDLE, IDLE_OF_ADDRESS};

/// How many sources are followed, and which sender speaks for which sFlow agent.
#[derive(Default)]
pub struct SourceRegistry {
    sources: AtomicUsize,
    /// Increases when a decoder finds no place for a source: silent sources may be at another decoder.
    searches: AtomicU32,
    agents: Mutex<HashMap<IpAddr, AgentOwner, RandomState>>,
}

/// The sender that speaks for an sFlow agent.
struct AgentOwner {
    sender: IpAddr,
    heard: u64,
}

impl SourceRegistry {
    /// Counts one more source, unless there are `most` already.
    pub(super) fn take_place(&self, most: usize) -> bool {
        let one_more = |count: usize| (count < most).then_some(count + 1);
        self.sources.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    pub(super) fn give_back(&self, places: usize) {
        self.sources.fetch_sub(places, Ordering::Relaxed);
    }

    pub(super) fn request_search(&self) {
        self.searches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn last_search(&self) -> u32 {
        self.searches.load(Ordering::Relaxed)
    }

    /// Whether a sender may speak for an agent: the agent's own address always may. Another may if it is
    /// listed or, without a list, if nobody else speaks for the agent.
    pub(super) fn may_speak(&self, now: u64, from: IpAddr, agent: IpAddr, is_listed: Option<bool>) -> bool {
        let is_anothers = || {
            self.agents().get(&agent).is_some_and(|owner| {
                owner.sender != from && now.saturating_sub(owner.heard) < IDLE_OF_ADDRESS
            })
        };
        // An agent's own address takes it back from any other sender.
        agent == from || is_listed.unwrap_or_else(|| !is_anothers())
    }

    /// Records that a sender speaks for an agent.
    pub(super) fn note_agent(&self, now: u64, from: IpAddr, agent: IpAddr) {
        self.agents().insert(agent, AgentOwner { sender: from, heard: now });
    }

    /// Frees an agent for which this sender spoke.
    pub(super) fn forget_agent(&self, from: IpAddr, agent: IpAddr) {
        let mut agents = self.agents();
        if agents.get(&agent).is_some_and(|owner| owner.sender == from) {
            agents.remove(&agent);
        }
    }

    pub(super) fn forget_silent_agents(&self, now: u64) {
        self.agents().retain(|_, owner| now.saturating_sub(owner.heard) < IDLE);
    }

    /// A thread that panicked left the table intact, so poisoning is ignored.
    fn agents(&self) -> MutexGuard<'_, HashMap<IpAddr, AgentOwner, RandomState>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
