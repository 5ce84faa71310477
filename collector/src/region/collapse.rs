//! Joining the base pages of a region to huge ones while it is in use.
//!
//! Files on a tmpfs lie in base pages unless the machine is set up otherwise, and nothing joins them
//! later. `MADV_COLLAPSE` does, for whoever has the memory mapped, without privileges.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::Errno;

use super::mapping::HUGE;
use super::{Pages, Region};

/// Times that one huge page is tried: somebody may have looked at one of its base pages just then.
const ATTEMPTS: usize = 3;

impl Region {
    /// Whether [`Region::collapse`] has something to do that was not tried yet.
    pub fn wants_collapse(&self) -> bool {
        self.huge_pages
            && self.writable
            && !matches!(self.mapping.pages(), Pages::Hugetlb(_))
            && !self.collapsed.load(Ordering::Relaxed)
    }

    /// Asks the kernel to join the base pages of this region to huge ones, one huge page after the
    /// other, until `stop` says so. Contents stay, and so do reads and writes meanwhile. It rests as
    /// long as it works, so it takes half of one processor at most. [`Region::look_up_pages_again`]
    /// then tells what came of it.
    ///
    /// All pages of a region exist since it was opened, so this takes no memory but one huge page at
    /// a time.
    ///
    /// # Errors
    /// The kernel cannot do it for this memory (`EINVAL`, `ENOSYS`), or has no memory for a huge
    /// page, or a limit does not allow one (`ENOMEM`, `EBUSY`): the rest stays in base pages. Single
    /// pages that cannot be joined are no error.
    pub fn collapse(&self, mut stop: impl FnMut() -> bool) -> io::Result<()> {
        if !self.wants_collapse() {
            return Ok(());
        }
        self.collapsed.store(true, Ordering::Relaxed);
        let start = self.mapping.address().addr();
        let first = start.next_multiple_of(HUGE) - start;
        let end = self.data + self.len;
        let mut joined = 0;
        for offset in (first..end).step_by(HUGE).take_while(|offset| offset + HUGE <= end) {
            if stop() {
                return Ok(());
            }
            let began = Instant::now();
            match self.collapse_one(offset) {
                Ok(()) => joined += 1,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => {}
                    // Of one page among others it says nothing of the kernel.
                    Some(Errno::INVAL) if joined > 0 => {}
                    _ => return Err(error),
                },
            }
            std::thread::sleep(began.elapsed());
        }
        Ok(())
    }

    fn collapse_one(&self, offset: usize) -> io::Result<()> {
        let mut result = Ok(());
        for _ in 0..ATTEMPTS {
            result = self.mapping.collapse(offset);
            let again = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::AGAIN);
            if !result.as_ref().is_err_and(again) {
                break;
            }
        }
        result
    }
}
