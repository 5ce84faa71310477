//! UC WRITE frames into a store in a file, joined to huge pages, compared with base pages.

use std::cell::RefCell;

use dta_memory::region::{Pages, Region, RegionHeader, RegionOptions};
use dta_proto::store::{StoreKind, StoreSpec};

use super::harness::{Rates, Scale, measure_shares, pin_to_current_cpu};
use super::translator::BATCH;
use super::write_bench::WriteBench;

/// Frames per call: a millisecond or two.
const FRAMES: u64 = 32_768;

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let open = |name: &str| -> anyhow::Result<Region> {
        let kind = StoreKind::KeyWrite {
            slots: scale.memory / 16,
            value_len: 12,
            redundancy: 1,
            keys: Default::default(),
        };
        let header = RegionHeader::new(StoreSpec { id: 1, name: name.into(), kind });
        Ok(Region::open_or_create(folder.path().join(name), &header, RegionOptions::default())?)
    };
    let (joined, base) = (open("joined")?, open("base")?);
    let told = joined.collapse_pages(|| false);
    Region::look_up_pages_again([&joined, &base]);
    eprintln!("  {} beside {}", joined.page_kind(), base.page_kind());
    if let Err(error) = told {
        eprintln!("  this kernel did not join all of it: {error}");
    }
    if !matches!(base.page_kind(), Pages::Base4K) {
        eprintln!("  this kernel joins pages of files automatically: both are alike");
    }
    let joined = RefCell::new(WriteBench::with_region(joined, BATCH)?);
    let base = RefCell::new(WriteBench::with_region(base, BATCH)?);
    Ok(measure_shares(scale, || joined.borrow_mut().run(FRAMES), |_| base.borrow_mut().run(FRAMES)))
}
