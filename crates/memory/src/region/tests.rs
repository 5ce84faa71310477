use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use dta_proto::store::{StoreKind, StoreSpec};
use proptest::prelude::*;

use super::header::Mismatch;
use super::*;

fn spec(slots: u64) -> StoreSpec {
    StoreSpec {
        id: 7,
        name: "flows".into(),
        kind: StoreKind::KeyWrite { slots, value_len: 12, redundancy: 2, keys: Default::default() },
    }
}

fn open(path: &Path, slots: u64) -> Result<Region, RegionError> {
    Region::open_or_create(path, &RegionHeader::new(spec(slots)), RegionOptions::default())
}

fn mismatch(path: &Path) -> Mismatch {
    match open(path, 256) {
        Err(RegionError::Mismatch { mismatch, path: named }) => {
            assert_eq!(named, path);
            mismatch
        }
        other => panic!("expected a mismatch, got {other:?}"),
    }
}

#[test]
fn anonymous_memory_is_zero() {
    for huge_pages in [true, false] {
        let region = Region::anonymous(4 << 20, 0, RegionOptions { huge_pages }).unwrap();
        let mut bytes = [1; 64];
        region.read((4 << 20) - 64, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 64]);
    }
    assert!(matches!(Region::anonymous(0, 0, RegionOptions::default()), Err(RegionError::Length { .. })));
    assert!(Region::anonymous(1 << 60, 0, RegionOptions::default()).is_err());
}

#[test]
fn pages_have_names() {
    let joined = Pages::Transparent { huge: 509, of: 513 };
    let names = [Pages::Hugetlb(2 << 20), Pages::Hugetlb(1 << 30), joined, Pages::Base4K];
    assert_eq!(
        names.map(|pages| pages.to_string()),
        ["hugetlb 2 MiB", "hugetlb 1024 MiB", "2 MiB pages: 509 of 513", "4 KiB pages"]
    );
}

#[test]
fn bounds_and_alignment_are_checked() {
    let region = Region::anonymous(4096, 0, RegionOptions::default()).unwrap();
    let mut one = [0];
    region.read(4095, &mut one).unwrap();
    region.write(4096, &[]).unwrap();
    for offset in [4096, 4097, u64::MAX, u64::MAX - 1] {
        assert_eq!(region.read(offset, &mut one), Err(AccessError::OutOfRange { offset, len: 1 }));
        assert_eq!(region.write(offset, &one), Err(AccessError::OutOfRange { offset, len: 1 }));
        region.prefetch_line(offset);
    }
    assert!(region.load_u64(4096).is_err());
    assert_eq!(region.load_u64(4089), Err(AccessError::OutOfRange { offset: 4089, len: 8 }));
    assert_eq!(region.fetch_add(12, 1), Err(AccessError::Misaligned { offset: 12 }));
    assert_eq!(region.write(0, &[0; 4097]), Err(AccessError::OutOfRange { offset: 0, len: 4097 }));
}

#[test]
fn atomics_use_host_byte_order() {
    let region = Region::anonymous(4096, 0, RegionOptions::default()).unwrap();
    assert_eq!(region.fetch_add(8, 5).unwrap(), 0);
    assert_eq!(region.fetch_add(8, u64::MAX).unwrap(), 5);
    assert_eq!(region.compare_swap(8, 3, 9).unwrap(), 4);
    assert_eq!(region.compare_swap(8, 4, 9).unwrap(), 4);
    let mut bytes = [0; 8];
    region.read(8, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 9);
    region.store_u64(8, 77).unwrap();
    assert_eq!(region.load_u64(8).unwrap(), 77);
}

