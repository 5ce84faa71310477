//! The stores of a memory directory, whether or not its collector runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dta_memory::region::{Region, RegionError};
use dta_memory::store::Store;

use super::Memory;

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The directory cannot be read.
    #[error("cannot read the memory directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    /// A region file cannot be opened, or is not one.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// There is no region file.
    #[error("there is no region file (*.region) in {}; give the `memory` directory of a collector", .0.display())]
    Empty(PathBuf),
}

impl Memory {
    /// Answers from the region files of a memory directory, opened read-only. When a collector replaces a
    /// file, answers come from the new one.
    ///
    /// # Errors
    /// Names the file and what is wrong with it, or says that there is no region file.
    pub fn open(directory: &Path) -> Result<Self, FilesError> {
        let unreadable = |source| FilesError::Directory { path: directory.to_owned(), source };
        let mut stores = Vec::new();
        for file in std::fs::read_dir(directory).map_err(unreadable)? {
            let path = file.map_err(unreadable)?.path();
            if path.extension().is_none_or(|e| e != "region") {
                continue;
            }
            let region = Region::open_read_only(&path)?;
            let Some(header) = region.file_header() else { continue };
            let (spec, generation) = (header.spec.clone(), header.generation);
            stores.push(Store { spec, region: region.into(), generation });
        }
        if stores.is_empty() {
            return Err(FilesError::Empty(directory.to_owned()));
        }
        stores.sort_by_key(|s| s.spec.id);
        let stores = Arc::new(stores.into_iter().collect());
        Ok(Self { beside: true, ..Self::new(stores) })
    }
}
