//! Notifications to the service manager that started a daemon: the protocol of `sd_notify(3)`.
//!
//! The manager passes a datagram socket in `NOTIFY_SOCKET`; each message is a few `NAME=VALUE` lines. Without
//! that variable, nothing is sent. Messages that cannot be sent are dropped: no daemon waits for its manager.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

#[derive(Debug, Default)]
pub struct ServiceManager {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The manager that started this process, from its environment: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and
    /// `WATCHDOG_PID`. If it cannot be reached, logs why and acts as if there were none.
    pub fn of_this_process() -> ServiceManager {
        let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else {
            return ServiceManager::default();
        };
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        // A watchdog may be meant only for this process's parent.
        let ours = std::env::var_os("WATCHDOG_PID").is_none()
            || number("WATCHDOG_PID") == Some(std::process::id().into());
        let watchdog = number("WATCHDOG_USEC").filter(|micros| ours && *micros != 0);
        ServiceManager::new(&socket, watchdog.map(Duration::from_micros)).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot notify the service manager");
            ServiceManager::default()
        })
    }

    /// The manager at a socket: a path, or `@` and an abstract name. `watchdog` is the time after which it
    /// considers this process stuck.
    ///
    /// # Errors
    /// The socket is not a unix socket, or the system has no sockets left.
    pub fn new(socket: &OsStr, watchdog: Option<Duration>) -> io::Result<ServiceManager> {
        let address = match socket.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(Path::new(socket))?,
            _ => {
                let what = format!("NOTIFY_SOCKET is {socket:?}, which is neither a path nor @NAME");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        };
        let own = UnixDatagram::unbound()?;
        own.set_nonblocking(true)?;
        Ok(ServiceManager { to: Some((own, address)), watchdog })
    }

    pub fn is_present(&self) -> bool {
        self.to.is_some()
    }

    /// How often to send a sign of life: half of the manager's timeout.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|time| time / 2)
    }

    /// The service is up, or has finished reloading.
    pub fn notify_ready(&self, status: &str) {
        self.send_message(&format!("READY=1\nSTATUS={}", single_line(status)));
    }

    /// One line for people (`systemctl status`).
    pub fn notify_status(&self, status: &str) {
        self.send_message(&format!("STATUS={}", single_line(status)));
    }

    pub fn notify_alive(&self) {
        self.send_message("WATCHDOG=1");
    }

    /// Extends the start timeout by `time` from now, whatever the unit's `TimeoutStartSec=` is.
    pub fn extend_start_timeout(&self, time: Duration) {
        self.send_message(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()));
    }

    /// The configuration is being reloaded; [`ServiceManager::notify_ready`] ends that.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000);
        self.send_message(&format!(
            "RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading the configuration"
        ));
    }

    pub fn notify_stopping(&self) {
        self.send_message("STOPPING=1\nSTATUS=ending");
    }

    fn send_message(&self, message: &str) {
        if let Some((own, address)) = &self.to {
            // If the manager is gone or does not read, the message is lost.
            let _ = own.send_to_addr(message.as_bytes(), address);
        }
    }
}

/// Whether all parts of a daemon make progress: counters that increase as long as they do.
#[derive(Debug)]
pub struct DaemonProgress<const N: usize> {
    patience: Duration,
    seen: Option<[(u64, Instant); N]>,
}

impl<const N: usize> DaemonProgress<N> {
    /// A counter that has not increased for longer than `patience` means that something is stuck.
    pub fn new(patience: Duration) -> DaemonProgress<N> {
        DaemonProgress { patience, seen: None }
    }

    /// Takes the current counters. Returns whether all of them increase.
    pub fn is_advancing(&mut self, counters: [u64; N], now: Instant) -> bool {
        let seen = self.seen.get_or_insert(counters.map(|counter| (counter, now)));
        for ((last, at), counter) in seen.iter_mut().zip(counters) {
            if *last != counter {
                (*last, *at) = (counter, now);
            }
        }
        seen.iter().all(|(_, at)| now.saturating_duration_since(*at) <= self.patience)
    }
}

/// A status is one line: anything after a line end would be read as another message.
fn single_line(status: &str) -> String {
    status.replace(['\n', '\r'], " ")
}