proptest! {
    #[test]
    fn bytes_come_back_at_any_alignment(offset in 0u64..64, data in prop::collection::vec(any::<u8>(), 0..200)) {
        let region = Region::anonymous(4096, 0, RegionOptions { huge_pages: false }).unwrap();
        region.write(offset, &data).unwrap();
        let mut whole = vec![0; 4096];
        region.read(0, &mut whole).unwrap();
        let (start, end) = (offset as usize, offset as usize + data.len());
        prop_assert_eq!(&whole[start..end], &data[..]);
        prop_assert!(whole[..start].iter().chain(&whole[end..]).all(|&b| b == 0));
        let mut back = vec![0; data.len()];
        region.read(offset, &mut back).unwrap();
        prop_assert_eq!(back, data);
    }

    #[test]
    fn any_header_bytes_give_a_region_or_an_error(
        // Changing a few bytes leaves most of a header right.
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..128),
            prop::collection::vec(any::<u8>(), 1..3),
            (0usize..20).prop_map(|len| vec![0; len]),
        ],
        at in 0usize..64,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let made = open(&path, 256).unwrap();
        let (header, len) = (made.file_header().unwrap().clone(), made.len());
        made.write(0, &[0x77; 256 * 16]).unwrap();
        drop(made);
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&bytes, at as u64).unwrap();
        let damaged = fs::read(&path).unwrap();
        // A file that is accepted is the whole region as created, and one that is refused stays as it is.
        let is_whole = |region: &Region| -> Result<(), TestCaseError> {
            let mut data = vec![0; 256 * 16];
            prop_assert_eq!((region.file_header(), region.len()), (Some(&header), len));
            region.read(0, &mut data).unwrap();
            prop_assert!(data.iter().all(|&byte| byte == 0x77));
            Ok(())
        };
        let read_only = Region::open_read_only(&path);
        let taken = read_only.is_ok();
        match read_only {
            Ok(region) => is_whole(&region)?,
            Err(RegionError::Mismatch { .. }) => {}
            Err(error) => prop_assert!(false, "{}", error),
        }
        match open(&path, 256) {
            Ok(region) if region.is_preexisting() => is_whole(&region)?,
            // No magic: an interrupted creation, with no data.
            Ok(region) => {
                prop_assert!(!taken && damaged[..8] == [0; 8]);
                prop_assert_eq!(region.load_u64(len - 8).unwrap(), 0);
            }
            Err(RegionError::Mismatch { .. }) => {
                prop_assert!(!taken);
                prop_assert!(fs::read(&path).unwrap() == damaged, "a file that was refused has changed");
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

#[test]
fn a_file_is_found_again_with_its_data() {
    let dir = tempfile::tempdir().unwrap();
    for slots in [256, 1 << 18] {
        let path = dir.path().join(format!("flows-{slots}"));
        let first = open(&path, slots).unwrap();
        assert!(!first.is_preexisting());
        first.write(16, b"abcdefgh").unwrap();
        let last = first.len() - 8;
        first.fetch_add(last, 3).unwrap();
        let (iova, header) = (first.wire_address(), first.file_header().unwrap().clone());
        assert_eq!(iova % first.len(), 0);
        assert_eq!(first.len(), slots * 16);

        // A reader sees writes as they happen, and cannot write.
        let reader = Region::open_read_only(&path).unwrap();
        assert_eq!(reader.load_u64(last).unwrap(), 3);
        first.fetch_add(last, 1).unwrap();
        assert_eq!(reader.load_u64(last).unwrap(), 4);
        assert_eq!(reader.write(0, &[1]), Err(AccessError::ReadOnly));
        assert_eq!(reader.fetch_add(0, 1), Err(AccessError::ReadOnly));
        assert_eq!(reader.file_header(), Some(&header));
        drop(first);

        let again = open(&path, slots).unwrap();
        assert!(again.is_preexisting());
        assert_eq!((again.wire_address(), again.file_header()), (iova, Some(&header)));
        let mut bytes = [0; 8];
        again.read(16, &mut bytes).unwrap();
        assert_eq!((&bytes, again.load_u64(last).unwrap()), (b"abcdefgh", 4));
    }
}

#[test]
fn a_second_collector_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows");
    let first = open(&path, 256).unwrap();
    let error = open(&path, 256).unwrap_err();
    assert!(matches!(error, RegionError::Locked { .. }));
    assert!(error.to_string().contains("another collector"));
    // A holder that lets go a little later is waited for. However slow the machine is, one of these waits is long enough;
    // without any waiting, all would be over before.
    let (begun, opening) = std::sync::mpsc::channel();
    let late = std::thread::spawn(move || {
        opening.recv().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(first);
    });
    begun.send(()).unwrap();
    assert!((0..15).any(|_| open(&path, 256).is_ok()));
    late.join().unwrap();
}

#[test]
fn a_region_is_free_at_once_though_programs_are_started_meanwhile() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::process::Command::new("true").status().unwrap();
            }
        });
        // Each child shares our open files until it executes its program.
        let result = (0..2000).find_map(|_| open(&path, 256).err());
        done.store(true, Ordering::Relaxed);
        assert!(result.is_none(), "{result:?}");
    });
}

