//! A cache of open data files with their indexes in memory; the least recently used are closed first.

use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;

use crate::data::DataFile;

/// Most files kept open.
const FILES: usize = 64;
/// Most bytes that their indexes may take, unless a single file needs more.
const BYTES: usize = 32 << 20;

#[derive(Default)]
pub(crate) struct Cache(Mutex<CachedFiles>);

struct CachedFiles {
    by_name: LruCache<String, Arc<DataFile>>,
    bytes: usize,
}

impl Default for CachedFiles {
    fn default() -> CachedFiles {
        CachedFiles { by_name: LruCache::unbounded(), bytes: 0 }
    }
}

impl Cache {
    fn lock_files(&self) -> std::sync::MutexGuard<'_, CachedFiles> {
        // A panic leaves nothing in here half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<DataFile>> {
        self.lock_files().by_name.get(name).cloned()
    }

    pub(crate) fn insert_file(&self, name: &str, file: Arc<DataFile>) {
        let mut files = self.lock_files();
        files.bytes += file.memory_bytes();
        if let Some((_, old)) = files.by_name.push(name.to_owned(), file) {
            files.bytes -= old.memory_bytes();
        }
        while files.by_name.len() > FILES || (files.bytes > BYTES && files.by_name.len() > 1) {
            let Some((_, old)) = files.by_name.pop_lru() else { break };
            files.bytes -= old.memory_bytes();
        }
    }

    pub(crate) fn evict_file(&self, name: &str) {
        let mut files = self.lock_files();
        if let Some(old) = files.by_name.pop(name) {
            files.bytes -= old.memory_bytes();
        }
    }
}
