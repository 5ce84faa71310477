//! Sums by key, in hash tables with open addressing that exceed the caches. Rows are added in batches: what a batch reads of
//! a table is loaded first, so that the processor waits for memory once per batch and not once per row.

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::LazyLock;

use super::FlowSums;

/// Parts of a table, which threads merge in parallel; a power of two.
const SHARDS: usize = 16;
/// Rows added together: more loads than a processor keeps in flight.
const TOGETHER: usize = 64;

/// Random, so that senders cannot provoke collisions; shared, so that tables merge shard by shard.
static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));

#[derive(Clone, Debug)]
pub(super) struct GroupTable {
    key_len: usize,
    seed: u64,
    shards: Vec<Shard>,
    pending: PendingRows,
}

/// Rows that are not in their shards yet; empty except while rows are being added.
#[derive(Clone, Debug)]
struct PendingRows {
    count: usize,
    /// [`TOGETHER`] keys, each padded with zeros.
    keys: Vec<u8>,
    sums: [FlowSums; TOGETHER],
    /// The sums of rows that found no room.
    beyond: FlowSums,
}

/// The groups whose keys' hashes fall into the same shard.
#[derive(Clone, Debug)]
struct Shard {
    /// Bytes that a key takes up: padded with zeros to a multiple of 16.
    stride: usize,
    most: usize,
    keys: Vec<u8>,
    sums: Vec<FlowSums>,
    /// Each entry is a group's number plus one, below the low half of its key's hash; 0 = free. At most three quarters full:
    /// the fewer pages the index takes, the faster it is.
    index: Vec<u64>,
}

impl GroupTable {
    /// A table for keys of `key_len` bytes and about `most` groups.
    pub(super) fn new(key_len: usize, most: usize) -> GroupTable {
        let stride = key_len.next_multiple_of(16).max(16);
        let shard =
            Shard { stride, most: most / SHARDS, keys: Vec::new(), sums: Vec::new(), index: vec![0; 64] };
        let pending = PendingRows {
            count: 0,
            keys: vec![0; stride * TOGETHER],
            sums: [FlowSums::default(); TOGETHER],
            beyond: FlowSums::default(),
        };
        GroupTable { key_len, seed: *SEED, shards: vec![shard; SHARDS], pending }
    }

    pub(super) fn key_len(&self) -> usize {
        self.key_len
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.sums.len()).sum()
    }

    /// Queues sums for the key that `write_key` writes over an old one, until [`GroupTable::add_pending`] at the latest.
    #[inline]
    pub(super) fn push_row(&mut self, sums: FlowSums, write_key: impl FnOnce(&mut [u8])) {
        let PendingRows { count, keys, sums: pending, .. } = &mut self.pending;
        let stride = self.shards[0].stride;
        write_key(&mut keys[*count * stride..][..self.key_len]);
        pending[*count] = sums;
        *count += 1;
        if *count == TOGETHER {
            self.add_pending_rows();
        }
    }

    /// Adds the pushed rows that are still pending. Returns the sums of all rows that found no room because there are too
    /// many groups.
    pub(super) fn add_pending(&mut self) -> FlowSums {
        self.add_pending_rows();
        std::mem::take(&mut self.pending.beyond)
    }

    /// Adds to the sums of these keys. Returns the sums of those that found no room.
    pub(super) fn add_groups<'k>(&mut self, groups: impl Iterator<Item = (&'k [u8], FlowSums)>) -> FlowSums {
        groups.for_each(|(key, sums)| self.push_row(sums, |to| to.copy_from_slice(key)));
        self.add_pending()
    }

    fn add_pending_rows(&mut self) {
        let PendingRows { count, keys, sums, beyond } = &mut self.pending;
        let sums = &sums[..std::mem::take(count)];
        let stride = self.shards[0].stride;
        let mut hashes = [0; TOGETHER];
        for (hash, key) in hashes.iter_mut().zip(keys.chunks_exact(stride)).take(sums.len()) {
            *hash = hash_key(self.seed, key);
        }
        let hashes = &hashes[..sums.len()];
        load_together(hashes.iter().map(|hash| (&self.shards[shard_of(*hash)], *hash as u32)));
        for ((hash, key), sums) in hashes.iter().zip(keys.chunks_exact(stride)).zip(sums) {
            if !self.shards[shard_of(*hash)].add(*hash as u32, key, *sums) {
                beyond.add(*sums);
            }
        }
    }

    /// Adds all groups of other tables with keys of the same length, several shards in parallel. Returns the sums of those
    /// that found no room.
    pub(super) fn merge(&mut self, others: &[&GroupTable]) -> FlowSums {
        let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let groups: usize = others.iter().map(|other| other.len()).sum();
        // Starting a thread takes as long as adding a thousand groups.
        let threads = if groups < 4096 { 1 } else { threads.min(SHARDS) };
        let per_thread = SHARDS.div_ceil(threads);
        let seed = self.seed;
        let merge_part = |first: usize, part: &mut [Shard]| {
            let mut beyond = FlowSums::default();
            for (number, shard) in (first..).zip(part) {
                others.iter().for_each(|other| beyond.add(shard.merge(&other.shards[number], seed)));
            }
            beyond
        };
        let parts = self.shards.chunks_mut(per_thread).enumerate();
        let mut parts = parts.map(|(part, shards)| (part * per_thread, shards));
        let mut beyond = FlowSums::default();
        std::thread::scope(|scope| {
            let own = parts.next();
            let workers: Vec<_> =
                parts.map(|(first, part)| scope.spawn(move || merge_part(first, part))).collect();
            if let Some((first, part)) = own {
                beyond.add(merge_part(first, part));
            }
            workers.into_iter().for_each(|worker| beyond.add(worker.join().expect("a merge does not panic")));
        });
        beyond
    }

    /// All groups; within a shard, in the order of their first rows.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], FlowSums)> {
        debug_assert_eq!(self.pending.count, 0, "rows are still pending");
        self.shards.iter().flat_map(|shard| {
            let keys = shard.keys.chunks_exact(shard.stride).map(|key| &key[..self.key_len]);
            keys.zip(shard.sums.iter().copied())
        })
    }
}

