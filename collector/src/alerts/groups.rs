//! Groups by key, in a table with open addressing that hashes and compares keys in place, inside entries.
//! Groups are numbered without gaps, so that everything known about them can lie in arrays elsewhere.

use std::hash::{BuildHasher, Hasher};

use dta_proto::flow_record::Column;
use foldhash::quality::RandomState;

use super::source::Entry;

/// The columns whose values make up a key.
#[derive(Clone, Debug)]
pub(super) struct KeyColumns {
    parts: Vec<KeyPart>,
    len: usize,
}

/// Where a column is in an entry and in a key.
#[derive(Clone, Copy, Debug)]
struct KeyPart {
    from: usize,
    to: usize,
    len: usize,
}

impl KeyColumns {
    pub(super) fn new<'c>(columns: impl IntoIterator<Item = &'c Column>) -> KeyColumns {
        let (mut parts, mut to) = (Vec::new(), 0);
        for column in columns {
            let len = column.kind.width();
            parts.push(KeyPart { from: column.offset, to, len });
            to += len;
        }
        KeyColumns { parts, len: to }
    }

    /// The hash of an entry's key.
    #[inline]
    pub(super) fn hash_key(&self, hasher: &RandomState, entry: &Entry) -> u64 {
        let mut hash = hasher.build_hasher();
        for part in &self.parts {
            match part.len {
                16 => hash.write_u128(u128::from_ne_bytes(bytes_at(entry, part.from))),
                8 => hash.write_u64(u64::from_ne_bytes(bytes_at(entry, part.from))),
                4 => hash.write_u32(u32::from_ne_bytes(bytes_at(entry, part.from))),
                2 => hash.write_u16(u16::from_ne_bytes(bytes_at(entry, part.from))),
                _ => hash.write_u8(entry[part.from]),
            }
        }
        hash.finish()
    }

    /// Whether a key is that of an entry.
    #[inline]
    fn is_key_of(&self, key: &[u8], entry: &Entry) -> bool {
        self.parts.iter().all(|&KeyPart { from, to, len }| match len {
            16 => bytes_at::<16>(key, to) == bytes_at::<16>(entry, from),
            8 => bytes_at::<8>(key, to) == bytes_at::<8>(entry, from),
            4 => bytes_at::<4>(key, to) == bytes_at::<4>(entry, from),
            2 => bytes_at::<2>(key, to) == bytes_at::<2>(entry, from),
            _ => key[to] == entry[from],
        })
    }
}

/// With a constant length, reading and comparing needs no call.
#[inline]
fn bytes_at<const LEN: usize>(bytes: &[u8], offset: usize) -> [u8; LEN] {
    let mut found = [0; LEN];
    found.copy_from_slice(&bytes[offset..offset + LEN]);
    found
}

/// The numbers of groups, and their keys.
#[derive(Clone, Debug)]
pub(super) struct GroupTable {
    columns: KeyColumns,
    /// Keyed at random: senders of records must not know which keys collide.
    hasher: RandomState,
    len: usize,
    keys: Vec<u8>,
    /// Low half: the group's number plus one; high half: the low half of its key's hash; 0 = free. At most
    /// three quarters full.
    index: Vec<u64>,
}

