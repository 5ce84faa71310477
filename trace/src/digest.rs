//! The digest of a packet: the same number wherever the packet is seen.
//!
//! It is made of what no device on the way changes. TTL, TOS, checksums and all headers around the innermost packet are left out, so
//! it survives routers, bridges, tunnels, switches that copy the packet into a new buffer, and checksum offload. The same arithmetic
//! is in `trace/ebpf/digest.h`; `trace/tests/digest.rs` holds both to one list of vectors.

/// How many bytes after the transport header are read.
pub const PAYLOAD: usize = 32;

/// What the digest is made of, all of the innermost packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Source address; an IPv4 address as `::ffff:a.b.c.d`.
    pub source: [u8; 16],
    /// Destination address, likewise.
    pub destination: [u8; 16],
    /// Source port; 0 where the protocol has none, and in fragments but the first.
    pub source_port: u16,
    /// Destination port, likewise; of an ICMP echo, its identifier (which address translation may change).
    pub destination_port: u16,
    /// The IP protocol (IPv6: the last next-header).
    pub protocol: u8,
    /// Whether a TCP segment carries data; false for other protocols. A segment without data and the one after it have the same
    /// sequence number.
    pub has_data: bool,
    /// IPv4's identification, or the lower half of that of an IPv6 fragment; else 0.
    pub ip_id: u16,
    /// Where the fragment begins, in units of 8 bytes.
    pub fragment_offset: u16,
    /// TCP: the sequence number. UDP: its length field. ICMP: type, code (upper half) and sequence of an echo (lower half). Else 0.
    pub sequence: u32,
    /// TCP: the acknowledgement number. Else 0.
    pub acknowledgement: u32,
    /// The first bytes after the transport header, then zeros. TCP: the timestamps option alone (8 bytes) where it stands first, as
    /// most systems write it: data may lie where the kernel's programs cannot read, and sequence numbers tell segments apart.
    pub payload: [u8; PAYLOAD],
}

/// Both digests of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Over the whole identity; never 0.
    pub full: u64,
    /// Over the identity without addresses and ports: address translation does not change it. Packets are sampled by it.
    pub core: u64,
}

const SEED: u64 = 0x243f_6a88_85a3_08d3;

fn mix(state: u64, word: u64) -> u64 {
    let product = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 29)
}

fn finish(mut state: u64) -> u64 {
    state ^= state >> 30;
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^= state >> 27;
    state = state.wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Words of 8 bytes, the first byte lowest.
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
        let core = [first, second].into_iter().chain(words(&self.payload)).fold(SEED, mix);
        let ports = u64::from(self.source_port) | u64::from(self.destination_port) << 16;
        let full = words(&self.source).chain(words(&self.destination)).chain([ports]).fold(core, mix);
        Digest { full: finish(full).max(1), core: finish(core) }
    }
}

/// Which share of the packets is reported. All points and hosts with the same rate choose the same packets.
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

    /// Whether the packet is chosen.
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
