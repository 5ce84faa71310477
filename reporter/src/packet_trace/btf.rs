//! The running kernel's description of itself in `/sys/kernel/btf/vmlinux`: its tracepoints, and the names of
//! drop reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::{fs, io};

/// Where the kernel provides the description.
pub const PATH: &str = "/sys/kernel/btf/vmlinux";

/// The parts of the kernel's types that are needed here.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    reasons: BTreeMap<u32, String>,
    tracepoints: BTreeSet<String>,
}

impl Kernel {
    /// Reads the description of the running kernel.
    pub fn read() -> io::Result<Self> {
        let bytes = fs::read(PATH)?;
        Self::parse_btf(&bytes)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{PATH} is not BTF")))
    }

    /// The name of a drop reason without its prefix, such as `QDISC_DROP`; or its number if the kernel has no
    /// name for it.
    pub fn reason_name(&self, number: u32) -> String {
        self.reasons.get(&number).cloned().unwrap_or_else(|| format!("reason {number}"))
    }

    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.tracepoints.contains(name)
    }

    /// Parses BTF in the machine's byte order.
    fn parse_btf(bytes: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let u16_at = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        if u16_at(0)? != 0xeb9f {
            return None;
        }
        let part = |at: usize| -> Option<usize> { usize::try_from(u32_at(at)?).ok() };
        let header = part(4)?;
        let (mut at, strings) = (header + part(8)?, header + part(16)?);
        let types_end = at + part(12)?;
        let name = |offset: u32| -> Option<&str> {
            let rest = bytes.get(strings + offset as usize..)?;
            std::str::from_utf8(&rest[..rest.iter().position(|byte| *byte == 0)?]).ok()
        };
        let mut kernel = Self::default();
        while at < types_end {
            let (name_at, info) = (u32_at(at)?, u32_at(at + 4)?);
            let (members, kind) = ((info & 0xffff) as usize, info >> 24 & 0x1f);
            at += 12;
            match kind {
                TYPEDEF => {
                    if let Some(tracepoint) = name(name_at)?.strip_prefix("btf_trace_") {
                        kernel.tracepoints.insert(tracepoint.to_owned());
                    }
                }
                ENUM if name(name_at)?.ends_with("skb_drop_reason") => {
                    for member in 0..members {
                        let text = name(u32_at(at + 8 * member)?)?;
                        let text =
                            text.strip_prefix("SKB_DROP_REASON_").or_else(|| text.strip_prefix("SKB_"));
                        if let Some(text) = text {
                            kernel.reasons.insert(u32_at(at + 8 * member + 4)?, text.to_owned());
                        }
                    }
                }
                _ => {}
            }
            at += trailing_length(kind, members)?;
        }
        Some(kernel)
    }
}

const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;

/// Number of bytes after a type's 12-byte header; the kernel's Documentation/bpf/btf.rst.
fn trailing_length(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // pointers, forward declarations, typedefs, qualifiers, functions, floats, type tags
        2 | 7..=12 | 16 | 18 => 0,
        // integers, variables, declaration tags
        1 | 14 | 17 => 4,
        // arrays
        3 => 12,
        // structs, unions, sections, enums of 64 bits
        4 | 5 | 15 | 19 => 12 * members,
        // enums, function prototypes
        ENUM | 13 => 8 * members,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An enum of two reasons, a typedef and strings.
    fn sample() -> Vec<u8> {
        let strings = b"\0skb_drop_reason\0SKB_DROP_REASON_QDISC_DROP\0SKB_CONSUMED\0btf_trace_kfree_skb\0";
        let types: [u32; 10] = [1, ENUM << 24 | 2, 4, 17, 64, 44, 1, 57, TYPEDEF << 24, 1];
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for number in [24, 0, 40, 40, strings.len() as u32] {
            bytes.extend(u32::to_ne_bytes(number));
        }
        bytes.extend(types.iter().flat_map(|number| number.to_ne_bytes()));
        bytes.extend(strings);
        bytes
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn reasons_and_tracepoints_are_found() {
        let kernel = Kernel::parse_btf(&sample()).unwrap();
        assert_eq!(kernel.reason_name(64), "QDISC_DROP");
        assert_eq!(kernel.reason_name(1), "CONSUMED");
        assert_eq!(kernel.reason_name(7), "reason 7");
        assert!(kernel.has_tracepoint("kfree_skb") && !kernel.has_tracepoint("consume_skb"));
    }

    #[test]
    fn a_file_that_was_cut_is_refused() {
        let whole = sample();
        for length in 0..24 + 40 {
            assert!(Kernel::parse_btf(&whole[..length]).is_none(), "{length}");
        }
    }
}