impl GroupTable {
    pub(super) fn new(columns: KeyColumns) -> GroupTable {
        GroupTable { columns, hasher: RandomState::default(), len: 0, keys: Vec::new(), index: vec![0; 8] }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn key(&self, group: usize) -> &[u8] {
        &self.keys[group * self.columns.len..][..self.columns.len]
    }

    /// The group of an entry.
    #[inline]
    pub(super) fn find(&self, entry: &Entry) -> Result<usize, NewKey> {
        let hash = self.columns.hash_key(&self.hasher, entry) as u32;
        let mut place = hash as usize & (self.index.len() - 1);
        loop {
            let found = self.index[place];
            if found == 0 {
                return Err(NewKey { hash });
            }
            let group = (found as u32 - 1) as usize;
            if (found >> 32) as u32 == hash && self.columns.is_key_of(self.key(group), entry) {
                return Ok(group);
            }
            place = (place + 1) & (self.index.len() - 1);
        }
    }

    /// Adds the group of an entry that has none. Returns its number, which is the next one.
    pub(super) fn add(&mut self, key: NewKey, entry: &Entry) -> usize {
        if (self.len + 1) * 4 > self.index.len() * 3 {
            let entries = std::mem::take(&mut self.index);
            self.index = vec![0; entries.len() * 2];
            entries.into_iter().filter(|entry| *entry != 0).for_each(|entry| self.put_in_index(entry));
        }
        let group = self.len;
        self.len += 1;
        for part in &self.columns.parts {
            self.keys.extend_from_slice(&entry[part.from..part.from + part.len]);
        }
        self.put_in_index(u64::from(key.hash) << 32 | self.len as u64);
        group
    }

    fn put_in_index(&mut self, entry: u64) {
        let mut place = (entry >> 32) as usize & (self.index.len() - 1);
        while self.index[place] != 0 {
            place = (place + 1) & (self.index.len() - 1);
        }
        self.index[place] = entry;
    }

    /// Drops all other groups and renumbers those kept, in order.
    pub(super) fn retain(&mut self, is_kept: &[bool]) {
        let key_len = self.columns.len;
        let mut kept = 0;
        // The new numbers plus one; 0 for groups that are dropped.
        let mut numbers = Vec::with_capacity(self.len);
        for (group, is_kept) in is_kept.iter().enumerate() {
            if *is_kept {
                self.keys.copy_within(group * key_len..(group + 1) * key_len, kept * key_len);
                kept += 1;
            }
            numbers.push(if *is_kept { kept as u64 } else { 0 });
        }
        self.keys.truncate(kept * key_len);
        self.len = kept;
        let entries = std::mem::take(&mut self.index);
        let is_much_larger = kept * 8 < entries.len();
        let len = if is_much_larger { (kept * 2).next_power_of_two().max(8) } else { entries.len() };
        self.index = vec![0; len];
        if is_much_larger {
            self.keys.shrink_to(2 * kept * key_len);
        }
        for entry in entries.into_iter().filter(|entry| *entry != 0) {
            let number = numbers[(entry as u32 - 1) as usize];
            if number != 0 {
                self.put_in_index(entry >> 32 << 32 | number);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = GroupTable::new(self.columns.clone());
    }
}

/// A key that is in no group.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewKey {
    hash: u32,
}

#[cfg(test)]
mod tests {
    use dta_proto::flow_record::{COLUMNS, FlowRecord};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the table with a list of keys while groups are added and some are dropped.
        #[test]
        fn groups_are_found_by_their_keys(
            names in prop::sample::subsequence(vec!["src", "bytes", "vni", "dst-port", "protocol"], 0..=5),
            steps in prop::collection::vec((0u8..200, 0u8..10), 0..400),
        ) {
            let columns: Vec<&Column> = names.iter().map(|name| Column::from_name(name).unwrap()).collect();
            let mut table = GroupTable::new(KeyColumns::new(columns.iter().copied()));
            let mut keys: Vec<Vec<u8>> = Vec::new();
            for (number, step) in steps {
                if step == 0 && number < 20 {
                    let is_kept: Vec<bool> = (0..keys.len()).map(|group| group % 3 != usize::from(number % 3)).collect();
                    table.retain(&is_kept);
                    let mut kept = is_kept.iter();
                    keys.retain(|_| *kept.next().unwrap());
                }
                // Entries that differ in only one column, which may be one that is not part of the key.
                let of = |part: u8| if number % 5 == part { number } else { 7 };
                let entry = FlowRecord {
                    src: std::net::Ipv6Addr::from_bits(u128::from(of(0)) << 64),
                    bytes: of(1).into(),
                    vni: of(2).into(),
                    dst_port: of(3).into(),
                    protocol: of(4),
                    packets: number.into(),
                    ..FlowRecord::EMPTY
                };
                let entry = entry.to_entry();
                let key: Vec<u8> = columns.iter().flat_map(|column| &entry[column.offset..][..column.kind.width()]).copied().collect();
                let known = keys.iter().position(|known| *known == key);
                match table.find(&entry) {
                    Ok(group) => prop_assert_eq!(Some(group), known),
                    Err(new) => {
                        prop_assert_eq!(known, None);
                        prop_assert_eq!(table.add(new, &entry), keys.len());
                        keys.push(key);
                    }
                }
                prop_assert_eq!(table.len(), keys.len());
            }
            for (group, key) in keys.iter().enumerate() {
                prop_assert_eq!(table.key(group), &key[..]);
            }
        }
    }

    #[test]
    fn every_width_of_a_column_is_a_part_of_a_key() {
        let hasher = RandomState::default();
        for column in &COLUMNS {
            let key = KeyColumns::new([column]);
            let entry = FlowRecord::EMPTY.to_entry();
            for byte in 0..key.len {
                let mut other = entry;
                other[column.offset + byte] = 1;
                assert_ne!(key.hash_key(&hasher, &entry), key.hash_key(&hasher, &other), "{}", column.name);
                assert!(!key.is_key_of(&vec![0; key.len], &other), "{}", column.name);
            }
        }
    }
}
