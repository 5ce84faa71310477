//! The NIC behind libibverbs: an open device, and the state that survives when the device goes and comes back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dta_proto::counter::nic as names;
use tracing::{info, warn};

use super::VerbsOptions;
use super::counters::{CACHED, PortCounters};
use super::error::{VerbsError, cannot_open};
use super::open_device::{OpenDevice, VerbsTallies};
use crate::nic::{
    Access, Device, Endpoint, Immediate, Nic, NicError, QueuePairInfo, QueuePairRequest, QueuePairStatus,
    Registration,
};
use crate::region::Region;

/// An RDMA device as a collector uses it: regions, and passive queue pairs that are ready to receive.
///
/// When the device is removed (driver reloaded, NIC unplugged, `rdma link delete`), everything made from it is
/// dropped, and each call checks whether it is back. If it is, [`Nic::device_epoch`] has increased.
pub struct VerbsNic {
    options: VerbsOptions,
    tallies: Arc<VerbsTallies>,
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
        let tallies = Arc::new(VerbsTallies::default());
        let open = OpenDevice::open(options, tallies.clone())?;
        let counters =
            PortCounters::new(&options.device, open.port_number(), options.counter_file.as_deref())
                .map_err(|source| cannot_open(&options.device, source))?;
        let current = Current { device: open.device_description(), open: Some(Arc::new(open)), counters };
        Ok(VerbsNic {
            options: options.clone(),
            tallies,
            epoch: AtomicU64::new(0),
            current: Mutex::new(current),
        })
    }

    fn lock_current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open device; reopens it if it was away.
    fn current_device(&self) -> Result<Arc<OpenDevice>, VerbsError> {
        let mut current = self.lock_current();
        if let Some(open) = current.open.clone() {
            if open.is_present() {
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
        current.counters.follow_device(&self.options.device, open.port_number());
        current.device = open.device_description();
        current.open = Some(open.clone());
        Ok(open)
    }

    /// Reads the immediates of completed receives as [`Nic::take_immediates`] does, but posts no new receives.
    pub fn read_immediates(&self, out: &mut Vec<Immediate>, timeout: Duration) -> Result<(), NicError> {
        self.current_device()?.read_immediates(out, timeout)
    }
}

impl Nic for VerbsNic {
    fn describe_device(&self) -> Device {
        self.lock_current().device.clone()
    }

    fn endpoint_for_peer(&self, peer: IpAddr) -> Endpoint {
        let current = self.lock_current();
        match &current.open {
            Some(open) => open.endpoint_for_peer(peer),
            None => current.device.endpoint,
        }
    }

    fn device_epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn pins_memory(&self) -> bool {
        true
    }

    fn register_region(&self, region: Arc<Region>, access: Access) -> Result<Registration, NicError> {
        self.current_device()?.register(region, access)
    }

    fn deregister(&self, rkey: u32) -> Result<(), NicError> {
        self.current_device()?.deregister(rkey)
    }

    fn create_queue_pair(&self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError> {
        self.current_device()?.create_queue_pair(request)
    }

    fn destroy_queue_pair(&self, qpn: u32) -> Result<Option<u32>, NicError> {
        self.current_device()?.destroy_queue_pair(qpn)
    }

    fn queue_pairs(&self) -> Result<Vec<QueuePairStatus>, NicError> {
        self.current_device()?.queue_pairs()
    }

    fn named_counters(&self) -> Vec<(String, u64)> {
        let mut all = self.tallies.to_named_counts().to_vec();
        all.push((names::DEVICE_LOST.format_name(&[]), self.device_epoch()));
        all.extend(self.lock_current().counters.read());
        all
    }

    fn fatal_failure(&self) -> Option<String> {
        None
    }

    fn take_immediates(&self, out: &mut Vec<Immediate>, timeout: Duration) -> Result<(), NicError> {
        let open = match self.current_device() {
            Ok(open) => open,
            Err(_) => {
                // It may be back next time; callers must not spin until then.
                std::thread::sleep(timeout);
                return Ok(());
            }
        };
        match take(&open, out, timeout) {
            // The device was removed during the wait.
            Err(_) if !open.is_present() => Ok(()),
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
