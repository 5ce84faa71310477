//! The primitives made from a batch of reports, until they are executed.

use dta_proto::flow_record;
use dta_proto::key::Key;
use dta_proto::telemetry::{ENTRY_LEN, VALUE_LEN};
use dta_proto::wire::dta::DtaBody;

use super::seen::mix_to_u64;

/// A key-write of a value of the usual length.
#[derive(Clone, Copy, Debug)]
struct ValueWrite {
    key: Key,
    value: [u8; VALUE_LEN],
    store: u16,
}

/// Any other primitive, and the position of its value.
#[derive(Clone, Copy, Debug)]
struct Primitive {
    kind: PrimitiveKind,
    value: u32,
    len: u8,
    store: u16,
}

#[derive(Clone, Copy, Debug)]
enum PrimitiveKind {
    KeyWrite(Key),
    Append(u32),
    Increment(Key, u64),
    Postcard { key: Key, hop: u8, path_length: u8, value: u32 },
}

/// Size of the hash index of key-writes: more than most batches make.
const PLACES: usize = 1 << 13;

/// Primitives: first key-writes of [`VALUE_LEN`] bytes, so that they become frames together, then all others,
/// each in order of creation. The memory is reused.
///
/// A key-write replaces an earlier one of the same key: readers would see only the later value, and many
/// flows report the same links and queues of a switch.
#[derive(Debug)]
pub struct PrimitiveBatch {
    writes: Vec<ValueWrite>,
    others: Vec<Primitive>,
    /// Values of the others, back to back.
    values: Vec<u8>,
    /// Index of the last key-write at each hash place: twice its index in `writes`, or in `others` plus one.
    /// It may be stale, from an earlier batch.
    places: Box<[u32; PLACES]>,
    superseded: usize,
}

impl Default for PrimitiveBatch {
    fn default() -> PrimitiveBatch {
        PrimitiveBatch {
            writes: Vec::new(),
            others: Vec::new(),
            values: Vec::new(),
            places: Box::new([0; PLACES]),
            superseded: 0,
        }
    }
}

/// A key's place among [`PLACES`].
#[inline]
fn hash_place(key: &Key) -> usize {
    let number = u128::from_be_bytes(key.0);
    mix_to_u64(number as u64, (number >> 64) as u64) as usize & (PLACES - 1)
}

impl PrimitiveBatch {
    pub fn len(&self) -> usize {
        self.writes.len() + self.others.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.others.is_empty()
    }

    /// Key-writes that were replaced.
    pub fn superseded(&self) -> usize {
        self.superseded
    }

    pub fn clear(&mut self) {
        self.writes.clear();
        self.others.clear();
        self.values.clear();
        self.superseded = 0;
    }

    /// All of them, each with the id of its store.
    pub fn iter(&self) -> impl Iterator<Item = (u16, DtaBody<'_>)> {
        let writes = self.writes.iter().map(|ValueWrite { key, value, store }| {
            (*store, DtaBody::KeyWrite { redundancy: 0, key: *key, value })
        });
        writes.chain(self.others.iter().map(|made| {
            let value = &self.values[made.value as usize..][..usize::from(made.len)];
            let body = match made.kind {
                PrimitiveKind::KeyWrite(key) => DtaBody::KeyWrite { redundancy: 0, key, value },
                PrimitiveKind::Append(list) => DtaBody::Append { list, value },
                PrimitiveKind::Increment(key, delta) => DtaBody::KeyIncrement { redundancy: 0, key, delta },
                PrimitiveKind::Postcard { key, hop, path_length, value } => {
                    DtaBody::Postcard { key, hop, path_length, value }
                }
            };
            (made.store, body)
        }))
    }

    // Constant lengths, so that these are copied without a call.
    #[inline]
    fn push<const LEN: usize>(&mut self, store: u16, kind: PrimitiveKind, bytes: &[u8; LEN]) {
        let (value, len) = (self.values.len() as u32, LEN as u8);
        self.values.extend_from_slice(bytes);
        self.others.push(Primitive { kind, value, len, store });
    }

    /// Without a store, nothing is made.
    #[inline]
    pub(super) fn key_write(&mut self, store: Option<u16>, key: Key, value: &[u8; VALUE_LEN]) {
        let Some(store) = store else { return };
        let place = &mut self.places[hash_place(&key)];
        if *place & 1 == 0
            && let Some(before) = self.writes.get_mut(*place as usize / 2)
            && (before.store, before.key) == (store, key)
        {
            before.value = *value;
            self.superseded += 1;
            return;
        }
        *place = 2 * self.writes.len() as u32;
        self.writes.push(ValueWrite { key, value: *value, store });
    }

