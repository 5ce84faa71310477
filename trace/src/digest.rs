//! The digest of a packet: the same number wherever the packet is seen.
//!
//! It covers what no device on the path changes. TTL, TOS, checksums and all headers around the innermost
//! packet are excluded, so it survives routers, bridges, tunnels, switches that copy the packet into a new
//! buffer, and checksum offload. `trace/ebpf/digest.h` does the same arithmetic; `trace/tests/digest.rs`
//! checks both against one list of vectors.

/// How many bytes after the transport header are included.
pub const PAYLOAD: usize = 32;

/// The input of the digest, all from the innermost packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Source address; an IPv4 address as `::ffff:a.b.c.d`.
    pub source: [u8; 16],
    /// Destination address, likewise.
    pub destination: [u8; 16],
    /// Source port; 0 if the protocol has none, and in fragments except the first.
    pub source_port: u16,
    /// Destination port, likewise; for an ICMP echo, its identifier (which address translation may change).
    pub destination_port: u16,
    /// The IP protocol (IPv6: the last next-header).
    pub protocol: u8,
    /// Whether a TCP segment carries data; false for other protocols. A segment without data and the one after it have the same
    /// sequence number.
    pub has_data: bool,
    /// IPv4's identification, or the lower half of an IPv6 fragment's; else 0.
    pub ip_id: u16,
    /// Offset of the fragment, in units of 8 bytes.
    pub fragment_offset: u16,
    /// TCP: the sequence number. UDP: its length field. ICMP: type, code (upper half) and sequence of an echo (lower half). Else 0.
    pub sequence: u32,
    /// TCP: the acknowledgement number. Else 0.
    pub acknowledgement: u32,
    /// The first bytes after the transport header, zero-padded. For TCP only the timestamps option (8 bytes),
    /// if it comes first, as most systems write it: data may lie where the kernel's programs cannot read, and
    /// sequence numbers distinguish segments.
    pub payload: [u8; PAYLOAD],
}

/// The two digests of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Of the whole identity; never 0.
    pub full: u64,
    /// Of the identity without addresses and ports, so address translation does not change it. Sampling uses
    /// it.
    pub core: u64,
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
    pub fn digest(&self) -> Digest {
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

/// The share of packets that is reported. All points and hosts with the same rate choose the same packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// A packet is chosen if the upper half of its core digest is below this; at most 2³².
    pub threshold: u64,
}

impl Sampling {
    /// Every packet.
    pub const ALL: Self = Self { threshold: 1 << 32 };

    /// One packet in `n`; 0 counts as 1.
    pub fn one_in(n: u32) -> Self {
        Self { threshold: (1u64 << 32).div_ceil(u64::from(n.max(1))) }
    }

    /// Parses a share such as `1/64`; returns the 64.
    pub fn read_share(text: &str) -> Result<u32, &'static str> {
        let n = text.strip_prefix("1/").and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        n.ok_or("write a share as 1/64")
    }

    /// Whether it includes the packet.
    pub fn chooses(self, digest: Digest) -> bool {
        (digest.core >> 32) < self.threshold
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::ALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_ports_change_the_full_digest_alone() {
        let packet = Identity { protocol: 17, source_port: 1, ..Identity::default() };
        let translated = Identity { source: [7; 16], source_port: 2, ..packet };
        assert_eq!(packet.digest().core, translated.digest().core);
        assert_ne!(packet.digest().full, translated.digest().full);
    }

    #[test]
    fn identities_that_differ_in_one_bit_or_two_have_digests_of_their_own() {
        let flipped = |bits: &[usize]| {
            let mut bytes = [0u8; 80];
            bits.iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
            let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
            Identity {
                source: std::array::from_fn(|i| bytes[i]),
                destination: std::array::from_fn(|i| bytes[16 + i]),
                payload: std::array::from_fn(|i| bytes[32 + i]),
                source_port: u16_at(64),
                destination_port: u16_at(66),
                ip_id: u16_at(68),
                fragment_offset: u16_at(70),
                sequence: u32_at(72),
                acknowledgement: u32_at(76),
                ..Identity::default()
            }
            .digest()
            .full
        };
        let mut seen = std::collections::HashSet::new();
        for one in 0..640 {
            assert!(seen.insert(flipped(&[one])), "bit {one}");
            for other in 0..one {
                assert!(seen.insert(flipped(&[one, other])), "bits {one} and {other}");
            }
        }
    }

    #[test]
    fn rate_is_kept_and_a_higher_rate_keeps_what_a_lower_one_chose() {
        let digests: Vec<Digest> = (0..64_000)
            .map(|sequence| Identity { protocol: 6, sequence, ..Identity::default() }.digest())
            .collect();
        let chosen = |n| digests.iter().filter(|digest| Sampling::one_in(n).chooses(**digest)).count();
        assert_eq!((chosen(0), chosen(1)), (64_000, 64_000));
        assert!((7_600..8_400).contains(&chosen(8)), "{}", chosen(8));
        let both = |digest: &&Digest| {
            Sampling::one_in(64).chooses(**digest) && Sampling::one_in(8).chooses(**digest)
        };
        assert_eq!(digests.iter().filter(both).count(), chosen(64));
    }
}
