//! The digest of a packet: the same number wherever the packet is seen.
//!
//! It covers what no device on the path changes. TTL, TOS, checksums and all headers around the innermost
//! packet are excluded, so it survives routers, bridges, tunnels, switches that copy the packet into a new
//! buffer, and checksum offload. `reporter/ebpf/digest.h` computes it; `reporter/tests/twin/digest.rs` does the same
//! arithmetic, and `reporter/tests/digest.rs` checks both against one list of vectors.

/// The two digests of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Digest of the whole identity; never 0.
    pub full: u64,
    /// Digest of the identity without addresses and ports, which address translation does not change. Sampling uses
    /// it.
    pub core: u64,
}

/// The share of packets that are reported. All points and hosts with the same rate choose the same packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// A packet is chosen if the upper half of its core digest is below this; at most 2³².
    pub threshold: u64,
}

impl Sampling {
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

    pub fn includes_packet(self, digest: Digest) -> bool {
        (digest.core >> 32) < self.threshold
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::ALL
    }
}
