//! What keys stand for. The keys of an IPv6 flow, of a hop of a flow and of the drops of a flow are CRCs, and only
//! the key directory (list 3 of the events) says what went into them.
//!
//! A directory is limited. When it is full, the key that was reported or looked up longest ago is forgotten, and
//! counted. The translator reports each key again with its keep-alive, which brings a forgotten one back.

use std::collections::BTreeSet;

use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{self, Location, Means, TelemetryEntry};
use lru::LruCache;

/// Default number of keys in a directory: some 30 megabytes if it is full.
pub const DEFAULT_CAPACITY: usize = 262_144;

/// What a key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// A flow: this key has its path, latency and reports.
    Flow(Flow),
    /// One hop of a flow (`hlat`): the key has its latency.
    Hop {
        /// The flow; `None` if only its key is known.
        flow: Option<Flow>,
        flow_key: Key,
        switch: u32,
    },
    /// Drops of a flow for a reason (`fdrp`).
    FlowDrops {
        /// The flow; `None` if only its key is known.
        flow: Option<Flow>,
        flow_key: Key,
        reason: DropReason,
    },
    /// A queue (`qocc`, `qcon`); `None` for numbers that were not available.
    Queue { switch: u32, port: Option<u32>, queue: Option<u32> },
    /// An egress port (`util`).
    Port {
        switch: u32,
        /// Egress port; `None` if it was not available.
        port: Option<u32>,
    },
    /// Drops of a switch for a reason (`drop`).
    SwitchDrops { switch: u32, reason: DropReason },
}

impl Meaning {
    pub fn known_flow(&self) -> Option<Flow> {
        match *self {
            Meaning::Flow(flow) => Some(flow),
            Meaning::Hop { flow, .. } | Meaning::FlowDrops { flow, .. } => flow,
            Meaning::Queue { .. } | Meaning::Port { .. } | Meaning::SwitchDrops { .. } => None,
        }
    }

    /// The switch, port and queue that it is about.
    pub fn location(&self) -> Location {
        let at = |switch| Location { switch: Some(switch), ..Location::default() };
        match *self {
            Meaning::Flow(_) | Meaning::FlowDrops { .. } => Location::default(),
            Meaning::Hop { switch, .. } | Meaning::SwitchDrops { switch, .. } => at(switch),
            Meaning::Queue { switch, port, queue } => Location { port, queue, ..at(switch) },
            Meaning::Port { switch, port } => Location { port, ..at(switch) },
        }
    }

    /// Why packets were dropped, if this is about drops.
    pub fn drop_reason(&self) -> Option<DropReason> {
        match *self {
            Meaning::FlowDrops { reason, .. } | Meaning::SwitchDrops { reason, .. } => Some(reason),
            Meaning::Flow(_) | Meaning::Hop { .. } | Meaning::Queue { .. } | Meaning::Port { .. } => None,
        }
    }
}

/// A bounded map of what keys stand for. Not shared: each reader of the lists owns one.
#[derive(Debug)]
pub struct Directory {
    keys: LruCache<Key, Means>,
    capacity: usize,
    forgotten: u64,
}

impl Default for Directory {
    fn default() -> Self {
        Self::new(DEFAULT_CAPACITY)
    }
}

impl Directory {
    /// An empty one for `capacity` keys; at least one. It grows as it learns, up to its capacity.
    pub fn new(capacity: usize) -> Self {
        Self { keys: LruCache::unbounded(), capacity: capacity.max(1), forgotten: 0 }
    }

    /// Learns from an entry of the key directory; ignores other entries.
    pub fn take(&mut self, entry: &TelemetryEntry) {
        if let TelemetryEntry::Key { key, means } = entry {
            self.remember_key(*key, *means);
        }
    }

    pub fn remember_key(&mut self, key: Key, means: Means) {
        self.keys.put(key, means);
        if self.keys.len() > self.capacity {
            self.keys.pop_lru();
            self.forgotten += 1;
        }
    }

