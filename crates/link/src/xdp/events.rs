//! Tables that the program at an interface (`ebpf/events.bpf.c`) shares with the decider, which decides which Telemetry
//! Reports say something new. That program and the decider define what the tables hold.

use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[cfg(feature = "xdp")]
use aya::{
    Ebpf,
    maps::{HashMap, Map, MapData},
};

use super::SharedWords;
#[cfg(feature = "xdp")]
use super::program::{INTAKE_LISTENERS, INTAKE_QUEUES};

/// Sizes in 8-byte words; as in `ebpf/events.bpf.c`.
const WORDS_OF_QUEUE: usize = 16;
const WORDS_OF_BUCKET: usize = 4;
const WORDS_OF_TEMPLATE: usize = 129;
const WORDS_OF_SLOT: usize = 3;
const WAYS: u32 = 4;

/// Words of a queue, by what they hold.
const DROPPED: usize = 1;
const DROPPED_BYTES: usize = 2;
const BEYOND: usize = 3;
const PROCESSED: usize = 8;

/// How the program parses a listener's reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportForm {
    /// Telemetry Report v0.5.
    V05 = 1,
    /// Telemetry Report v1.0.
    V10 = 2,
    /// Guessed from the first bytes.
    Guessed = 3,
    /// The same, with v1.0 for reports of no known version.
    GuessedOrV10 = 4,
}

/// How much the tables hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimits {
    /// Values whose intervals are known; 24 bytes each.
    pub values: u32,
    /// Kinds of reports that may be dropped, about one for each flow; 1,040 bytes each. Rounded up to a power of two.
    pub reports: u32,
    /// Switches whose sequence numbers are tracked.
    pub sources: u32,
}

impl EventLimits {
    pub(super) fn buckets(&self) -> u32 {
        self.reports.div_ceil(WAYS).next_power_of_two()
    }

    #[cfg(feature = "xdp")]
    pub(super) fn map_entries(&self) -> [(&'static str, u32); 5] {
        let buckets = self.buckets();
        [
            ("queues", INTAKE_LISTENERS * INTAKE_QUEUES),
            ("buckets", buckets),
            ("templates", buckets * WAYS),
            ("slots", self.values),
            ("sources", self.sources),
        ]
    }
}

/// The tables of one interface.
pub struct EventTables {
    pub words: EventWords,
    pub sequences: SourceSequences,
    pub(super) queues: Arc<SharedWords>,
}

/// The tables that the decider writes.
pub struct EventWords {
    /// One word, which is odd while the other tables are being written.
    pub generation: SharedWords,
    pub buckets: SharedWords,
    pub templates: SharedWords,
    pub slots: SharedWords,
}

#[cfg(feature = "xdp")]
impl EventTables {
    pub(super) fn map(loaded: &mut Ebpf, limits: &EventLimits) -> Result<Self, Box<dyn Error>> {
        let array = |name: &str, words: usize| match loaded.map(name) {
            Some(Map::Array(map)) => Ok(SharedWords::map_array(std::os::fd::AsFd::as_fd(map.fd()), words)?),
            _ => Err(Box::<dyn Error>::from(format!("{name} is missing"))),
        };
        let buckets = limits.buckets() as usize;
        let queues = Arc::new(array("queues", (INTAKE_LISTENERS * INTAKE_QUEUES) as usize * WORDS_OF_QUEUE)?);
        let words = EventWords {
            generation: array("states", 1)?,
            buckets: array("buckets", buckets * WORDS_OF_BUCKET)?,
            templates: array("templates", buckets * WAYS as usize * WORDS_OF_TEMPLATE)?,
            slots: array("slots", limits.values as usize * WORDS_OF_SLOT)?,
        };
        let sources = loaded.take_map("sources").ok_or("sources is missing")?.try_into()?;
        let sequences = SourceSequences { sources, queues: Arc::clone(&queues) };
        Ok(Self { words, sequences, queues })
    }
}

/// What the program counted of one source's sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceSequence {
    /// The switch's number, or its address if it does not give one.
    pub source: Result<u32, Ipv4Addr>,
    /// The part of the source that is numbered separately.
    pub part: u8,
    pub gaps: u64,
    pub filled: u64,
    pub repeats: u64,
    pub restarts: u64,
}

/// The sequence numbers of all reports that passed through the program.
pub struct SourceSequences {
    #[cfg(feature = "xdp")]
    sources: HashMap<MapData, u64, [u64; 6]>,
    queues: Arc<SharedWords>,
}

impl SourceSequences {
    /// All sources, without those that cannot be read.
    #[cfg(feature = "xdp")]
    pub fn read(&self) -> Vec<SourceSequence> {
        let parse = |(key, value): (u64, [u64; 6])| {
            let (number, part, is_address) = (key as u32, (key >> 32) as u8, key >> 40 & 1 == 1);
            let [_, _, gaps, filled, repeats, restarts] = value;
            // In the byte order of the packet.
            let source = if is_address { Err(Ipv4Addr::from(number.to_ne_bytes())) } else { Ok(number) };
            SourceSequence { source, part, gaps, filled, repeats, restarts }
        };
        self.sources.iter().filter_map(Result::ok).map(parse).collect()
    }

    #[cfg(not(feature = "xdp"))]
    pub fn read(&self) -> Vec<SourceSequence> {
        Vec::new()
    }

    /// Reports of sources beyond the limit.
    pub fn beyond_limit(&self) -> u64 {
        self.queues.chunks_exact(WORDS_OF_QUEUE).map(|queue| queue[BEYOND].load(Ordering::Relaxed)).sum()
    }
}

/// A queue's counts for one listener; the program writes some of them, this process the others.
pub(super) struct QueueCounts {
    queues: Arc<SharedWords>,
    at: usize,
}

impl QueueCounts {
    #[cfg(feature = "xdp")]
    pub(super) fn new(queues: &Arc<SharedWords>, listener: u32, queue: u32) -> Self {
        let at = (listener * INTAKE_QUEUES + queue) as usize * WORDS_OF_QUEUE;
        Self { queues: Arc::clone(queues), at }
    }

    /// Number of unchanged reports, and their bytes from the IPv4 header on.
    pub(super) fn dropped(&self) -> (u64, u64) {
        let count = |word: usize| self.queues[self.at + word].load(Ordering::Relaxed);
        (count(DROPPED), count(DROPPED_BYTES))
    }

    /// Publishes that this report and all before it have been processed; what that wrote becomes visible first.
    pub(super) fn publish_processed(&self, number: u32) {
        self.queues[self.at + PROCESSED].store(number.into(), Ordering::Release);
    }
}

#[cfg(feature = "xdp")]
pub(super) use super::program::probe_loading_events as probe_loading;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_as_the_program_has_them() {
        let source = include_str!("../../ebpf/events.bpf.c");
        let number = |name: &str| -> usize {
            let (_, behind) = source.split_once(&format!("#define {name} ")).unwrap();
            behind.lines().next().unwrap().parse().unwrap()
        };
        assert_eq!(WORDS_OF_TEMPLATE, 1 + 2 * number("OPERATIONS"));
        assert_eq!([WORDS_OF_BUCKET, WAYS as usize], [number("WAYS"); 2]);
    }

    #[test]
    fn reports_are_rounded_up_to_a_power_of_two() {
        let buckets = |reports| EventLimits { values: 4, reports, sources: 1 }.buckets();
        assert_eq!([1, 4, 5, 16384].map(buckets), [1, 1, 2, 4096]);
    }
}
