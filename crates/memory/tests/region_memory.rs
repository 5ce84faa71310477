//! What regions do to the rest of the process while they are made, and which pages they get. What
//! is right depends on the pool of huge pages, so `scripts/with-huge-pages` runs this with a pool
//! of none, of too few and of enough.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dta_memory::region::{Pages, Region, RegionError, RegionHeader, RegionOptions};
use dta_proto::store::{StoreKind, StoreSpec};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap_anonymous, msync, munmap};

/// Bytes of a reserved huge page.
const HUGE: usize = 2 << 20;

/// These tests take turns, because they share the machine's one pool of huge pages.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

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
            // SAFETY: the word lies in this mapping, which only this value knows.
            unsafe { word.write_volatile(value) };
        }
    }

    /// Unmaps it, or fails if somebody else unmapped or replaced it; it is then not unmapped again,
    /// for it may be another's by now.
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

/// Calls `make` again and again while neighbours map and unmap memory of many sizes and look
/// whether it stays theirs.
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
        let enough = |n| n >= 300 && rounds.load(Ordering::Relaxed) >= 1000;
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
    let kind = StoreKind::KeyWrite { slots, value_len: 12, redundancy: 2, keys: Default::default() };
    RegionHeader::new(StoreSpec { id: 1, name: "flows".into(), kind })
}

fn open(path: &Path, slots: u64) -> Region {
    Region::open_or_create(path, &header(slots), RegionOptions::default()).unwrap()
}

#[test]
fn anonymous_regions_leave_the_memory_of_others_alone() {
    let _turn = turn();
    beside_neighbours(|n| {
        let len = [2 << 20, 6 << 20, 64 << 10][n as usize % 3];
        let options = RegionOptions { huge_pages: n % 4 != 3 };
        use_region(&Region::anonymous(len, 0, options).unwrap(), n);
    });
}

#[test]
fn region_files_leave_the_memory_of_others_alone() {
    let _turn = turn();
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

/// Free and unpromised huge pages of 2 MiB in the pool. It is read in two steps, between which others may take pages.
fn pool() -> usize {
    let number = |name: &str| {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
        // A kernel without huge pages has none in its pool.
        std::fs::read_to_string(path).map_or(0, |text| text.trim().parse::<usize>().unwrap())
    };
    number("free_hugepages").saturating_sub(number("resv_hugepages"))
}

/// Calls `make`, which gives back all pages that it takes, with what the pool has; again if the
/// pool changed meanwhile, because another program took pages.
fn with_the_pool(make: impl Fn(usize) -> Result<(), String>) {
    let mut result = Err("never called".to_owned());
    for _ in 0..20 {
        let before = pool();
        result = make(before);
        if pool() == before {
            break;
        }
    }
    assert_eq!(result, Ok(()));
}

/// How the kernel backs the memory at `address`: a second reading, besides the region's own.
fn kernels_word(address: usize, len: usize) -> Pages {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let range = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
    };
    let mapping = smaps.lines().skip_while(|line| range(line).is_none_or(|range| !range.contains(&address)));
    let kib = |name: &str| {
        let line =
            mapping.clone().find_map(|line| line.strip_prefix(name)).expect("a mapping with this line");
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    let joined = (kib("AnonHugePages:") + kib("ShmemPmdMapped:")) * 1024 / HUGE;
    match (kib("KernelPageSize:"), joined) {
        (2048, _) => Pages::Hugetlb(HUGE),
        (_, 0) => Pages::Base4K,
        (_, huge) => Pages::Transparent { huge, of: len / HUGE },
    }
}

#[test]
fn anonymous_regions_lie_in_the_pages_that_there_are() {
    let _turn = turn();
    let thp = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    for (huge_pages, pages_wanted) in [(true, 1), (true, 2), (true, 8), (false, 2)] {
        with_the_pool(|pool| {
            let len = pages_wanted * HUGE;
            let region = Region::anonymous(len as u64, 0, RegionOptions { huge_pages }).unwrap();
            use_region(&region, 1);
            let (said, kernel) = (region.page_kind(), kernels_word(region.as_ptr().addr(), len));
            let right = match said {
                Pages::Hugetlb(HUGE) => huge_pages && pool >= pages_wanted,
                Pages::Hugetlb(_) => false,

                Pages::Transparent { .. } => huge_pages && pool < pages_wanted && !thp.contains("[never]"),
                // Transparent ones are the kernel's to give or not, whatever the setting.
                Pages::Base4K => !huge_pages || pool < pages_wanted,
            };
            let case = format!("{said} for {len} bytes (huge {huge_pages}, {pool} in the pool)");
            if !right || said != kernel { Err(format!("{case}; the kernel says {kernel}")) } else { Ok(()) }
        });
    }
}

/// Bytes of a store's file: 8 MiB of data after 2 MiB of header.
const FILE: usize = 10 << 20;
const SLOTS: u64 = 1 << 19;

/// Asks the kernel to join all pages of a region. Whether it can: on a kernel that cannot, pages
/// stay as they were.
fn collapse(region: &Region) -> bool {
    let done = region.collapse_pages(|| false);
    Region::look_up_pages_again([region]);
    assert!(!region.wants_collapse(), "it is tried once");
    match done {
        Ok(()) => true,
        Err(error) => {
            println!("the kernel did not join all pages: {error}");
            if matches!(Errno::from_io_error(&error), Some(Errno::INVAL | Errno::NOSYS)) {
                assert_eq!(region.page_kind(), Pages::Base4K);
            }
            false
        }
    }
}

#[test]
fn a_region_file_is_joined_to_huge_pages_while_it_is_written_and_nothing_is_lost() {
    let _turn = turn();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("flows");
    let region = open(&path, SLOTS);
    let words = region.len() / 8;
    let reader = Region::open_read_only(&path).unwrap();
    for word in 0..words {
        region.store_u64(word * 8, word).unwrap();
    }
    let done = AtomicBool::new(false);
    let (joined, rounds) = std::thread::scope(|scope| {
        let (region, done) = (&region, &done);
        let writer = scope.spawn(move || {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) || rounds == 0 {
                for word in (0..words).step_by(64) {
                    region.fetch_add(word * 8, 1 << 32).unwrap();
                }
                rounds += 1;
            }
            rounds
        });
        let end = SetWhenDropped(done);
        let joined = collapse(region);
        drop(end);
        (joined, writer.join().unwrap())
    });
    for word in 0..words {
        let added = if word % 64 == 0 { rounds << 32 } else { 0 };
        assert_eq!(region.load_u64(word * 8).unwrap(), word + added);
        assert_eq!(reader.load_u64(word * 8).unwrap(), word + added);
    }
    assert_eq!(region.page_kind(), kernels_word(region.as_ptr().addr(), FILE));
    if joined {
        // Single pages may stay, if somebody held them just then.
        let Pages::Transparent { huge, of } = region.page_kind() else { panic!("{}", region.page_kind()) };
        assert!(huge >= 1 && of == FILE / HUGE, "{}", region.page_kind());
    }
    // The next one to open it finds it.
    drop((region, reader));
    let again = open(&path, SLOTS);
    assert_eq!((again.is_preexisting(), again.load_u64(8).unwrap()), (true, 1));
}

