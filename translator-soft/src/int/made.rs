//! The primitives that a batch of reports made, until they are executed.

use dta_proto::key::Key;
use dta_proto::telemetry::ENTRY_LEN;
use dta_proto::wire::dta::Body;

/// One primitive, and where its value is.
#[derive(Clone, Copy, Debug)]
struct Primitive {
    kind: Kind,
    value: u32,
    len: u8,
    store: u16,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    KeyWrite(Key),
    Append(u32),
    Increment(Key, u64),
    Postcard { key: Key, hop: u8, path_length: u8, value: u32 },
}

/// Primitives, in the order in which they were made. The room is used again and again.
#[derive(Debug, Default)]
pub struct Made {
    primitives: Vec<Primitive>,
    /// The values of all of them, one after the other.
    values: Vec<u8>,
}

impl Made {
    /// How many.
    pub fn len(&self) -> usize {
        self.primitives.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.primitives.is_empty()
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.primitives.clear();
        self.values.clear();
    }

    /// All of them, each with the id of its store.
    pub fn iter(&self) -> impl Iterator<Item = (u16, Body<'_>)> {
        self.primitives.iter().map(|made| {
            let value = &self.values[made.value as usize..][..usize::from(made.len)];
            let body = match made.kind {
                Kind::KeyWrite(key) => Body::KeyWrite { redundancy: 0, key, value },
                Kind::Append(list) => Body::Append { list, value },
                Kind::Increment(key, delta) => Body::KeyIncrement { redundancy: 0, key, delta },
                Kind::Postcard { key, hop, path_length, value } => {
                    Body::Postcard { key, hop, path_length, value }
                }
            };
            (made.store, body)
        })
    }

    fn push(&mut self, store: u16, kind: Kind, bytes: &[u8]) {
        let (value, len) = (self.values.len() as u32, bytes.len() as u8);
        self.values.extend_from_slice(bytes);
        self.primitives.push(Primitive { kind, value, len, store });
    }

    /// Values have at most 60 bytes. Nothing is made without a store.
    pub(super) fn key_write(&mut self, store: Option<u16>, key: Key, value: &[u8]) {
        if let Some(store) = store {
            self.push(store, Kind::KeyWrite(key), value);
        }
    }

    pub(super) fn append(&mut self, store: Option<u16>, list: u32, entry: &[u8; ENTRY_LEN]) {
        if let Some(store) = store {
            self.push(store, Kind::Append(list), entry);
        }
    }

    pub(super) fn increment(&mut self, store: Option<u16>, key: Key, delta: u64) {
        if let Some(store) = store {
            self.push(store, Kind::Increment(key, delta), &[]);
        }
    }

    /// The whole path of a flow, a postcard for each hop.
    pub(super) fn postcards(&mut self, store: Option<u16>, key: Key, switches: &[u32]) {
        let Some(store) = store else { return };
        let path_length = switches.len() as u8;
        for (hop, switch) in (0..path_length).zip(switches) {
            self.push(store, Kind::Postcard { key, hop, path_length, value: *switch }, &[]);
        }
    }
}
