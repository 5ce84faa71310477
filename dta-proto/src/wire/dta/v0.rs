//! Reports of version 0: `opcode sequence flags`, then the primitive's fields, packed.

use super::report::report_buffer;
use super::{DtaBody, DtaReport, IMMEDIATE, MAX_HOPS, Primitive, RESTARTED, RETRANSMITTABLE, Version};
use crate::key::Key;
use crate::wire::error::saturating_u16;
use crate::wire::{Error, Layer, Result, WireErrorKind};

/// Bytes before the primitive's fields.
const HEADER_LEN: usize = 3;

fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::DtaV0, field, offset, kind)
}

/// The fields as an array of the only valid length.
fn exact_fields<'a, const N: usize>(field: &'static str, rest: &'a [u8]) -> Result<&'a [u8; N]> {
    rest.try_into().map_err(|_| {
        let (need, have) = (saturating_u16(HEADER_LEN + N), saturating_u16(HEADER_LEN + rest.len()));
        let kind = if rest.len() < N {
            WireErrorKind::Truncated { need, have }
        } else {
            WireErrorKind::TooLong { most: need, have }
        };
        err(field, if have < need { HEADER_LEN as u16 } else { need }, kind)
    })
}

#[inline]
pub(super) fn parse_report(opcode: u8, sequence: u8, flags: u8, rest: &[u8]) -> Result<DtaReport<'_>> {
    let body = match Primitive::from_opcode(opcode) {
        Some(Primitive::KeyWrite) => {
            let f: &[u8; 9] = exact_fields("key-write", rest)?;
            DtaBody::KeyWrite {
                redundancy: f[0],
                key: Key::from_version_0([f[1], f[2], f[3], f[4]]),
                value: &f[5..],
            }
        }
        Some(Primitive::Append) => {
            let f: &[u8; 8] = exact_fields("append", rest)?;
            DtaBody::Append { list: u32::from_be_bytes([f[0], f[1], f[2], f[3]]), value: &f[4..] }
        }
        Some(Primitive::KeyIncrement) => {
            let f: &[u8; 13] = exact_fields("key-increment", rest)?;
            DtaBody::KeyIncrement {
                redundancy: f[0],
                key: Key::from_version_0([f[1], f[2], f[3], f[4]]),
                delta: u64::from_be_bytes([f[5], f[6], f[7], f[8], f[9], f[10], f[11], f[12]]),
            }
        }
        Some(Primitive::Postcarding) => {
            let f: &[u8; 9] = exact_fields("postcard", rest)?;
            let hop = match f[4] {
                hop @ 1..=MAX_HOPS => hop - 1,
                hop => return Err(err("hop", 7, WireErrorKind::Hop(hop))),
            };
            DtaBody::Postcard {
                key: Key::from_version_0([f[0], f[1], f[2], f[3]]),
                hop,
                path_length: 0,
                value: u32::from_be_bytes([f[5], f[6], f[7], f[8]]),
            }
        }
        // Version 0 has only these four.
        _ => return Err(err("opcode", 0, WireErrorKind::UnknownOpcode(opcode))),
    };
    Ok(DtaReport {
        version: Version::V0,
        immediate: flags & IMMEDIATE != 0,
        retransmittable: flags & RETRANSMITTABLE != 0,
        restarted: flags & RESTARTED != 0,
        sequence: u32::from(sequence),
        reporter: 0,
        store: 0,
        body,
    })
}

pub(super) const fn buffer_len(body: &DtaBody<'_>) -> usize {
    HEADER_LEN
        + match body {
            DtaBody::KeyWrite { .. } | DtaBody::Postcard { .. } => 9,
            DtaBody::Append { .. } => 8,
            DtaBody::KeyIncrement { .. } => 13,
            _ => 0,
        }
}

