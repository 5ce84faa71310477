//! The NIC behind libibverbs: an open device, and the state that outlives it when the device goes and comes back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dta_proto::counter::nic as names;
use tracing::{info, warn};

use super::VerbsOptions;
use super::counters::{CACHED, PortCounters};
use super::error::{VerbsError, cannot_open};
use super::open_device::{OpenDevice, Tallies};
use crate::nic::{
    Access, Device, Immediate, Nic, NicError, QueuePairInfo, QueuePairRequest, QueuePairStatus, Registration,
};
use crate::region::Region;

/// An RDMA device as a collector uses it: regions, and passive queue pairs that are ready to receive.
///
/// When the device is removed (driver reloaded, NIC unplugged, `rdma link delete`), everything made from it is
/// dropped, and each call checks whether it is back. Then [`Nic::epoch`] has risen.
pub struct VerbsNic {
    options: VerbsOptions,
    tallies: Arc<Tallies>,
    epoch: AtomicU64,
    current: Mutex<Current>,
}

struct Current {
    /// `None` while the device is away.
    open: Option<Arc<OpenDevice>>,
    /// Its last known state.
    device: Device,
    counters: PortCounters,
}

impl VerbsNic {
    /// Opens a device, chooses port and GID, and logs them.
    pub fn open(options: &VerbsOptions) -> Result<VerbsNic, VerbsError> {
        let tallies = Arc::new(Tallies::default());
        let open = OpenDevice::open(options, tallies.clone())?;
        let counters = PortCounters::new(&options.device, open.port(), options.counter_file.as_deref())
            .map_err(|source| cannot_open(&options.device, source))?;
        let current = Current { device: open.device(), open: Some(Arc::new(open)), counters };
        Ok(VerbsNic {
            options: options.clone(),
            tallies,
            epoch: AtomicU64::new(0),
            current: Mutex::new(current),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open device; reopens it if it was away.
    fn current(&self) -> Result<Arc<OpenDevice>, VerbsError> {
        let mut current = self.lock();
        if let Some(open) = current.open.clone() {
            if open.is_there() {
                return Ok(open);
            }
            warn!(device = self.options.device, "the RDMA device is gone; its queue pairs and keys are void");
            // Its counters exist until the removal continues, which the kernel may delay until this is closed.
            open.end_queue_pairs();
            std::thread::sleep(CACHED);
            current.counters.read();
            current.open = None;
            self.epoch.fetch_add(1, Ordering::Release);
        }
        let open = Arc::new(OpenDevice::open(&self.options, self.tallies.clone())?);
        info!(device = self.options.device, "the RDMA device is back");
        current.counters.follow(&self.options.device, open.port());
        current.device = open.device();
        current.open = Some(open.clone());
        Ok(open)
    }

    /// Reads the immediates of completed receives as [`Nic::take_immediates`] does, but posts no new receives.
    pub fn read_immediates(&self, out: &mut Vec<Immediate>, timeout: Duration) -> Result<(), NicError> {
        self.current()?.read_immediates(out, timeout)
    }
}

impl Nic for VerbsNic {
    fn device(&self) -> Device {
        self.lock().device.clone()
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn pins_memory(&self) -> bool {
        true
    }

    fn register(&self, region: Arc<Region>, access: Access) -> Result<Registration, NicError> {
        self.current()?.register(region, access)
    }

    fn deregister(&self, rkey: u32) -> Result<(), NicError> {
        self.current()?.deregister(rkey)
    }

    fn create_queue_pair(&self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError> {
        self.current()?.create_queue_pair(request)
    }

    fn destroy_queue_pair(&self, qpn: u32) -> Result<Option<u32>, NicError> {
        self.current()?.destroy_queue_pair(qpn)
    }

    fn queue_pairs(&self) -> Result<Vec<QueuePairStatus>, NicError> {
        self.current()?.queue_pairs()
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let mut all = self.tallies.named().to_vec();
        all.push((names::DEVICE_LOST.of(&[]), self.epoch()));
        all.extend(self.lock().counters.read());
        all
    }

    fn failure(&self) -> Option<String> {
        None
    }

    fn take_immediates(&self, out: &mut Vec<Immediate>, timeout: Duration) -> Result<(), NicError> {
        let open = match self.current() {
            Ok(open) => open,
            Err(_) => {
                // It may be back the next time; callers must not spin until then.
                std::thread::sleep(timeout);
                return Ok(());
            }
        };
        match take(&open, out, timeout) {
            // The device went while this waited.
            Err(_) if !open.is_there() => Ok(()),
            other => other,
        }
    }
}

/// Reads immediates, and reposts their receives.
fn take(open: &OpenDevice, out: &mut Vec<Immediate>, timeout: Duration) -> Result<(), NicError> {
    let before = out.len();
    open.read_immediates(out, timeout)?;
    let mut refill: BTreeMap<u32, u32> = BTreeMap::new();
    for immediate in &out[before..] {
        *refill.entry(immediate.qpn).or_default() += 1;
    }
    for (qpn, count) in refill {
        open.post_receives(qpn, count)?;
    }
    Ok(())
}