/// The shard of a key, by bits that no index uses.
#[inline]
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

#[inline]
fn hash_key(seed: u64, key: &[u8]) -> u64 {
    let mut hash = seed;
    let (pairs, _) = key.as_chunks::<16>();
    for pair in pairs {
        let pair = u128::from_ne_bytes(*pair);
        let product = u128::from(pair as u64 ^ hash)
            .wrapping_mul(u128::from((pair >> 64) as u64 ^ 0x9e37_79b9_7f4a_7c15 ^ hash.rotate_left(32)));
        hash = (product as u64 ^ (product >> 64) as u64).wrapping_add(0x2d35_8dcc_aa6c_78a5);
    }
    // One product leaves short keys that count up in few shards under some seeds.
    let product = u128::from(hash) * 0xd6e8_feb8_6659_fd93;
    product as u64 ^ (product >> 64) as u64
}

/// Loads what adding rows with these hashes will read, without a branch in between.
#[inline]
fn load_together<'a>(rows: impl Iterator<Item = (&'a Shard, u32)> + Clone) {
    let mut entries = [0; TOGETHER];
    for (entry, (shard, hash)) in entries.iter_mut().zip(rows.clone()) {
        *entry = shard.index[hash as usize & (shard.index.len() - 1)];
    }
    let mut loaded = 0;
    for (entry, (shard, _)) in entries.iter().zip(rows) {
        let group = (*entry as u32 as usize).saturating_sub(1);
        loaded ^= shard.sums.get(group).map_or(0, |sums| sums.flows);
        loaded ^= shard.keys.get(group * shard.stride).map_or(0, |byte| u64::from(*byte));
    }
    black_box(loaded);
}

impl Shard {
    #[inline]
    fn add(&mut self, hash: u32, key: &[u8], sums: FlowSums) -> bool {
        let mut place = hash as usize & (self.index.len() - 1);
        loop {
            let entry = self.index[place];
            if entry == 0 {
                break;
            }
            if (entry >> 32) as u32 == hash {
                let group = entry as u32 as usize - 1;
                if is_equal(&self.keys[group * self.stride..(group + 1) * self.stride], key) {
                    self.sums[group].add(sums);
                    return true;
                }
            }
            place = (place + 1) & (self.index.len() - 1);
        }
        if self.sums.len() == self.most {
            return false;
        }
        self.keys.extend_from_slice(key);
        self.sums.push(sums);
        self.index[place] = u64::from(hash) << 32 | self.sums.len() as u64;
        if self.sums.len() * 4 > self.index.len() * 3 {
            self.grow_index();
        }
        true
    }

    #[cold]
    fn grow_index(&mut self) {
        let mut index = vec![0; self.index.len() * 2];
        for entry in self.index.iter().filter(|entry| **entry != 0) {
            let mut place = (entry >> 32) as usize & (index.len() - 1);
            while index[place] != 0 {
                place = (place + 1) & (index.len() - 1);
            }
            index[place] = *entry;
        }
        self.index = index;
    }

    fn merge(&mut self, other: &Shard, seed: u64) -> FlowSums {
        let mut beyond = FlowSums::default();
        let keys = other.keys.chunks(self.stride * TOGETHER);
        for (keys, sums) in keys.zip(other.sums.chunks(TOGETHER)) {
            let mut hashes = [0; TOGETHER];
            for (hash, key) in hashes.iter_mut().zip(keys.chunks_exact(self.stride)) {
                *hash = hash_key(seed, key) as u32;
            }
            load_together(hashes[..sums.len()].iter().map(|hash| (&*self, *hash)));
            for ((hash, key), sums) in hashes.iter().zip(keys.chunks_exact(self.stride)).zip(sums) {
                if !self.add(*hash, key, *sums) {
                    beyond.add(*sums);
                }
            }
        }
        beyond
    }
}

/// Compares keys without a function call: most are one to three pairs of words.
#[inline]
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let (a, b) = (a.as_chunks::<16>().0, b.as_chunks::<16>().0);
    a.iter().zip(b).all(|(a, b)| u128::from_ne_bytes(*a) == u128::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_evenly_over_shards_whatever_the_seed() {
        for seed in (0..2000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let mut groups = [0; SHARDS];
            for number in 8000..24_000_u32 {
                let mut key = [0; 16];
                key[..4].copy_from_slice(&number.to_be_bytes());
                groups[shard_of(hash_key(seed, &key))] += 1;
            }
            // 1000 each; the standard deviation is 31.
            assert!(groups.iter().all(|groups| (800..=1200).contains(groups)), "{seed:#x}: {groups:?}");
        }
    }
}