    /// What a key stands for; `None` if neither the key nor the directory says. A hop of an unknown IPv6 flow has a
    /// meaning without a flow. Keeps the key from being forgotten.
    pub fn resolve_key(&mut self, key: &Key) -> Option<Meaning> {
        if let Some(own) = of_itself(key) {
            // Only to keep it from being forgotten.
            self.keys.promote(key);
            return Some(own);
        }
        match *self.keys.get(key)? {
            Means::Itself | Means::Name(_) => None,
            Means::Flow(flow) => Some(Meaning::Flow(flow)),
            Means::Hop(flow_key, number) => {
                let flow = self.flow_of_key(&flow_key);
                Some(match key.0.last_chunk::<4>() {
                    Some(b"fdrp") => {
                        Meaning::FlowDrops { flow, flow_key, reason: DropReason::from_bits(number) }
                    }
                    _ => Meaning::Hop { flow, flow_key, switch: number },
                })
            }
            Means::Leaves { flow: flow_key, switch, .. } => {
                Some(Meaning::Hop { flow: self.flow_of_key(&flow_key), flow_key, switch })
            }
        }
    }

    /// Where the flow leaves its hop, and when that was reported; `None` if unknown. The inner port is `None` if the
    /// switch does not report it.
    pub fn egress_port(&self, key: &Key) -> Option<(u64, Option<u32>)> {
        match self.keys.peek(key)? {
            Means::Leaves { port, time, .. } => Some((*time, *port)),
            _ => None,
        }
    }

    /// The name of an interface, as the switch reports it.
    pub fn interface(&self, switch: u32, port: u32) -> Option<String> {
        match self.keys.peek(&telemetry::interface_name_key(switch, port))? {
            Means::Name(name) => Some(name.to_lossy_string()),
            _ => None,
        }
    }

    /// The interfaces with reports, as switch and port.
    pub fn known_interfaces(&self) -> BTreeSet<(u32, u32)> {
        let is_named = |key: &Key| key.0.last_chunk::<4>() == Some(b"ifnm");
        let interface = |key: Key| match of_itself(&key) {
            Some(Meaning::Port { switch, port: Some(port) }) => Some((switch, port)),
            _ => is_named(&key).then(|| (word_of_key(&key, 0), word_of_key(&key, 4))),
        };
        self.known_keys().filter_map(interface).collect()
    }

    /// The flow of this key: an IPv4 key contains its flow, an IPv6 one must be in the directory. Keeps the key from
    /// being forgotten.
    pub fn flow_of_key(&mut self, key: &Key) -> Option<Flow> {
        if let Some(Means::Flow(flow)) = self.keys.get(key) {
            return Some(*flow);
        }
        key.to_ipv4_flow()
    }

    /// Every key that was reported and is remembered, including those that contain their meaning; the most recently
    /// reported or looked up first.
    pub fn known_keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.keys.iter().map(|(key, _)| *key)
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Keys that were forgotten because there was no room.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

/// What a key says without a directory.
pub fn of_itself(key: &Key) -> Option<Meaning> {
    let word = |at| word_of_key(key, at);
    let known = |number: u32| Some(number).filter(|number| *number != u32::MAX);
    match key.0.last_chunk::<4>() {
        Some(b"qocc" | b"qcon") => {
            Some(Meaning::Queue { switch: word(0), port: known(word(4)), queue: known(word(8)) })
        }
        Some(b"util") => Some(Meaning::Port { switch: word(0), port: known(word(4)) }),
        Some(b"drop") => {
            let reason = DropReason::from_bytes(word(4).to_be_bytes());
            Some(Meaning::SwitchDrops { switch: word(0), reason })
        }
        _ => key.to_ipv4_flow().map(Meaning::Flow),
    }
}

/// Four bytes of a key, as a number.
fn word_of_key(key: &Key, at: usize) -> u32 {
    key.0[at..at + 4].iter().fold(0, |all, byte| all << 8 | u32::from(*byte))
}