/// Creates this many threads at once and ends them again: runtimes create theirs later, and panic if the
/// system refuses.
///
/// # Errors
/// The system has no room for so many threads; the message says what to do.
pub fn enough_threads(count: usize) -> anyhow::Result<()> {
    try_create_threads(count, |scope, work| thread::Builder::new().spawn_scoped(scope, work).map(drop))
}

type Make = for<'scope, 'env> fn(&'scope thread::Scope<'scope, 'env>, Work<'scope>) -> io::Result<()>;
type Work<'scope> = Box<dyn FnOnce() + Send + 'scope>;

fn try_create_threads(count: usize, make: Make) -> anyhow::Result<()> {
    let (over, ended) = (Mutex::new(false), Condvar::new());
    thread::scope(|scope| {
        let wait = || {
            let over = over.lock().unwrap_or_else(PoisonError::into_inner);
            drop(ended.wait_while(over, |over| !*over));
        };
        let made = (0..count).map(|_| make(scope, Box::new(wait))).enumerate().find_map(|(at, made)| {
            made.err().map(|error| {
                anyhow::anyhow!(
                    "cannot create threads: {error} after {at} of {count}; allow this user or service more (ulimit -u, TasksMax= in systemd, \
                     pids.max of the cgroup)"
                )
            })
        });
        *over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        ended.notify_all();
        made.map_or(Ok(()), Err)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next_message(socket: &UnixDatagram) -> String {
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut bytes = [0; 512];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    fn assert_sends_all(manager: &ServiceManager, socket: &UnixDatagram) {
        manager.notify_ready("two\nlines");
        assert_eq!(next_message(socket), "READY=1\nSTATUS=two lines");
        manager.notify_status("busy");
        assert_eq!(next_message(socket), "STATUS=busy");
        manager.notify_alive();
        assert_eq!(next_message(socket), "WATCHDOG=1");
        manager.extend_start_timeout(Duration::from_secs(2));
        assert_eq!(next_message(socket), "EXTEND_TIMEOUT_USEC=2000000");
        manager.reloading();
        let reloading = next_message(socket);
        assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
        assert_ne!(reloading.lines().nth(1), Some("MONOTONIC_USEC=0"));
        manager.notify_stopping();
        assert_eq!(next_message(socket).lines().next(), Some("STOPPING=1"));
    }

    #[test]
    fn a_path_and_an_abstract_name_are_notified() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::new(path.as_os_str(), Some(Duration::from_secs(3))).unwrap();
        assert_eq!(manager.watchdog_interval(), Some(Duration::from_millis(1500)));
        assert_sends_all(&manager, &socket);

        let name = format!("dta-cli-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let manager = ServiceManager::new(OsStr::new(&format!("@{name}")), None).unwrap();
        assert_eq!(manager.watchdog_interval(), None);
        assert_sends_all(&manager, &socket);
    }

    #[test]
    fn one_counter_that_stands_still_is_no_progress() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut progress = DaemonProgress::new(Duration::from_secs(5));
        assert!(progress.is_advancing([1, 1], at(0)));
        assert!(progress.is_advancing([2, 1], at(5)));
        assert!(!progress.is_advancing([3, 1], at(6)));
        assert!(progress.is_advancing([3, 2], at(7)));
        assert!(!progress.is_advancing([3, 3], at(12)));
    }

    #[test]
    fn a_manager_that_has_gone_or_does_not_read_stops_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::new(path.as_os_str(), None).unwrap();
        for _ in 0..10_000 {
            manager.notify_alive();
        }
        drop(socket);
        manager.notify_alive();
        ServiceManager::default().notify_ready("nobody");
        assert!(!ServiceManager::default().is_present());
        assert!(ServiceManager::new(OsStr::new("vsock:2:1"), None).is_err());
    }

    #[test]
    fn a_lack_of_room_for_threads_is_explained_in_the_error() {
        enough_threads(40).unwrap();
        let error =
            try_create_threads(40, |_, _| Err(io::Error::from_raw_os_error(11))).unwrap_err().to_string();
        assert!(error.contains("cannot create threads") && error.contains("TasksMax="), "{error}");
    }
}
