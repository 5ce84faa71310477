//! UC WRITE frames into a large region at random; the floor is the CRC and the random store.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Context;
use dta_collector::nic::soft::{Counter, Responder, ResponderConfig};
use dta_collector::nic::{Access, Endpoint, Purpose, QueuePairRequest, Transport};
use dta_collector::region::{Region, RegionOptions};
use dta_link::Batch;
use dta_proto::crc;
use dta_proto::wire::roce::PORT;
use dta_translator::dataplane::bench::KeyWriteBench;

use super::harness::{Rates, Scale, measure, pin};
use super::translator::BATCH;

/// Where the region is on the wire.
pub(super) const IOVA: u64 = 1 << 40;
/// Batches of frames that are made beforehand: more than a cache keeps warm slots for.
const BATCHES: usize = 1024;
/// From the IPv4 header: address and payload of a WRITE ONLY.
const ADDRESS: usize = 20 + 8 + 12;
const PAYLOAD: usize = ADDRESS + 16;

/// A responder with one region and one UC queue pair, as a collector has it.
pub(super) struct Nic {
    pub(super) responder: Responder,
    pub(super) region: Arc<Region>,
    pub(super) rkey: u32,
    pub(super) qpn: u32,
}

pub(super) fn nic(memory: u64) -> anyhow::Result<Nic> {
    let region = Region::anonymous(memory, IOVA, RegionOptions { huge_pages: true })
        .context("memory for the region")?;
    let region = Arc::new(region);
    let mut responder = Responder::new(ResponderConfig {
        device: "bench".into(),
        ip: Ipv4Addr::new(127, 0, 0, 1),
        port: PORT,
        mtu: 1024,
        max_dest_rd_atomic: 16,
    });
    let rkey = responder.register(Arc::clone(&region), Access::WRITE)?.rkey;
    let qpn = responder
        .create_queue_pair(&QueuePairRequest {
            purpose: Purpose::Write,
            transport: Transport::Uc,
            peer: Endpoint::new(Ipv4Addr::new(127, 0, 0, 2).into()),
            peer_qpn: 0x11,
            start_psn: 0,
            access: Access::WRITE,
            receives: 0,
        })?
        .qpn;
    // Every page is there before anything is measured.
    for page in 0..memory / 4096 {
        region.store_u64(page * 4096, 0).context("inside the region")?;
    }
    Ok(Nic { responder, region, rkey, qpn })
}

/// Batches of frames to random slots of a region, made by the translator.
pub(super) fn frames(memory: u64, rkey: u32, qpn: u32, batches: usize) -> Vec<Batch> {
    let mut bench = KeyWriteBench::new(BATCH, memory / 16, (IOVA, rkey), qpn);
    let mut made = Vec::with_capacity(batches);
    bench.run(batches, |frames| {
        let mut batch = Batch::with_packet_capacity(BATCH, 128);
        for frame in frames.iter() {
            batch.push(frame, 0).expect("a batch has room for a batch of frames");
        }
        made.push(batch);
    });
    made
}

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin();
    let Nic { mut responder, region, rkey, qpn } = nic(scale.memory)?;
    let batches = frames(scale.memory, rkey, qpn, BATCHES);
    let mut answers = responder.answer_batch(BATCH);
    let (mut next, mut next_floor, mut asked) = (0, 0, 0);
    let rates = measure(
        scale,
        || {
            for _ in 0..64 {
                responder.process(&batches[next % BATCHES], &mut answers, &mut |full| full.clear());
                next += 1;
            }
            asked += 64 * BATCH as u64;
            64 * BATCH as u64
        },
        || {
            for _ in 0..64 {
                floor(&batches[next_floor % BATCHES], &region);
                next_floor += 1;
            }
            64 * BATCH as u64
        },
    );
    let executed = responder.counts().get(Counter::ExecutedWrite);
    anyhow::ensure!(executed == asked, "{asked} frames were handed to the NIC, and {executed} executed");
    Ok(rates)
}

/// Per frame: its CRC, and its 16 bytes stored where it says, prefetched a batch ahead.
pub(super) fn floor(batch: &Batch, region: &Region) {
    let mut offsets = [0; BATCH];
    for (frame, offset) in batch.iter().zip(&mut offsets) {
        *offset = word(frame, ADDRESS).wrapping_sub(IOVA);
        region.prefetch(*offset);
        std::hint::black_box(crc::crc32(&frame[..frame.len() - 4]));
    }
    for (frame, offset) in batch.iter().zip(&offsets) {
        for half in [0, 8] {
            // The frames are of our own making: their addresses are inside.
            let _ = region.store_u64(offset + half as u64, word(frame, PAYLOAD + half));
        }
    }
}

/// Eight bytes of a frame as a number.
fn word(frame: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|n| frame[at + n]))
}