#[test]
fn another_store_version_byte_order_or_length_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows");
    let make = || {
        let _ = fs::remove_file(&path);
        drop(open(&path, 256).unwrap());
        fs::OpenOptions::new().write(true).open(&path).unwrap()
    };

    drop(make());
    let error = open(&path, 512).unwrap_err().to_string();
    assert!(error.contains("slots: 256") && error.contains("slots: 512"), "{error}");

    make().write_all_at(&3u32.to_le_bytes(), 8).unwrap();
    assert_eq!(mismatch(&path), Mismatch::Version(3));
    assert!(mismatch(&path).to_string().contains("header version 3"));

    make().write_all_at(&0x0102_0304u32.swap_bytes().to_ne_bytes(), 12).unwrap();
    assert_eq!(mismatch(&path), Mismatch::ByteOrder);

    make().write_all_at(&[0xff], 41).unwrap();
    assert_eq!(mismatch(&path), Mismatch::Damaged("checksum"));

    make().set_len(6000).unwrap();
    assert_eq!(mismatch(&path), Mismatch::Truncated { has: 6000, wants: 4096 + 256 * 16 });
    make().set_len(100).unwrap();
    assert_eq!(mismatch(&path), Mismatch::Truncated { has: 100, wants: 4096 });

    fs::write(&path, b"some other file").unwrap();
    assert_eq!(mismatch(&path), Mismatch::NotARegion);
    assert_eq!(fs::read(&path).unwrap(), b"some other file");
    fs::write(&path, vec![b'x'; 10_000]).unwrap();
    assert_eq!(mismatch(&path), Mismatch::NotARegion);
}

#[test]
fn an_interrupted_creation_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows");
    drop(open(&path, 256).unwrap());
    // Everything but the magic was written.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 8], 0).unwrap();
    file.write_all_at(&[9; 8], 5000).unwrap();
    let region = open(&path, 256).unwrap();
    assert!(!region.is_preexisting());
    let mut bytes = [1; 8];
    region.read(5000 - 4096, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
}

#[test]
fn a_full_file_system_is_an_error_not_a_signal() {
    // A store of 1 TiB.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("flows");
    let free = rustix::fs::statvfs(dir.path()).unwrap();
    let slots = 1 << 36;
    assert!(free.f_frsize * free.f_bavail < slots * 16, "a machine with 1 TiB of shared memory");
    let error = open(&path, slots).unwrap_err();
    assert!(matches!(error, RegionError::Space { .. }), "{error}");
    assert!(!path.exists());
}

#[test]
fn addresses_on_the_wire_are_aligned_and_apart() {
    for len in [4096u64, 1 << 30, 1 << 40, 1 << 44] {
        for generation in [1, 2, 127, 128, 129] {
            assert_eq!(wire_address_for(3, len, generation) % len, 0);
            assert!(wire_address_for(u16::MAX, len, generation).checked_add(len).is_some());
        }
    }
    assert!(wire_address_for(0, 1 << 38, 1) + (1 << 38) <= wire_address_for(1, 1 << 38, 1));
    // All 128 generations of two neighbours, and where the first of them always was.
    let len = 1 << 40;
    let mut all: Vec<u64> = [7, 8]
        .into_iter()
        .flat_map(|store| (1..=128).map(move |g| wire_address_for(store, len, g)))
        .collect();
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0] + len <= pair[1]));
    assert_eq!((wire_address_for(7, 4096, 1), wire_address_for(7, 4096, 129)), (8 << 40, 8 << 40));
}

#[test]
fn every_byte_of_a_header_is_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    drop(open(&path, 256).unwrap());
    let good = fs::read(&path).unwrap();
    let body = u32::from_le_bytes(good[32..36].try_into().unwrap()) as usize;
    for at in 0..40 + body {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            fs::write(&path, &bad).unwrap();
            assert!(open(&path, 256).is_err(), "bit {bit} of byte {at}");
            assert!(Region::open_read_only(&path).is_err(), "bit {bit} of byte {at}, read only");
        }
    }
    // Two bits at once: another offset that a region could have.
    let mut bad = good.clone();
    bad[16..24].copy_from_slice(&(2u64 << 20).to_le_bytes());
    bad.resize((2 << 20) + 4096, 0);
    fs::write(&path, &bad).unwrap();
    assert!(matches!(mismatch(&path), Mismatch::Damaged(_)));
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let other = dir.path().join("other");
    fs::write(&other, "somebody's").unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&other, &link).unwrap();
    for path in [fifo.as_path(), &link, Path::new("/dev/zero"), dir.path()] {
        let path = path.to_owned();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            sender.send([
                open(&path, 256).unwrap_err().to_string(),
                Region::open_plain(&path, 4096).unwrap_err().to_string(),
            ])
        });
        let errors = receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("an answer");
        assert!(errors.iter().all(|t| t.contains("regular file")), "{errors:?}");
    }
    // Readers also follow links, and also do not block.
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(Region::open_read_only(&fifo).unwrap_err().to_string()));
    let error = receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("an answer");
    assert!(error.contains("regular file"), "{error}");
    assert_eq!(fs::read(&other).unwrap(), b"somebody's");
}