    /// The same with a value of another length, at most 60 bytes.
    #[inline]
    pub(super) fn key_write_of<const LEN: usize>(&mut self, store: Option<u16>, key: Key, value: &[u8; LEN]) {
        let Some(store) = store else { return };
        let place = &mut self.places[hash_place(&key)];
        if *place & 1 == 1
            && let Some(before) = self.others.get(*place as usize / 2)
            && matches!(before.kind, PrimitiveKind::KeyWrite(other) if other == key)
            && (before.store, usize::from(before.len)) == (store, LEN)
        {
            self.values[before.value as usize..][..LEN].copy_from_slice(value);
            self.superseded += 1;
            return;
        }
        *place = 2 * self.others.len() as u32 + 1;
        self.push(store, PrimitiveKind::KeyWrite(key), value);
    }

    #[inline]
    pub(super) fn append_entry(&mut self, store: Option<u16>, list: u32, entry: &[u8; ENTRY_LEN]) {
        if let Some(store) = store {
            self.push(store, PrimitiveKind::Append(list), entry);
        }
    }

    #[inline]
    pub(super) fn append_record(&mut self, store: u16, list: u32, entry: &[u8; flow_record::ENTRY_LEN]) {
        self.push(store, PrimitiveKind::Append(list), entry);
    }

    #[inline]
    pub(super) fn increment(&mut self, store: Option<u16>, key: Key, delta: u64) {
        if let Some(store) = store {
            self.push(store, PrimitiveKind::Increment(key, delta), &[]);
        }
    }

    /// A flow's whole path, one postcard per hop.
    pub(super) fn postcards(&mut self, store: Option<u16>, key: Key, switches: &[u32]) {
        let Some(store) = store else { return };
        let path_length = switches.len() as u8;
        for (hop, switch) in (0..path_length).zip(switches) {
            self.push(store, PrimitiveKind::Postcard { key, hop, path_length, value: *switch }, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn writes(made: &PrimitiveBatch) -> Vec<(u16, Key, Vec<u8>)> {
        let write = |(store, body): (u16, DtaBody<'_>)| match body {
            DtaBody::KeyWrite { key, value, .. } => (store, key, value.to_vec()),
            other => panic!("{other:?}"),
        };
        made.iter().map(write).collect()
    }

    proptest! {
        /// Against a linear search: each key has its last value at the position of its first. Stores and
        /// lengths are distinguished.
        #[test]
        fn the_last_value_of_each_key_is_left(
            batches in prop::collection::vec(prop::collection::vec((0u16..40, 0u16..2, any::<bool>(), any::<u8>()), 0..200), 1..4),
        ) {
            let mut made = PrimitiveBatch::default();
            for batch in batches {
                made.clear();
                let mut left: Vec<(u16, Key, Vec<u8>)> = Vec::new();
                let count = batch.len();
                for (number, store, long, value) in batch {
                    let mut key = Key([0; 16]);
                    key.0[..2].copy_from_slice(&number.to_be_bytes());
                    let len = if long { 60 } else { 12 };
                    match long {
                        true => made.key_write_of(Some(store), key, &[value; 60]),
                        false => made.key_write(Some(store), key, &[value; 12]),
                    }
                    // For one key in another store or length, only the newer is indexed.
                    match left.iter_mut().rev().find(|(_, other, _)| *other == key) {
                        Some(before) if (before.0, before.2.len()) == (store, len) => before.2.fill(value),
                        _ => left.push((store, key, vec![value; len])),
                    }
                }
                prop_assert_eq!(made.len() + made.superseded(), count);
                left.sort_by_key(|(_, _, value)| value.len());
                prop_assert_eq!(writes(&made), left);
            }
        }
    }

    #[test]
    fn values_come_first_and_in_a_row() {
        let (key, mut made) = (|number: u8| Key([number; 16]), PrimitiveBatch::default());
        for number in 0..3 {
            made.append_entry(Some(1), 0, &[number; ENTRY_LEN]);
            made.key_write_of(Some(2), key(number), &[number; 60]);
            made.key_write(Some(3), key(10 + number), &[number; VALUE_LEN]);
        }
        let stores: Vec<_> = made.iter().map(|(store, _)| store).collect();
        assert_eq!((stores, made.len()), (vec![3, 3, 3, 1, 2, 1, 2, 1, 2], 9));
    }

    #[test]
    fn keys_of_one_place_do_not_replace_each_other() {
        let key = |number: u32| Key(u128::from(number).to_be_bytes());
        let same = (1..).find(|number| hash_place(&key(*number)) == hash_place(&key(0)));
        let (a, b) = (key(0), key(same.unwrap()));
        let mut made = PrimitiveBatch::default();
        for (key, value) in [(a, 1), (b, 2), (a, 3), (a, 4)] {
            made.key_write(Some(7), key, &[value; 12]);
        }
        let expected = [(a, 1), (b, 2), (a, 4)].map(|(key, value)| (7, key, vec![value; 12]));
        assert_eq!((writes(&made), made.superseded()), (expected.to_vec(), 1));
    }
}
