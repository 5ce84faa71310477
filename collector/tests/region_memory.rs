//! What regions do to the rest of the process while they are made, whatever the pool of huge pages holds.
#![allow(unsafe_code)]

use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dta_collector::region::{Region, RegionHeader, RegionOptions};
use dta_proto::store::{StoreKind, StoreSpec};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap_anonymous, msync, munmap};

/// Memory of a neighbour: another thread of the program that knows nothing of regions.
struct Neighbour {
    start: *mut u64,
    len: usize,
}

impl Neighbour {
    fn map(len: usize) -> Neighbour {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start =
            unsafe { mmap_anonymous(null_mut(), len, protection, flags) }.expect("memory for a neighbour");
        Neighbour { start: start.cast(), len }
    }

    /// Its first and last word.
    fn words(&self) -> [*mut u64; 2] {
        [self.start, self.start.wrapping_add(self.len / 8 - 1)]
    }

    fn write(&self, value: u64) {
        for word in self.words() {
            // SAFETY: the word lies in this mapping, which this value alone knows of.
            unsafe { word.write_volatile(value) };
        }
    }

    /// Unmaps it, or fails if somebody else unmapped or replaced it; it is then not unmapped again, for it may be another's by now.
    fn check(self, value: u64) -> Result<(), &'static str> {
        // `msync` says of a hole that it is one, where a read would end the process.
        // SAFETY: asks about a range of addresses and changes nothing in it.
        let there = unsafe { msync(self.start.cast(), self.len, MsyncFlags::ASYNC) };
        there.map_err(|_| "a neighbour's memory was unmapped")?;
        // SAFETY: as in `write`.
        if self.words().map(|word| unsafe { word.read_volatile() }) != [value; 2] {
            return Err("a neighbour's memory was replaced");
        }
        // SAFETY: the mapping is this value's own, which ends here.
        unsafe { munmap(self.start.cast(), self.len) }.map_err(|_| "a neighbour's memory was not unmapped")
    }
}

/// Ends the neighbours however the test ends.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `make` again and again while neighbours map and unmap memory of many sizes and look whether it stays theirs.
fn beside_neighbours(make: impl Fn(u64)) {
    let (done, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let neighbour = &|id: u64| {
        // The largest fill what a region of these tests leaves; the smallest fit anywhere.
        for (n, len) in (0..).zip([64 << 10, 1 << 20, 4 << 20, 6 << 20].into_iter().cycle()) {
            if done.load(Ordering::Relaxed) {
                break;
            }
            let (memory, value) = (Neighbour::map(len), id << 32 | n);
            memory.write(value);
            std::thread::yield_now();
            if let Err(wrong) = memory.check(value) {
                done.store(true, Ordering::Relaxed);
                return Err(wrong);
            }
            rounds.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let neighbours = [1, 2, 3, 4].map(|id| scope.spawn(move || neighbour(id)));
        // However the scheduler shares the processors, the neighbours have their turns too.
        let enough = |n| n >= 1000 && rounds.load(Ordering::Relaxed) >= 4000;
        let end = SetWhenDropped(&done);
        for n in (0..).take_while(|&n| !done.load(Ordering::Relaxed) && !enough(n)) {
            make(n);
        }
        drop(end);
        for neighbour in neighbours {
            assert_eq!(neighbour.join().unwrap(), Ok(()));
        }
    });
}

/// Writes at both ends of a region and reads it back.
fn use_region(region: &Region, value: u64) {
    let last = region.len() - 8;
    region.store_u64(0, value).unwrap();
    region.store_u64(last, value).unwrap();
    std::thread::yield_now();
    assert_eq!([region.load_u64(0).unwrap(), region.load_u64(last).unwrap()], [value; 2]);
}

fn header(slots: u64) -> RegionHeader {
    let kind = StoreKind::KeyWrite { slots, value_len: 12, redundancy: 2 };
    RegionHeader::new(StoreSpec { id: 1, name: "flows".into(), kind })
}

fn open(path: &Path, slots: u64) -> Region {
    Region::open_or_create(path, &header(slots), RegionOptions::default()).unwrap()
}

#[test]
fn anonymous_regions_leave_the_memory_of_others_alone() {
    beside_neighbours(|n| {
        let len = [2 << 20, 4 << 20, 64 << 10][n as usize % 3];
        let options = RegionOptions { huge_pages: n % 4 != 3 };
        use_region(&Region::anonymous(len, 0, options).unwrap(), n);
    });
}

#[test]
fn region_files_leave_the_memory_of_others_alone() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("flows");
    beside_neighbours(|n| {
        // 2 MiB of data after 2 MiB of header, then 64 KiB after 4 KiB.
        let region = open(&path, [1 << 17, 1 << 12][n as usize % 2]);
        use_region(&region, n);
        drop(region);
        std::fs::remove_file(&path).unwrap();
    });
}
