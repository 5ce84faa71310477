//! How workers wake each other.
//!
//! A worker about to wait for its sockets says so, then checks its rings once more. Anyone who hands it
//! something after that sees that it sleeps and sends it a datagram. A worker that is awake gets none: it
//! checks its rings in each turn.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// A worker's own wakeup socket, and its means to wake the others.
pub struct Bell {
    own: UnixDatagram,
    asleep: Arc<AtomicBool>,
    /// By worker; its own entry is unused.
    others: Vec<(UnixDatagram, Arc<AtomicBool>)>,
}

impl Bell {
    pub fn open_for_workers(workers: usize) -> io::Result<Vec<Bell>> {
        let mut owns = Vec::new();
        let mut ropes = Vec::new();
        for _ in 0..workers {
            let (own, rope) = UnixDatagram::pair()?;
            own.set_nonblocking(true)?;
            rope.set_nonblocking(true)?;
            owns.push((own, Arc::new(AtomicBool::new(false))));
            ropes.push(rope);
        }
        let asleep: Vec<_> = owns.iter().map(|(_, asleep)| Arc::clone(asleep)).collect();
        let rope =
            |(rope, asleep): (&UnixDatagram, &Arc<AtomicBool>)| Ok((rope.try_clone()?, Arc::clone(asleep)));
        let bell = |(own, sleeping)| {
            let others = ropes.iter().zip(&asleep).map(rope).collect::<io::Result<_>>()?;
            Ok(Bell { own, asleep: sleeping, others })
        };
        owns.into_iter().map(bell).collect()
    }

    /// Wakes the sleeping ones among these workers: bit n for worker n.
    pub fn wake_workers(&self, workers: u32) {
        if workers == 0 {
            return;
        }
        // What was handed over is visible before checking who sleeps; `Bell::announce_sleep` has the other half.
        fence(Ordering::SeqCst);
        for (number, (rope, asleep)) in self.others.iter().enumerate() {
            if workers >> number & 1 == 1 && asleep.swap(false, Ordering::Relaxed) {
                // A full socket wakes it too.
                let _ = rope.send(&[1]);
            }
        }
    }

    /// Announces that this worker is about to sleep. It must check its rings afterwards, and call
    /// [`Bell::announce_awake`] after sleeping or on finding something.
    pub fn announce_sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub fn announce_awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        // Drained even if nobody has rung: a datagram may arrive after the sleep it was for.
        let mut room = [0];
        while self.own.recv(&mut room).is_ok() {}
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_worker_that_sleeps_is_woken_once_and_one_that_is_awake_is_not() {
        let bells = Bell::open_for_workers(2).unwrap();
        let rings = |bell: &Bell| dta_link::wait_readable(&[bell.as_fd()], Some(Duration::ZERO)).unwrap();
        bells[0].wake_workers(0b10);
        assert!(!rings(&bells[1]));
        bells[1].announce_sleep();
        bells[0].wake_workers(0b01);
        assert!(!rings(&bells[1]), "another one was meant");
        bells[0].wake_workers(0b11);
        bells[0].wake_workers(0b10);
        assert!(rings(&bells[1]));
        bells[1].announce_awake();
        assert!(!rings(&bells[1]));
        bells[1].announce_sleep();
        bells[1].announce_awake();
        bells[0].wake_workers(0b10);
        assert!(!rings(&bells[1]));
    }
}
