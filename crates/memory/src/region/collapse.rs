//! Collapses base pages of a region in use into huge pages.
//!
//! Files on a tmpfs lie in base pages unless the machine is set up otherwise, and nothing joins these later.
//! `MADV_COLLAPSE` does, without privileges, for any process that has the memory mapped.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::mapping::HUGE;
use super::{Pages, Region};

/// Attempts per huge page: another thread may be touching one of its base pages.
const ATTEMPTS: usize = 3;

/// Consecutive failures for lack of memory before giving up. The kernel may find some a moment later, after
/// compaction.
const WITHOUT_MEMORY: usize = 16;

/// The pause after such a failure.
const REST: Duration = Duration::from_millis(10);

impl Region {
    /// Whether [`Region::collapse_pages`] still has something to try.
    pub fn wants_collapse(&self) -> bool {
        self.huge_pages
            && self.writable
            && !matches!(self.mapping.page_kind(), Pages::Hugetlb(_))
            && !self.collapsed.load(Ordering::Relaxed)
    }

    /// Asks the kernel to join the base pages of this region into huge ones, one huge page after another, until
    /// `stop` returns true. The contents stay, and concurrent reads and writes go on. It rests as long as it works,
    /// so it uses at most half a processor. [`Region::look_up_pages_again`] then reports the result.
    ///
    /// All pages of a region exist from the start, so this needs extra memory for only one huge page at a time.
    ///
    /// # Errors
    /// The kernel cannot do it for this memory (`EINVAL`, `ENOSYS`), had no memory for some of the huge pages, or a
    /// limit did not allow them (`ENOMEM`, `EBUSY`): the rest stays in base pages. Single pages that cannot be joined
    /// for another reason are no error.
    pub fn collapse_pages(&self, mut stop: impl FnMut() -> bool) -> io::Result<()> {
        if !self.wants_collapse() {
            return Ok(());
        }
        self.collapsed.store(true, Ordering::Relaxed);
        let start = self.mapping.start_address().addr();
        let first = start.next_multiple_of(HUGE) - start;
        let end = self.data + self.len;
        let (mut joined, mut without_memory, mut refused) = (0, 0, Ok(()));
        for offset in (first..end).step_by(HUGE).take_while(|offset| offset + HUGE <= end) {
            if stop() {
                return Ok(());
            }
            let began = Instant::now();
            match self.collapse_one(offset) {
                Ok(()) => (joined, without_memory) = (joined + 1, 0),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => {}
                    // An error on one page among others says nothing about the kernel.
                    Some(Errno::INVAL) if joined > 0 => {}
                    Some(Errno::NOMEM | Errno::BUSY) => {
                        refused = Err(error);
                        without_memory += 1;
                        if without_memory == WITHOUT_MEMORY {
                            break;
                        }
                        std::thread::sleep(REST);
                    }
                    _ => return Err(error),
                },
            }
            std::thread::sleep(began.elapsed());
        }
        refused
    }

    fn collapse_one(&self, offset: usize) -> io::Result<()> {
        let mut result = Ok(());
        for _ in 0..ATTEMPTS {
            result = self.mapping.collapse_page_at(offset);
            let again = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::AGAIN);
            if !result.as_ref().is_err_and(again) {
                break;
            }
        }
        result
    }
}
