//! Reads an append list and checks every batch; the floor is reading the memory and its CRC.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Context;
use dta_memory::reader::append;
use dta_memory::region::RegionOptions;
use dta_memory::store::MemoryBacking;
use dta_memory::store::Store;
use dta_proto::crc;
use dta_proto::layout;
use dta_proto::store::{StoreKind, StoreSpec};

use super::harness::{Rates, Scale, measure_rates, pin_to_current_cpu};

/// Entries of 4 bytes in 64.
const ENTRIES: u64 = 14;
const STEP: u64 = 4096;

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let ring = scale.memory / 16 / 64;
    let kind = StoreKind::Append { lists: 1, ring, batch_len: 64, entry_len: 4, notify: false };
    let spec = StoreSpec { id: 1, name: "bench".into(), kind };
    let store = Store::open(&spec, &MemoryBacking::Anonymous, RegionOptions { huge_pages: true })
        .context("memory for the store")?;
    let mut batch = [0; 64];
    for sequence in 1..=ring as u32 {
        layout::append::encode_batch(
            &mut batch,
            0,
            sequence,
            ENTRIES as u8,
            &[sequence as u8; 4 * ENTRIES as usize],
        );
        store
            .region
            .write(layout::append::batch_offset(0, sequence, ring, 64), &batch)
            .context("inside the store")?;
    }
    let lists = append::Lists::new(&store).context("an append store")?;
    let first = lists.open_reader(0, append::ReadStart::At(1)).context("list 0 is there")?;
    let (mut reader, mut place, mut read_twice) = (first.clone(), 0, false);
    let began = Instant::now();
    let rates = measure_rates(
        scale,
        || {
            let mut sum = 0u64;
            let progress = reader
                .read(STEP, began, |_, entries| sum += u64::from(entries[0]))
                .expect("the store is whole");
            black_box(sum);
            if progress.batches < STEP || reader.next_sequence() > ring as u32 {
                reader = first.clone();
            }
            read_twice |= progress.entries != ENTRIES * progress.batches;
            progress.entries
        },
        || {
            for _ in 0..STEP {
                // The place is inside the ring.
                let _ = store.region.read(64 * place, &mut batch);
                let covered = batch.first_chunk::<61>().expect("61 of 64 bytes");
                black_box(crc::crc32_update_of(crc::crc32(&[0; 4]), covered));
                place = (place + 1) & (ring - 1);
            }
            ENTRIES * STEP
        },
    );
    anyhow::ensure!(!read_twice, "the reader returned other entries than were written");
    Ok(rates)
}
