//! Bytes that are nearly right.

use proptest::prelude::Rng;

/// Longer inputs are cut: no format here has a packet of more.
const LONGEST: usize = 4096;

/// Numbers that length and count fields are wrong at.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b':'];

/// One of the seeds with 0 to 7 changes.
pub(crate) fn mutant(rng: &mut impl Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[below(rng, seeds.len())].clone();
    for _ in 0..below(rng, 8) {
        change(rng, &mut bytes, seeds);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn change(rng: &mut impl Rng, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let at = below(rng, bytes.len() + 1);
    let end = at + below(rng, (bytes.len() - at).min(32) + 1);
    match below(rng, 8) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, rng.next_u32() as u8),
        2 => drop(bytes.drain(at..end)),
        // A piece twice.
        3 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
        // The rest of another seed.
        4 => {
            let other = &seeds[below(rng, seeds.len())];
            bytes.truncate(at);
            bytes.extend(other.get(at.min(other.len())..).unwrap_or_default());
        }
        // Changes of a byte, if there is one.
        kind => {
            let value = [rng.next_u32() as u8, EDGES[below(rng, EDGES.len())], 1 << below(rng, 8)][kind - 5];
            if let Some(byte) = bytes.get_mut(at) {
                *byte = if kind == 7 { *byte ^ value } else { value };
            }
        }
    }
}

/// A number below `end`, which is not 0.
fn below(rng: &mut impl Rng, end: usize) -> usize {
    (rng.next_u64() % end as u64) as usize
}
