//! How workers wake each other.
//!
//! A worker that waits for its sockets says so, and looks at its rings once more. Who hands it something
//! afterwards sees that it sleeps, and sends it a datagram. Who is awake is told nothing: it looks at its
//! rings in each turn.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// What wakes one worker, and by what it wakes the others.
pub struct Bell {
    own: UnixDatagram,
    asleep: Arc<AtomicBool>,
    /// By worker; its own is never rung.
    others: Vec<(UnixDatagram, Arc<AtomicBool>)>,
}

impl Bell {
    /// The bells of so many workers.
    ///
    /// # Errors
    /// No more sockets.
    pub fn all(workers: usize) -> io::Result<Vec<Bell>> {
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

    /// Wakes those of these workers that sleep: bit n for worker n.
    pub fn ring(&self, workers: u32) {
        if workers == 0 {
            return;
        }
        // What was handed over is visible before it is looked who sleeps; `Bell::sleep` has the other half.
        fence(Ordering::SeqCst);
        for (number, (rope, asleep)) in self.others.iter().enumerate() {
            if workers >> number & 1 == 1 && asleep.swap(false, Ordering::Relaxed) {
                // A full socket wakes it as well.
                let _ = rope.send(&[1]);
            }
        }
    }

    /// Says that this worker is going to sleep. It has to look at its rings after this, and to call
    /// [`Bell::wake`] when it has slept, or has found something.
    pub fn sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Says that this worker is awake.
    pub fn wake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        // Looked at even if nobody has rung: a datagram may come after the sleep that it was for.
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
        let bells = Bell::all(2).unwrap();
        let rings = |bell: &Bell| dta_link::wait_readable(&[bell.as_fd()], Some(Duration::ZERO)).unwrap();
        bells[0].ring(0b10);
        assert!(!rings(&bells[1]));
        bells[1].sleep();
        bells[0].ring(0b01);
        assert!(!rings(&bells[1]), "another one was meant");
        bells[0].ring(0b11);
        bells[0].ring(0b10);
        assert!(rings(&bells[1]));
        bells[1].wake();
        assert!(!rings(&bells[1]));
        bells[1].sleep();
        bells[1].wake();
        bells[0].ring(0b10);
        assert!(!rings(&bells[1]));
    }
}
