//! Packet sequence numbers: 24 bits, compared modulo 2^24.

/// A packet sequence number, 0 to 2^24 - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Number of bits.
    pub const MASK: u32 = 0xff_ffff;

    /// The PSN from the low 24 bits of `n`.
    #[inline]
    pub const fn new(n: u32) -> Psn {
        Psn(n & Psn::MASK)
    }

    /// The number, 0 to 2^24 - 1.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `n` packets later.
    #[inline]
    #[must_use]
    pub const fn wrapping_add(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_add(n))
    }

    /// The PSN `n` packets earlier.
    #[inline]
    #[must_use]
    pub const fn wrapping_sub(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(n))
    }

    /// The PSN of the next packet.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Psn {
        self.wrapping_add(1)
    }

    /// How many packets this is after `other`: -2^23 to 2^23 - 1, negative if before it.
    #[inline]
    pub const fn distance_from(self, other: Psn) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }
}

impl core::fmt::Display for Psn {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wraps() {
        assert_eq!(Psn::new(0x1ff_ffff), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(0xff_ffff).next(), Psn::new(0));
        assert_eq!(Psn::new(0).wrapping_sub(1), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(0).distance_from(Psn::new(0xff_ffff)), 1);
        assert_eq!(Psn::new(0xff_ffff).distance_from(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).distance_from(Psn::new(0)), 0x7f_ffff);
    }

    proptest! {
        #[test]
        fn since_undoes_plus(start: u32, n in -0x80_0000i32..0x80_0000) {
            let start = Psn::new(start);
            prop_assert_eq!(start.wrapping_add(n as u32).distance_from(start), n);
            prop_assert_eq!(start.wrapping_add(n as u32).wrapping_sub(n as u32), start);
        }
    }
}