/// The 4 bytes of a version-0 key.
fn short_key(key: &Key, offset: u16) -> Result<[u8; 4]> {
    let [a, b, c, d, rest @ ..] = key.0;
    if rest == [0; 12] { Ok([a, b, c, d]) } else { Err(err("key", offset, WireErrorKind::NotInVersion)) }
}

/// The 4 bytes of a version-0 value.
fn short_value(value: &[u8], offset: u16) -> Result<[u8; 4]> {
    value
        .try_into()
        .map_err(|_| err("value", offset, WireErrorKind::ValueLength(saturating_u16(value.len()))))
}

pub(super) fn encode_report(report: &DtaReport<'_>, buffer: &mut [u8]) -> Result<usize> {
    let opcode = report.body.primitive().opcode();
    if report.reporter != 0 {
        return Err(err("reporter", 0, WireErrorKind::NotInVersion));
    }
    if report.store != 0 {
        return Err(err("store", 0, WireErrorKind::NotInVersion));
    }
    // All checks come before the first byte is written.
    let mut fields = [0; 13];
    match report.body {
        DtaBody::KeyWrite { redundancy, key, value } => {
            fields[0] = redundancy;
            fields[1..5].copy_from_slice(&short_key(&key, 4)?);
            fields[5..9].copy_from_slice(&short_value(value, 8)?);
        }
        DtaBody::Append { list, value } => {
            fields[..4].copy_from_slice(&list.to_be_bytes());
            fields[4..8].copy_from_slice(&short_value(value, 7)?);
        }
        DtaBody::KeyIncrement { redundancy, key, delta } => {
            fields[0] = redundancy;
            fields[1..5].copy_from_slice(&short_key(&key, 4)?);
            fields[5..13].copy_from_slice(&delta.to_be_bytes());
        }
        DtaBody::Postcard { key, hop, path_length, value } => {
            fields[..4].copy_from_slice(&short_key(&key, 3)?);
            if hop >= MAX_HOPS {
                return Err(err("hop", 7, WireErrorKind::Hop(hop)));
            }
            if path_length != 0 {
                return Err(err("path_length", 7, WireErrorKind::NotInVersion));
            }
            fields[4] = hop + 1;
            fields[5..9].copy_from_slice(&value.to_be_bytes());
        }
        _ => return Err(err("opcode", 0, WireErrorKind::NotInVersion)),
    }
    let need = buffer_len(&report.body);
    let out = report_buffer(Layer::DtaV0, buffer, need)?;
    out[..HEADER_LEN].copy_from_slice(&[opcode, report.sequence as u8, report.flags_byte()]);
    out[HEADER_LEN..].copy_from_slice(&fields[..need - HEADER_LEN]);
    Ok(need)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY_WRITE: [u8; 12] = [1, 7, 0, 2, 0x0a, 0, 0, 1, 0, 0, 0, 9];
    const APPEND: [u8; 11] = [2, 0, 0x80, 0, 0, 0, 3, 0xde, 0xad, 0xbe, 0xef];
    const KEY_INCREMENT: [u8; 16] = [3, 255, 0x40, 4, 1, 2, 3, 4, 0, 0, 0, 0, 0, 1, 0, 0];
    const POSTCARD: [u8; 12] = [4, 0, 0x20, 1, 2, 3, 4, 1, 0, 0, 0, 5];

    fn report(body: DtaBody<'_>) -> DtaReport<'_> {
        DtaReport {
            version: Version::V0,
            immediate: false,
            retransmittable: false,
            restarted: false,
            sequence: 0,
            reporter: 0,
            store: 0,
            body,
        }
    }

    fn all() -> [(&'static [u8], DtaReport<'static>); 4] {
        let key = Key::from_version_0([1, 2, 3, 4]);
        let key_write = DtaBody::KeyWrite {
            redundancy: 2,
            key: Key::from_version_0([10, 0, 0, 1]),
            value: &[0, 0, 0, 9],
        };
        let append = DtaBody::Append { list: 3, value: &[0xde, 0xad, 0xbe, 0xef] };
        let key_increment = DtaBody::KeyIncrement { redundancy: 4, key, delta: 65536 };
        let postcard = DtaBody::Postcard { key, hop: 0, path_length: 0, value: 5 };
        [
            (&KEY_WRITE, DtaReport { sequence: 7, ..report(key_write) }),
            (&APPEND, DtaReport { immediate: true, ..report(append) }),
            (&KEY_INCREMENT, DtaReport { sequence: 255, retransmittable: true, ..report(key_increment) }),
            (&POSTCARD, DtaReport { restarted: true, ..report(postcard) }),
        ]
    }

    #[test]
    fn deconstruct() {
        for (bytes, report) in all() {
            assert_eq!(DtaReport::parse_payload(bytes), Ok(report));
        }
    }

    #[test]
    fn construct() {
        for (bytes, report) in all() {
            let mut buffer = [0xa5; 32];
            assert_eq!(report.encode_into(&mut buffer), Ok(bytes.len()));
            assert_eq!(report.buffer_len(), bytes.len());
            assert_eq!(&buffer[..bytes.len()], bytes);
            assert!(buffer[bytes.len()..].iter().all(|b| *b == 0xa5));
            let error = report.encode_into(&mut buffer[..bytes.len() - 1]).unwrap_err();
            assert!(matches!(error.kind, WireErrorKind::BufferTooSmall { .. }));
        }
    }

    #[test]
    fn impossible_lengths() {
        for (bytes, _) in all() {
            for n in 3..bytes.len() {
                let kind = WireErrorKind::Truncated { need: bytes.len() as u16, have: n as u16 };
                assert_eq!(DtaReport::parse_payload(&bytes[..n]).unwrap_err().kind, kind);
            }
            let mut long = bytes.to_vec();
            long.push(0);
            let error = DtaReport::parse_payload(&long).unwrap_err();
            assert_eq!(
                error.kind,
                WireErrorKind::TooLong { most: bytes.len() as u16, have: long.len() as u16 }
            );
            assert_eq!(usize::from(error.offset), bytes.len());
        }
    }

    #[test]
    fn refusals() {
        for hop in [0, 15, 255] {
            let mut bytes = POSTCARD;
            bytes[7] = hop;
            assert_eq!(DtaReport::parse_payload(&bytes), Err(err("hop", 7, WireErrorKind::Hop(hop))));
        }
        for opcode in [0, 5, 6, 255] {
            let mut bytes = KEY_WRITE;
            bytes[0] = opcode;
            assert_eq!(
                DtaReport::parse_payload(&bytes),
                Err(err("opcode", 0, WireErrorKind::UnknownOpcode(opcode)))
            );
        }
    }

    #[test]
    fn what_version_0_cannot_say() {
        let key = Key([1; 16]);
        let short = Key::default();
        let mut buffer = [0xa5; 64];
        let plain = DtaBody::Append { list: 0, value: &[0; 4] };
        for (r, field) in [
            (report(DtaBody::KeyWrite { redundancy: 1, key, value: &[0; 4] }), "key"),
            (report(DtaBody::KeyWrite { redundancy: 1, key: short, value: &[0; 8] }), "value"),
            (report(DtaBody::Append { list: 1, value: &[] }), "value"),
            (report(DtaBody::Postcard { key: short, hop: 14, path_length: 0, value: 0 }), "hop"),
            (report(DtaBody::Postcard { key: short, hop: 1, path_length: 5, value: 0 }), "path_length"),
            (report(DtaBody::SketchMerge { epoch: 0, column: 0, cells: &[0; 4] }), "opcode"),
            (DtaReport { reporter: 1, ..report(plain) }, "reporter"),
            (DtaReport { store: 1, ..report(plain) }, "store"),
        ] {
            assert_eq!(r.encode_into(&mut buffer).unwrap_err().field, field);
        }
        assert_eq!(buffer, [0xa5; 64]);
    }
}
