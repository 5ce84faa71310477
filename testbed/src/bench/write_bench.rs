//! The responder of the software NIC in memory and its floor, for the benchmarks `nic` and `chain`.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use dta_memory::nic::soft::{Counter, Responder, ResponderConfig};
use dta_memory::nic::{Access, Endpoint, Purpose, QueuePairInfo, QueuePairRequest, Registration, Transport};
use dta_memory::region::{Pages, Region, RegionHeader, RegionOptions};
use dta_proto::batch::PacketBatch;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::wire::frame::FrameRoute;
use dta_proto::wire::roce::{Bth, ICRC_LEN, Opcode, Psn, Reth, RoceRepr, compute_icrc, has_valid_icrc};

use super::harness::{Rates, Scale, measure_shares, pin_to_current_cpu, thread_cpu_time};
use super::key_write_bench::BATCH;

/// Bytes of a key-write element with a 12-byte value: what one WRITE of [`WriteBench`] carries.
pub(super) const ELEMENT: usize = 16;

const COLLECTOR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const TRANSLATOR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const IOVA: u64 = 1 << 40;
/// Offset of the RETH's address in a packet.
const VA: usize = 40;
/// Packets prefetched together, as in the NIC.
const ASKED_TOGETHER: usize = 16;
/// Batches prepared before the clock starts: few enough to stay in the cache, as packets from a link do.
const READY: usize = 32;

/// A responder with one region and one UC queue pair whose peer is 127.0.0.2; its own address is 127.0.0.1, port
/// 4791.
pub(super) struct Target {
    pub(super) responder: Responder,
    /// The region; its length is a power of two, in huge pages if there are some.
    pub(super) region: Arc<Region>,
    pub(super) registration: Registration,
    pub(super) queue_pair: QueuePairInfo,
}

impl Target {
    /// A target in memory that others may write, too.
    pub(super) fn new(region: Arc<Region>) -> anyhow::Result<Target> {
        let mut responder = Responder::new(ResponderConfig {
            device: "bench".into(),
            ip: COLLECTOR.into(),
            port: dta_memory::nic::ROCE_PORT,
            mtu: 1024,
            max_dest_rd_atomic: 16,
        });
        let registration = responder.register_region(Arc::clone(&region), Access::WRITE)?;
        let queue_pair = responder.create_queue_pair(&QueuePairRequest {
            purpose: Purpose::Write,
            transport: Transport::Uc,
            peer: Endpoint::new(TRANSLATOR.into()),
            peer_qpn: 0x11,
            start_psn: 0,
            access: Access::WRITE,
            receives: 0,
        })?;
        Ok(Target { responder, region, registration, queue_pair })
    }

    pub(super) fn executed_writes(&self) -> u64 {
        self.responder.counts().get(Counter::ExecutedWrite)
    }
}

/// UC WRITE ONLY packets of [`ELEMENT`] bytes to random elements of a region, in batches.
pub(super) struct WriteBench {
    pub(super) target: Target,
    output: PacketBatch,
    batches: Vec<PacketBatch>,
    random: u64,
    psn: u32,
}

impl WriteBench {
    /// A region of `len` bytes (a power of two, at least 4096), and `batch` packets at a time.
    pub(super) fn new(len: u64, batch: usize) -> anyhow::Result<WriteBench> {
        WriteBench::with_region(
            Region::anonymous(len, IOVA.next_multiple_of(len), RegionOptions::default())?,
            batch,
        )
    }

    /// Like [`WriteBench::new`], over the caller's memory.
    pub(super) fn with_region(region: Region, batch: usize) -> anyhow::Result<WriteBench> {
        let target = Target::new(Arc::new(region))?;
        let output = target.responder.answer_batch(8);
        let batches = vec![PacketBatch::with_packet_capacity(batch, 112); READY];
        Ok(WriteBench { target, output, batches, random: 1, psn: 0 })
    }

    /// WRITEs executed so far, not counting the floor's.
    pub(super) fn executed_writes(&self) -> u64 {
        self.target.executed_writes()
    }

    /// Runs at least `writes` WRITEs through the responder. Returns how many, and the CPU time without making the
    /// packets.
    pub(super) fn run(&mut self, writes: u64) -> (u64, Duration) {
        self.time_batches(writes, |target, batch, output| {
            target.responder.process_packets(batch, output, &mut |full| full.clear());
        })
    }

