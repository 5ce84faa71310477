//! The digest of a packet. Twin of `reporter/ebpf/digest.h`.

use dta_reporter::packet_trace::digest::Digest;

/// How many bytes after the transport header are included.
pub(crate) const PAYLOAD: usize = 32;

/// The input of the digest, all from the innermost packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Source address; an IPv4 address as `::ffff:a.b.c.d`.
    pub(crate) source: [u8; 16],
    /// Destination address, likewise.
    pub(crate) destination: [u8; 16],
    /// Source port; 0 if the protocol has none, and in fragments except the first.
    pub(crate) source_port: u16,
    /// Destination port, likewise; for an ICMP echo, its identifier (which address translation may change).
    pub(crate) destination_port: u16,
    /// The IP protocol (IPv6: the last next-header).
    pub(crate) protocol: u8,
    /// Whether a TCP segment carries data; false for other protocols. A segment without data and the one after it have the same
    /// sequence number.
    pub(crate) has_data: bool,
    /// IPv4's identification, or the lower half of an IPv6 fragment's; else 0.
    pub(crate) ip_id: u16,
    /// Offset of the fragment, in units of 8 bytes.
    pub(crate) fragment_offset: u16,
    /// TCP: the sequence number. UDP: its length field. ICMP: type, code (upper half) and sequence of an echo (lower half). Else 0.
    pub(crate) sequence: u32,
    /// TCP: the acknowledgement number. Else 0.
    pub(crate) acknowledgement: u32,
    /// The first bytes after the transport header, zero-padded. For TCP only the timestamps option (8 bytes),
    /// if it comes first, as most systems write it: data may lie where the kernel's programs cannot read, and
    /// sequence numbers distinguish segments.
    pub(crate) payload: [u8; PAYLOAD],
}

const SEED: u64 = 0x243f_6a88_85a3_08d3;
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// One per word of an identity: digits of pi after those of the seed, made odd.
const MULTIPLIERS: [u64; 11] = [
    0x1319_8a2e_0370_7345,
    0xa409_3822_299f_31d1,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6d,
    0xc0ac_29b7_c97c_50dd,
    0x3f84_d5b5_b547_0917,
    0x9216_d5d9_8979_fb1b,
    0xd131_0ba6_98df_b5ad,
    0x2ffd_72db_d01a_dfb7,
    0xb8e1_afed_6a26_7e97,
];

/// Sums each word's contribution independently, so that a processor can multiply several at a time.
fn add(state: u64, words: impl Iterator<Item = u64>, multipliers: &[u64]) -> u64 {
    words.zip(multipliers).fold(state, |sum, (word, multiplier)| {
        let product = word.wrapping_mul(SPREAD);
        sum.wrapping_add((product ^ (product >> 32)).wrapping_mul(*multiplier))
    })
}

fn finish(mut state: u64) -> u64 {
    state ^= state >> 30;
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^= state >> 27;
    state = state.wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Words of 8 bytes, little-endian.
fn words<const BYTES: usize>(bytes: &[u8; BYTES]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

impl Identity {
    /// Computes both digests.
    pub(crate) fn digest(&self) -> Digest {
        let first = u64::from(self.protocol)
            | u64::from(self.has_data) << 8
            | u64::from(self.ip_id) << 16
            | u64::from(self.fragment_offset) << 32;
        let second = u64::from(self.sequence) | u64::from(self.acknowledgement) << 32;
        let (of_core, of_addresses) = MULTIPLIERS.split_at(6);
        let core = add(SEED, [first, second].into_iter().chain(words(&self.payload)), of_core);
        let ports = u64::from(self.source_port) | u64::from(self.destination_port) << 16;
        let addresses = words(&self.source).chain(words(&self.destination)).chain([ports]);
        let full = add(core, addresses, of_addresses);
        Digest { full: finish(full).max(1), core: finish(core) }
    }
}
