//! Reports of version 0: `opcode sequence flags`, then the primitive's fields, packed.

use super::report::room;
use super::{Body, IMMEDIATE, MAX_HOPS, Primitive, RESTARTED, RETRANSMITTABLE, Report, Version};
use crate::key::Key;
use crate::wire::error::len16;
use crate::wire::{Error, Kind, Layer, Result};

/// Bytes before the primitive's fields.
const HEADER_LEN: usize = 3;

fn err(field: &'static str, offset: u16, kind: Kind) -> Error {
    Error::new(Layer::DtaV0, field, offset, kind)
}

/// The fields as an array of the only valid length.
fn exact<'a, const N: usize>(field: &'static str, rest: &'a [u8]) -> Result<&'a [u8; N]> {
    rest.try_into().map_err(|_| {
        let (need, have) = (len16(HEADER_LEN + N), len16(HEADER_LEN + rest.len()));
        let kind =
            if rest.len() < N { Kind::Truncated { need, have } } else { Kind::TooLong { most: need, have } };
        err(field, if have < need { HEADER_LEN as u16 } else { need }, kind)
    })
}

#[inline]
pub(super) fn parse(opcode: u8, sequence: u8, flags: u8, rest: &[u8]) -> Result<Report<'_>> {
    let body = match Primitive::from_opcode(opcode) {
        Some(Primitive::KeyWrite) => {
            let f: &[u8; 9] = exact("key-write", rest)?;
            Body::KeyWrite { redundancy: f[0], key: Key::from_v0([f[1], f[2], f[3], f[4]]), value: &f[5..] }
        }
        Some(Primitive::Append) => {
            let f: &[u8; 8] = exact("append", rest)?;
            Body::Append { list: u32::from_be_bytes([f[0], f[1], f[2], f[3]]), value: &f[4..] }
        }
        Some(Primitive::KeyIncrement) => {
            let f: &[u8; 13] = exact("key-increment", rest)?;
            Body::KeyIncrement {
                redundancy: f[0],
                key: Key::from_v0([f[1], f[2], f[3], f[4]]),
                delta: u64::from_be_bytes([f[5], f[6], f[7], f[8], f[9], f[10], f[11], f[12]]),
            }
        }
        Some(Primitive::Postcarding) => {
            let f: &[u8; 9] = exact("postcard", rest)?;
            let hop = match f[4] {
                hop @ 1..=MAX_HOPS => hop - 1,
                hop => return Err(err("hop", 7, Kind::Hop(hop))),
            };
            Body::Postcard {
                key: Key::from_v0([f[0], f[1], f[2], f[3]]),
                hop,
                path_length: 0,
                value: u32::from_be_bytes([f[5], f[6], f[7], f[8]]),
            }
        }
        // Version 0 has these four.
        _ => return Err(err("opcode", 0, Kind::UnknownOpcode(opcode))),
    };
    Ok(Report {
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

pub(super) const fn buffer_len(body: &Body<'_>) -> usize {
    HEADER_LEN
        + match body {
            Body::KeyWrite { .. } | Body::Postcard { .. } => 9,
            Body::Append { .. } => 8,
            Body::KeyIncrement { .. } => 13,
            _ => 0,
        }
}

/// The 4 bytes of a version-0 key.
fn short_key(key: &Key, offset: u16) -> Result<[u8; 4]> {
    let [a, b, c, d, rest @ ..] = key.0;
    if rest == [0; 12] { Ok([a, b, c, d]) } else { Err(err("key", offset, Kind::NotInVersion)) }
}

/// The 4 bytes of a version-0 value.
fn short_value(value: &[u8], offset: u16) -> Result<[u8; 4]> {
    value.try_into().map_err(|_| err("value", offset, Kind::ValueLength(len16(value.len()))))
}

pub(super) fn emit(report: &Report<'_>, buffer: &mut [u8]) -> Result<usize> {
    let opcode = report.body.primitive().opcode();
    if report.reporter != 0 {
        return Err(err("reporter", 0, Kind::NotInVersion));
    }
    if report.store != 0 {
        return Err(err("store", 0, Kind::NotInVersion));
    }
    // All checks come before the first byte is written.
    let mut fields = [0; 13];
    match report.body {
        Body::KeyWrite { redundancy, key, value } => {
            fields[0] = redundancy;
            fields[1..5].copy_from_slice(&short_key(&key, 4)?);
            fields[5..9].copy_from_slice(&short_value(value, 8)?);
        }
        Body::Append { list, value } => {
            fields[..4].copy_from_slice(&list.to_be_bytes());
            fields[4..8].copy_from_slice(&short_value(value, 7)?);
        }
        Body::KeyIncrement { redundancy, key, delta } => {
            fields[0] = redundancy;
            fields[1..5].copy_from_slice(&short_key(&key, 4)?);
            fields[5..13].copy_from_slice(&delta.to_be_bytes());
        }
        Body::Postcard { key, hop, path_length, value } => {
            fields[..4].copy_from_slice(&short_key(&key, 3)?);
            if hop >= MAX_HOPS {
                return Err(err("hop", 7, Kind::Hop(hop)));
            }
            if path_length != 0 {
                return Err(err("path_length", 7, Kind::NotInVersion));
            }
            fields[4] = hop + 1;
            fields[5..9].copy_from_slice(&value.to_be_bytes());
        }
        _ => return Err(err("opcode", 0, Kind::NotInVersion)),
    }
    let need = buffer_len(&report.body);
    let out = room(Layer::DtaV0, buffer, need)?;
    out[..HEADER_LEN].copy_from_slice(&[opcode, report.sequence as u8, report.flags()]);
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

    fn report(body: Body<'_>) -> Report<'_> {
        Report {
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

    fn all() -> [(&'static [u8], Report<'static>); 4] {
        let key = Key::from_v0([1, 2, 3, 4]);
        let key_write =
            Body::KeyWrite { redundancy: 2, key: Key::from_v0([10, 0, 0, 1]), value: &[0, 0, 0, 9] };
        let append = Body::Append { list: 3, value: &[0xde, 0xad, 0xbe, 0xef] };
        let key_increment = Body::KeyIncrement { redundancy: 4, key, delta: 65536 };
        let postcard = Body::Postcard { key, hop: 0, path_length: 0, value: 5 };
        [
            (&KEY_WRITE, Report { sequence: 7, ..report(key_write) }),
            (&APPEND, Report { immediate: true, ..report(append) }),
            (&KEY_INCREMENT, Report { sequence: 255, retransmittable: true, ..report(key_increment) }),
            (&POSTCARD, Report { restarted: true, ..report(postcard) }),
        ]
    }

    #[test]
    fn deconstruct() {
        for (bytes, report) in all() {
            assert_eq!(Report::parse(bytes), Ok(report));
        }
    }

    #[test]
    fn construct() {
        for (bytes, report) in all() {
            let mut buffer = [0xa5; 32];
            assert_eq!(report.emit(&mut buffer), Ok(bytes.len()));
            assert_eq!(report.buffer_len(), bytes.len());
            assert_eq!(&buffer[..bytes.len()], bytes);
            assert!(buffer[bytes.len()..].iter().all(|b| *b == 0xa5));
            let error = report.emit(&mut buffer[..bytes.len() - 1]).unwrap_err();
            assert!(matches!(error.kind, Kind::BufferTooSmall { .. }));
        }
    }

    #[test]
    fn impossible_lengths() {
        for (bytes, _) in all() {
            for n in 3..bytes.len() {
                let kind = Kind::Truncated { need: bytes.len() as u16, have: n as u16 };
                assert_eq!(Report::parse(&bytes[..n]).unwrap_err().kind, kind);
            }
            let mut long = bytes.to_vec();
            long.push(0);
            let error = Report::parse(&long).unwrap_err();
            assert_eq!(error.kind, Kind::TooLong { most: bytes.len() as u16, have: long.len() as u16 });
            assert_eq!(usize::from(error.offset), bytes.len());
        }
    }

    #[test]
    fn refusals() {
        for hop in [0, 15, 255] {
            let mut bytes = POSTCARD;
            bytes[7] = hop;
            assert_eq!(Report::parse(&bytes), Err(err("hop", 7, Kind::Hop(hop))));
        }
        for opcode in [0, 5, 6, 255] {
            let mut bytes = KEY_WRITE;
            bytes[0] = opcode;
            assert_eq!(Report::parse(&bytes), Err(err("opcode", 0, Kind::UnknownOpcode(opcode))));
        }
    }

    #[test]
    fn what_version_0_cannot_say() {
        let key = Key([1; 16]);
        let short = Key::default();
        let mut buffer = [0xa5; 64];
        let plain = Body::Append { list: 0, value: &[0; 4] };
        for (r, field) in [
            (report(Body::KeyWrite { redundancy: 1, key, value: &[0; 4] }), "key"),
            (report(Body::KeyWrite { redundancy: 1, key: short, value: &[0; 8] }), "value"),
            (report(Body::Append { list: 1, value: &[] }), "value"),
            (report(Body::Postcard { key: short, hop: 14, path_length: 0, value: 0 }), "hop"),
            (report(Body::Postcard { key: short, hop: 1, path_length: 5, value: 0 }), "path_length"),
            (report(Body::SketchMerge { epoch: 0, column: 0, cells: &[0; 4] }), "opcode"),
            (Report { reporter: 1, ..report(plain) }, "reporter"),
            (Report { store: 1, ..report(plain) }, "store"),
        ] {
            assert_eq!(r.emit(&mut buffer).unwrap_err().field, field);
        }
        assert_eq!(buffer, [0xa5; 64]);
    }
}