    /// The floor of [`WriteBench::run`]: the iCRC of each packet, and the store of its payload at its address,
    /// batched and prefetched in the same way, and nothing else. Every second turn prefetches for many packets at
    /// once: that is faster with slow memory, and slower otherwise.
    pub(super) fn run_floor(&mut self, writes: u64, turn: u32) -> (u64, Duration) {
        let together = if turn.is_multiple_of(2) { 1 } else { ASKED_TOGETHER };
        self.time_batches(writes, |target, batch, _| {
            let base = target.registration.iova;
            let offset =
                |packet: &[u8]| packet[VA..].first_chunk().map_or(0, |va| u64::from_be_bytes(*va) - base);
            let mut good = 0;
            let mut ahead = batch.iter();
            for (at, packet) in batch.iter().enumerate() {
                if at % together == 0 {
                    ahead
                        .by_ref()
                        .take(together)
                        .for_each(|packet| target.region.prefetch_line(offset(packet)));
                }
                good += usize::from(has_valid_icrc(packet));
            }
            assert_eq!(good, batch.len(), "packets of this module's own");
            for packet in batch.iter() {
                let payload = &packet[packet.len() - ELEMENT - ICRC_LEN..packet.len() - ICRC_LEN];
                let written = target.region.write(offset(packet), payload);
                debug_assert!(written.is_ok());
            }
        })
    }

    fn time_batches(
        &mut self,
        writes: u64,
        mut run: impl FnMut(&mut Target, &PacketBatch, &mut PacketBatch),
    ) -> (u64, Duration) {
        let (mut done, mut took) = (0, Duration::ZERO);
        while done < writes {
            self.make_ready();
            let start = thread_cpu_time();
            for batch in &self.batches {
                run(&mut self.target, batch, &mut self.output);
            }
            took += thread_cpu_time().saturating_sub(start);
            done += self.batches.iter().map(|b| b.len() as u64).sum::<u64>();
        }
        (done, took)
    }

    /// New packets in all batches.
    fn make_ready(&mut self) {
        let Self { target, batches, random, psn, .. } = self;
        let route = FrameRoute::new(TRANSLATOR, COLLECTOR, target.queue_pair.qpn);
        for batch in batches {
            batch.clear();
            while let Some(slot) = batch.next_slot() {
                // A counter scattered by a multiplication (Knuth 6.4), which touches every element once per turn.
                *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let element = (*random).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16;
                let va = target.registration.iova + element * ELEMENT as u64 % target.registration.len;
                let repr = RoceRepr {
                    bth: Bth::new(Opcode::UcWriteOnly, target.queue_pair.qpn, Psn::new(*psn), false),
                    reth: Some(Reth { va, rkey: target.registration.rkey, length: ELEMENT as u32 }),
                    atomic: None,
                    aeth: None,
                    atomic_ack: None,
                    imm: None,
                    payload: &random.to_be_bytes().repeat(2)[..ELEMENT],
                };
                *psn += 1;
                let len = route.write_frame(&repr, slot).unwrap_or_default();
                debug_assert_eq!(
                    compute_icrc(&slot[..len - ICRC_LEN]).to_le_bytes(),
                    slot[len - ICRC_LEN..len]
                );
                batch.commit_packet(len, 0);
            }
        }
    }
}

/// Frames per call: a millisecond or two.
const FRAMES: u64 = 32_768;

pub(super) fn bench_large_region(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let bench = std::cell::RefCell::new(WriteBench::new(scale.memory, BATCH)?);
    let mut handed = 0;
    let rates = measure_shares(
        scale,
        || {
            let share = bench.borrow_mut().run(FRAMES);
            handed += share.0;
            share
        },
        |turn| bench.borrow_mut().run_floor(FRAMES, turn),
    );
    let executed = bench.borrow().executed_writes();
    anyhow::ensure!(executed == handed, "{handed} frames were handed to the NIC, and {executed} executed");
    Ok(rates)
}

/// A store that fits into the caches.
pub(super) fn bench_small_region(scale: &Scale) -> anyhow::Result<Rates> {
    bench_large_region(&Scale { memory: 1 << 22, ..*scale })
}

/// Writes into a store in a file, joined to huge pages, compared with base pages.
pub(super) fn bench_file(scale: &Scale) -> anyhow::Result<Rates> {
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
    let collapsed = joined.collapse_pages(|| false);
    Region::look_up_pages_again([&joined, &base]);
    eprintln!("  {} beside {}", joined.page_kind(), base.page_kind());
    if let Err(error) = collapsed {
        eprintln!("  this kernel did not join all of it: {error}");
    }
    if !matches!(base.page_kind(), Pages::Base4K) {
        eprintln!("  this kernel joins pages of files automatically: both are alike");
    }
    let joined = RefCell::new(WriteBench::with_region(joined, BATCH)?);
    let base = RefCell::new(WriteBench::with_region(base, BATCH)?);
    Ok(measure_shares(scale, || joined.borrow_mut().run(FRAMES), |_| base.borrow_mut().run(FRAMES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_is_executed_and_none_by_the_floor() {
        let mut bench = WriteBench::new(1 << 16, 64).unwrap();
        let (done, _) = bench.run(1);
        assert_eq!((done, bench.executed_writes()), (64 * READY as u64, done));
        for turn in 0..2 {
            bench.run_floor(1, turn);
            assert_eq!(bench.executed_writes(), done);
        }
    }
}