#[test]
fn joining_ends_when_asked_to_and_leaves_other_regions_alone() {
    let _turn = turn();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let region = open(&dir.path().join("flows"), SLOTS);
    let mut asked = 0;
    let done = region.collapse_pages(|| {
        asked += 1;
        asked > 2
    });
    Region::look_up_pages_again([&region]);
    match (done, region.page_kind()) {
        (Ok(()), Pages::Transparent { huge, of }) => assert!((1..=2).contains(&huge) && of == 5),
        (Ok(()), other) => panic!("{other}"),
        // An older kernel, or no memory for one or both.
        (Err(error), pages) => println!("{error}: {pages}"),
    }
    // Asked for base pages, it stays in them.
    let options = RegionOptions { huge_pages: false };
    let small = Region::open_or_create(dir.path().join("small"), &header(SLOTS), options).unwrap();
    assert!(!small.wants_collapse());
    small.collapse_pages(|| panic!("there is nothing to do")).unwrap();
    assert_eq!(small.page_kind(), Pages::Base4K);
}

/// A hugetlbfs of its own.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(options: &str) -> Mount {
        let dir = tempfile::tempdir().unwrap();
        let mount =
            Command::new("mount").args(["-t", "hugetlbfs", "-o", options, "none"]).arg(dir.path()).status();
        assert!(mount.unwrap().success(), "mount -t hugetlbfs -o {options}");
        Mount(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("flows")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
        if !std::thread::panicking() {
            assert!(unmounted.unwrap().success(), "umount");
        }
    }
}

#[test]
#[ignore = "needs root: mounts hugetlbfs"]
fn region_files_on_hugetlbfs_lie_in_reserved_huge_pages_or_are_refused() {
    let _turn = turn();
    // 4 MiB of data after 2 MiB of header.
    let (slots, pages) = (1 << 18, 3);
    with_the_pool(|pool| {
        let mount = Mount::new("pagesize=2M");
        let made = Region::open_or_create(mount.file(), &header(slots), RegionOptions::default());
        match made {
            Ok(region) => {
                assert_eq!((region.page_kind(), region.is_preexisting()), (Pages::Hugetlb(HUGE), false));
                use_region(&region, 5);
                drop(region);
                let again = open(&mount.file(), slots);
                assert!(again.is_preexisting());
                let last = again.len() - 8;
                assert_eq!(again.load_u64(last).unwrap(), 5);
                assert_eq!(Region::open_read_only(mount.file()).unwrap().load_u64(last).unwrap(), 5);
                drop(again);
                let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                assert!(!maps.contains(mount.file().to_str().unwrap()), "a mapping stayed: {maps}");
                if pool < pages { Err(format!("made of {pool} pages")) } else { Ok(()) }
            }
            Err(RegionError::Space { path, .. }) => {
                assert!(!path.exists(), "a half-made file was left");
                if pool < pages { Ok(()) } else { Err(format!("refused with {pool} pages")) }
            }
            Err(error) => panic!("{error}"),
        }
    });
    // The mount's own limit is another reason.
    let mount = Mount::new("pagesize=2M,size=4M");
    let error = Region::open_or_create(mount.file(), &header(slots), RegionOptions::default()).unwrap_err();
    assert!(matches!(error, RegionError::Space { .. }), "{error}");
    assert!(!mount.file().exists());
}

#[test]
#[ignore = "needs root: mounts hugetlbfs"]
fn refused_region_files_leave_the_memory_of_others_alone() {
    let _turn = turn();
    let mount = Mount::new("pagesize=2M");
    beside_neighbours(|n| {
        match Region::open_or_create(mount.file(), &header(1 << 17), RegionOptions::default()) {
            Ok(region) => {
                use_region(&region, n);
                drop(region);
                std::fs::remove_file(mount.file()).unwrap();
            }
            Err(RegionError::Space { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    });
}
