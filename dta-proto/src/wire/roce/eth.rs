//! Extended headers of requests: RETH, AtomicETH, ImmDt.

/// Length of the RETH.
pub const RETH_LEN: usize = 16;
/// Length of the AtomicETH.
pub const ATOMIC_ETH_LEN: usize = 28;
/// Length of the ImmDt.
pub const IMM_DT_LEN: usize = 4;

/// RDMA extended header: target of a WRITE or source of a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address.
    pub va: u64,
    /// rkey.
    pub rkey: u32,
    /// Length of the whole message.
    pub length: u32,
}

/// Atomic extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address, 8-byte aligned.
    pub va: u64,
    /// rkey.
    pub rkey: u32,
    /// FETCH_ADD: addend. CMP_SWAP: new value.
    pub swap_add: u64,
    /// CMP_SWAP: expected value. FETCH_ADD: 0.
    pub compare: u64,
}

/// Immediate data, handed to the receiver's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt(pub u32);

fn decode_be_u32(b: &[u8; 4]) -> u32 {
    u32::from_be_bytes(*b)
}

impl Reth {
    /// Parses the header.
    #[inline]
    pub fn from_bytes(bytes: &[u8; RETH_LEN]) -> Reth {
        let [a, b, c, d, e, f, g, h, r0, r1, r2, r3, l0, l1, l2, l3] = *bytes;
        Reth {
            va: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: decode_be_u32(&[r0, r1, r2, r3]),
            length: decode_be_u32(&[l0, l1, l2, l3]),
        }
    }

    /// The header as a little-endian number: its bytes without going through memory.
    #[inline]
    pub(crate) fn to_le_u128(self) -> u128 {
        u128::from(self.va.swap_bytes())
            | u128::from(self.rkey.swap_bytes()) << 64
            | u128::from(self.length.swap_bytes()) << 96
    }

    /// Writes the header.
    #[inline]
    pub fn encode_into(&self, buffer: &mut [u8; RETH_LEN]) {
        buffer[..8].copy_from_slice(&self.va.to_be_bytes());
        buffer[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        buffer[12..].copy_from_slice(&self.length.to_be_bytes());
    }
}

impl AtomicEth {
    /// Parses the header.
    #[inline]
    pub fn from_bytes(bytes: &[u8; ATOMIC_ETH_LEN]) -> AtomicEth {
        let mut wide = [[0; 8]; 3];
        wide[0].copy_from_slice(&bytes[..8]);
        wide[1].copy_from_slice(&bytes[12..20]);
        wide[2].copy_from_slice(&bytes[20..]);
        let [va, swap_add, compare] = wide.map(u64::from_be_bytes);
        AtomicEth { va, rkey: decode_be_u32(&[bytes[8], bytes[9], bytes[10], bytes[11]]), swap_add, compare }
    }

    /// Writes the header.
    #[inline]
    pub fn encode_into(&self, buffer: &mut [u8; ATOMIC_ETH_LEN]) {
        buffer[..8].copy_from_slice(&self.va.to_be_bytes());
        buffer[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        buffer[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        buffer[20..].copy_from_slice(&self.compare.to_be_bytes());
    }
}

impl ImmDt {
    /// Parses the header.
    #[inline]
    pub fn from_bytes(bytes: &[u8; IMM_DT_LEN]) -> ImmDt {
        ImmDt(decode_be_u32(bytes))
    }

    /// Writes the header.
    #[inline]
    pub fn encode_into(&self, buffer: &mut [u8; IMM_DT_LEN]) {
        *buffer = self.0.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RETH: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x12, 0x34, 0, 0, 0, 16];
    const ATOMIC: [u8; 28] =
        [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6];

    #[test]
    fn deconstruct() {
        let reth = Reth { va: 0x0102_0304_0506_0708, rkey: 0x1234, length: 16 };
        assert_eq!(Reth::from_bytes(&RETH), reth);
        let atomic = AtomicEth { va: 0x0102_0304_0506_0708, rkey: 0x1234, swap_add: 5, compare: 6 };
        assert_eq!(AtomicEth::from_bytes(&ATOMIC), atomic);
        assert_eq!(ImmDt::from_bytes(&[0, 0, 1, 2]), ImmDt(258));
    }

    proptest! {
        #[test]
        fn construct(reth: [u8; 16], atomic: [u8; 28], imm: [u8; 4]) {
            let mut buffer = [0xa5; 28];
            AtomicEth::from_bytes(&atomic).encode_into(&mut buffer);
            prop_assert_eq!(buffer, atomic);
            let mut buffer = [0xa5; 16];
            Reth::from_bytes(&reth).encode_into(&mut buffer);
            prop_assert_eq!(buffer, reth);
            let mut buffer = [0xa5; 4];
            ImmDt::from_bytes(&imm).encode_into(&mut buffer);
            prop_assert_eq!(buffer, imm);
        }
    }
}
