//! Recognises packets like the one before. Neighbouring packets are mostly WRITEs of one length to one region on one queue
//! pair: they differ in few bytes, and the verdict on the others stays the same.

use dta_proto::wire::datagram;
use dta_proto::wire::roce::{BTH_LEN, RETH_LEN};

/// From the IPv4 header to the end of the RETH.
const LEN: usize = datagram::HEADER_LEN + BTH_LEN + RETH_LEN;

/// The bytes of a packet that decide its fate, besides its iCRC and the address in its RETH: all except those that the iCRC
/// takes as ones, the IPv4 id, the PSN and that address. The UDP checksum is among them.
const DECIDES: [u64; LEN / 8] = {
    let mut words = [[0xff; 8]; LEN / 8];
    let others = [1, 4, 5, 8, 10, 11, 32, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47];
    let mut n = 0;
    while n < others.len() {
        words[others[n] / 8][others[n] % 8] = 0;
        n += 1;
    }
    let mut masks = [0; LEN / 8];
    let mut word = 0;
    while word < words.len() {
        masks[word] = u64::from_ne_bytes(words[word]);
        word += 1;
    }
    masks
};

/// The deciding bytes of a packet.
#[derive(Clone, Copy)]
pub(super) struct Alike {
    words: [u64; LEN / 8],
    len: usize,
}

impl Alike {
    /// Those of a packet with a RETH; `None` if the packet is too short for one.
    pub(super) fn from_packet(packet: &[u8]) -> Option<Alike> {
        let (words, []) = packet.first_chunk::<LEN>()?.as_chunks() else { return None };
        let mut decides = DECIDES;
        decides.iter_mut().zip(words).for_each(|(mask, word)| *mask &= u64::from_ne_bytes(*word));
        Some(Alike { words: decides, len: packet.len() })
    }

    /// Whether another packet is alike: everything that holds for the first one holds for it too, except the iCRC and the
    /// range of the address.
    #[inline(always)]
    pub(super) fn matches_packet(&self, packet: &[u8]) -> bool {
        let Some((words, [])) = packet.first_chunk::<LEN>().map(|headers| headers.as_chunks()) else {
            return false;
        };
        let both = self.words.iter().zip(&DECIDES).zip(words);
        let differ =
            both.fold(0, |all, ((own, mask), word)| all | (own ^ (u64::from_ne_bytes(*word) & mask)));
        differ == 0 && packet.len() == self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_byte_that_decides_makes_another_packet() {
        let packet: Vec<u8> = (0..76).map(|n| n as u8 ^ 0x55).collect();
        let alike = Alike::from_packet(&packet).unwrap();
        assert!(alike.matches_packet(&packet));
        for at in 0..packet.len() {
            for bit in 0..8 {
                let mut other = packet.clone();
                other[at] ^= 1 << bit;
                let free = matches!(at, 1 | 4 | 5 | 8 | 10 | 11 | 32 | 37..=47 | 56..);
                assert_eq!(alike.matches_packet(&other), free, "byte {at}, bit {bit}");
            }
        }
        assert!(
            !alike.matches_packet(&packet[..75])
                && !alike.matches_packet(&packet[..55])
                && Alike::from_packet(&packet[..55]).is_none()
        );
    }
}
