//! Which keys the stores for INT contain, and what they stand for.
//!
//! A slot does not name its key. Keys are known from the key directory (list 3 of the events), of which new
//! entries are read whenever an epoch is written.

use std::collections::BTreeMap;
use std::time::Instant;

use dta_export::directory::{Directory, Meaning};
use dta_memory::reader::append::{ListError, Lists, ReadPosition, ReadStart};
use dta_memory::store::ServedStores;
use dta_proto::crc;
use dta_proto::key::Key;
use dta_proto::telemetry::{TelemetryEntry, list, store};

/// Batches of the key directory to read at a time.
const BATCHES: u64 = 1024;

/// Keys that were reported and not forgotten since, by their number in tables, with their meanings.
pub(super) type KnownKeys = BTreeMap<u64, (Key, Meaning)>;

/// The number of a key: 63 bits of a hash.
pub(super) fn id(key: &Key) -> u64 {
    (u64::from(crc::crc32(&key.0)) << 32 | u64::from(crc::crc32c(&key.0))) >> 1
}

/// The part of the key directory that has been read.
#[derive(Default)]
pub(super) struct KeyDirectory {
    directory: Directory,
    /// The generation of the events' memory, and how far it has been read.
    read: Option<(u64, ReadPosition)>,
}

impl KeyDirectory {
    /// Reads what is new: nothing if there is no key directory or it cannot be read.
    pub(super) fn read(&mut self, stores: &ServedStores) -> KnownKeys {
        let events = stores.get(store::EVENTS).ok();
        let lists = events.as_deref().and_then(|events| Some((events.generation, Lists::new(events)?)));
        let has_keys = |lists: &Lists<'_>| lists.list_count() > list::KEYS;
        if let Some((generation, lists)) = lists.filter(|(_, lists)| has_keys(lists))
            && let Err(error) = self.read_new_keys(generation, lists)
        {
            tracing::warn!(%error, "the key directory could not be read");
        }
        let mut known = KnownKeys::default();
        // Looking up a key protects it from being forgotten, so the last one to be reported is looked up last.
        let keys: Vec<Key> = self.directory.known_keys().collect();
        for key in keys.iter().rev() {
            let Some(meaning) = self.directory.resolve_key(key) else { continue };
            known.insert(id(key), (*key, meaning));
            // Some flows are known only by another key.
            if let Some(flow) = meaning.known_flow() {
                known.insert(id(&flow.to_key()), (flow.to_key(), Meaning::Flow(flow)));
            }
        }
        known
    }

    fn read_new_keys(&mut self, generation: u64, lists: Lists<'_>) -> Result<(), ListError> {
        let position = match self.read {
            Some((same, position)) if same == generation => position,
            _ => lists.open_reader(list::KEYS, ReadStart::Oldest)?.read_position(),
        };
        let (mut reader, mut batches) = (lists.resume_reader(position), 0);
        loop {
            let progress = reader.read(BATCHES, Instant::now(), |_, entries| {
                let entries = entries.chunks_exact(lists.entry_len()).filter_map(TelemetryEntry::parse_bytes);
                entries.for_each(|entry| self.directory.take(&entry));
            })?;
            batches += progress.batches;
            if progress.batches < BATCHES || batches >= lists.ring_batches() {
                break;
            }
        }
        self.read = Some((generation, reader.read_position()));
        Ok(())
    }
}
