//! What a primitive is given beside a report: the time, its store, and the way out.

use super::egress::{Egress, Write};
use super::frame::Output;
use super::losses::Origin;

/// What the operations of one store need in order to leave.
pub(crate) struct Context<'a> {
    /// The time in nanoseconds.
    pub(crate) now: u64,
    /// Index of the store in the engine.
    pub(crate) store: usize,
    /// The queue pairs, and what is counted.
    pub(crate) egress: &'a mut Egress,
    /// Where finished packets go.
    pub(crate) out: &'a mut Output,
}

impl Context<'_> {
    /// Sends copies of one payload to the store, copy n to `offset_of(n)`. It carries the reports
    /// of `origins`.
    #[inline]
    pub(crate) fn write(
        &mut self,
        write: &Write<'_>,
        offset_of: impl Fn(u8) -> u64,
        origins: impl Iterator<Item = Origin>,
    ) {
        self.egress.write(self.now, self.store, write, offset_of, origins, self.out);
    }
}
