//! Reports of version 1: a 12-byte header, then the [body](super::body).

use super::report::report_buffer;
use super::{DtaBody, DtaReport, IMMEDIATE, Primitive, RESTARTED, RETRANSMITTABLE, Version};
use crate::wire::error::saturating_u16;
use crate::wire::{Error, Layer, Result, WireErrorKind};

/// Length of the header.
pub const HEADER_LEN: usize = 12;

pub(super) fn err(field: &'static str, offset: usize, kind: WireErrorKind) -> Error {
    Error::new(Layer::DtaV1, field, saturating_u16(offset), kind)
}

#[inline(always)] // on the path of every report: no part of it should pass through memory
pub(super) fn parse_report(bytes: &[u8]) -> Result<DtaReport<'_>> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        let kind = WireErrorKind::Truncated { need: HEADER_LEN as u16, have: saturating_u16(bytes.len()) };
        return Err(err("header", 0, kind));
    };
    let [opcode, _, flags, argument, store0, store1, reporter0, reporter1, s0, s1, s2, s3] = *header;
    let sequence = u32::from_be_bytes([s0, s1, s2, s3]);
    let Some(primitive) = Primitive::from_opcode(opcode) else {
        return Err(err("opcode", 0, WireErrorKind::UnknownOpcode(opcode)));
    };
    let body = DtaBody::parse_fields(primitive, argument, rest)?;
    // Byte 1 repeats the low 8 bits of the sequence, for switches that parse no further.
    if header[1] != s3 {
        return Err(err("sequence", 1, WireErrorKind::Contradiction));
    }
    Ok(DtaReport {
        version: Version::V1,
        immediate: flags & IMMEDIATE != 0,
        retransmittable: flags & RETRANSMITTABLE != 0,
        restarted: flags & RESTARTED != 0,
        sequence,
        reporter: u16::from_be_bytes([reporter0, reporter1]),
        store: u16::from_be_bytes([store0, store1]),
        body,
    })
}

pub(super) const fn buffer_len(body: &DtaBody<'_>) -> usize {
    HEADER_LEN + body.len()
}

#[inline]
pub(super) fn encode_report(report: &DtaReport<'_>, buffer: &mut [u8]) -> Result<usize> {
    let argument = report.body.header_argument()?;
    let need = buffer_len(&report.body);
    let out = report_buffer(Layer::DtaV1, buffer, need)?;
    let (header, rest) = out.split_at_mut(HEADER_LEN);
    header[0] = report.body.primitive().opcode();
    header[1] = report.sequence as u8;
    header[2] = report.flags_byte();
    header[3] = argument;
    header[4..6].copy_from_slice(&report.store.to_be_bytes());
    header[6..8].copy_from_slice(&report.reporter.to_be_bytes());
    header[8..12].copy_from_slice(&report.sequence.to_be_bytes());
    report.body.write_fields(rest);
    Ok(need)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use proptest::prelude::*;

    const KEY: Key = Key([10, 0, 0, 1, 10, 0, 0, 2, 0x13, 0x88, 0, 80, 6, 0, 0, 0]);

    /// The header of reports here: store 0x0102, reporter 0x0304, sequence 0x05060708.
    fn bytes(opcode: u8, flags: u8, argument: u8, rest: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![opcode, 0x08, flags, argument, 1, 2, 3, 4, 5, 6, 7, 8];
        bytes.extend(rest.concat());
        bytes
    }

    fn report(body: DtaBody<'_>) -> DtaReport<'_> {
        DtaReport { sequence: 0x0506_0708, reporter: 0x0304, ..DtaReport::new(0x0102, body) }
    }

    fn all() -> Vec<(Vec<u8>, DtaReport<'static>)> {
        let delta = 0x0102_0304_0506_0708;
        vec![
            (
                bytes(1, 0x81, 3, &[&KEY.0, &[9; 12]]),
                DtaReport {
                    immediate: true,
                    ..report(DtaBody::KeyWrite { redundancy: 3, key: KEY, value: &[9; 12] })
                },
            ),
            (
                bytes(2, 0x41, 0, &[&[0, 0, 1, 0], &[8; 4]]),
                DtaReport { retransmittable: true, ..report(DtaBody::Append { list: 256, value: &[8; 4] }) },
            ),
            (
                bytes(3, 0x21, 0, &[&KEY.0, &[1, 2, 3, 4, 5, 6, 7, 8]]),
                DtaReport {
                    restarted: true,
                    ..report(DtaBody::KeyIncrement { redundancy: 0, key: KEY, delta })
                },
            ),
            (
                bytes(4, 1, 0x54, &[&KEY.0, &[0, 0, 0, 7]]),
                report(DtaBody::Postcard { key: KEY, hop: 4, path_length: 5, value: 7 }),
            ),
            (
                bytes(5, 1, 0, &[&[0, 0, 0, 1], &[0, 0, 0, 2], &[6; 16]]),
                report(DtaBody::SketchMerge { epoch: 1, column: 2, cells: &[6; 16] }),
            ),
        ]
    }

    #[test]
    fn deconstruct() {
        for (bytes, report) in all() {
            assert_eq!(DtaReport::parse_payload(&bytes), Ok(report));
        }
    }

    #[test]
    fn construct() {
        for (bytes, report) in all() {
            let mut buffer = [0xa5; 100];
            assert_eq!(report.encode_into(&mut buffer), Ok(bytes.len()));
            assert_eq!(report.buffer_len(), bytes.len());
            assert_eq!(buffer[..bytes.len()], bytes);
            assert!(buffer[bytes.len()..].iter().all(|b| *b == 0xa5));
            let error = report.encode_into(&mut buffer[..bytes.len() - 1]).unwrap_err();
            assert!(matches!(error.kind, WireErrorKind::BufferTooSmall { .. }));
        }
    }

    #[test]
    fn impossible_lengths() {
        for (bytes, _) in all() {
            // A byte more or less is never valid: all lengths are multiples of 4.
            for n in (3..bytes.len()).filter(|n| n % 4 != 0) {
                assert!(DtaReport::parse_payload(&bytes[..n]).is_err());
            }
            assert!(DtaReport::parse_payload(&[&bytes[..], &[0]].concat()).is_err());
        }
        let long = bytes(1, 1, 0, &[&KEY.0, &[0; 64]]);
        assert_eq!(DtaReport::parse_payload(&long), Err(err("value", 28, WireErrorKind::ValueLength(64))));
        assert_eq!(
            DtaReport::parse_payload(&long[..28]),
            Err(err("value", 28, WireErrorKind::ValueLength(0)))
        );
        assert_eq!(
            DtaReport::parse_payload(&long[..20]),
            Err(err("key", 12, WireErrorKind::Truncated { need: 28, have: 20 }))
        );
        assert_eq!(
            DtaReport::parse_payload(&long[..11]),
            Err(err("header", 0, WireErrorKind::Truncated { need: 12, have: 11 }))
        );
        let rows = bytes(5, 1, 0, &[&[0; 8], &[0; 20]]);
        assert_eq!(DtaReport::parse_payload(&rows), Err(err("cells", 20, WireErrorKind::Rows(20))));
        assert_eq!(DtaReport::parse_payload(&rows[..20]), Err(err("cells", 20, WireErrorKind::Rows(0))));
        let increment = bytes(3, 1, 0, &[&KEY.0, &[0; 12]]);
        assert_eq!(
            DtaReport::parse_payload(&increment),
            Err(err("end", 36, WireErrorKind::TooLong { most: 36, have: 40 }))
        );
    }

    #[test]
    fn refusals() {
        let parse = |opcode, flags, argument| {
            DtaReport::parse_payload(&bytes(opcode, flags, argument, &[&KEY.0, &[0; 4]])).err()
        };
        let dta = |version| Error::new(Layer::Dta, "version", 2, WireErrorKind::UnknownVersion(version));
        assert_eq!(parse(1, 2, 0), Some(dta(2)));
        assert_eq!(parse(1, 3, 0), Some(dta(3)));
        assert_eq!(parse(0, 1, 0), Some(err("opcode", 0, WireErrorKind::UnknownOpcode(0))));
        assert_eq!(parse(6, 1, 0), Some(err("opcode", 0, WireErrorKind::UnknownOpcode(6))));
        assert_eq!(parse(4, 1, 0x0e), Some(err("hop", 3, WireErrorKind::Hop(14))));
        assert_eq!(parse(4, 1, 0x5f), Some(err("hop", 3, WireErrorKind::Hop(15))));
        assert_eq!(parse(4, 1, 0x44), Some(err("path_length", 3, WireErrorKind::PathLength(4))));
        assert_eq!(parse(4, 1, 0xf4), Some(err("path_length", 3, WireErrorKind::PathLength(15))));
        assert_eq!(parse(4, 1, 0xed), None);
        assert_eq!(parse(4, 1, 0x0d), None);
        let mut contradiction = bytes(1, 1, 0, &[&KEY.0, &[0; 4]]);
        contradiction[1] ^= 1;
        assert_eq!(
            DtaReport::parse_payload(&contradiction),
            Err(err("sequence", 1, WireErrorKind::Contradiction))
        );
        for n in 0..3 {
            let kind = WireErrorKind::Truncated { need: 3, have: n as u16 };
            assert_eq!(
                DtaReport::parse_payload(&contradiction[..n]),
                Err(Error::new(Layer::Dta, "header", 0, kind))
            );
        }
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let plain = bytes(2, 0x01, 0, &[&[0, 0, 1, 0], &[8; 4]]);
        let odd = bytes(2, 0x1d, 0xff, &[&[0, 0, 1, 0], &[8; 4]]);
        assert_eq!(DtaReport::parse_payload(&plain), DtaReport::parse_payload(&odd));
    }

    #[test]
    fn emit_refuses_what_parse_would() {
        let mut buffer = [0xa5; 128];
        for body in [
            DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &[0; 5] },
            DtaBody::Append { list: 0, value: &[0; 64] },
            DtaBody::Postcard { key: KEY, hop: 14, path_length: 0, value: 0 },
            DtaBody::Postcard { key: KEY, hop: 3, path_length: 3, value: 0 },
            DtaBody::Postcard { key: KEY, hop: 3, path_length: 15, value: 0 },
            DtaBody::SketchMerge { epoch: 0, column: 0, cells: &[0; 20] },
            DtaBody::SketchMerge { epoch: 0, column: 0, cells: &[] },
        ] {
            assert!(report(body).encode_into(&mut buffer).is_err(), "{body:?}");
        }
        assert_eq!(buffer, [0xa5; 128]);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = DtaReport::parse_payload(&bytes);
        }

        /// Emitting a parsed report gives the same bytes, except reserved ones, and they parse to the same
        /// report.
        #[test]
        fn mutated_bytes(which in 0usize..5, at: prop::sample::Index, byte: u8, cut in 0usize..100) {
            let mut bytes = all().swap_remove(which).0;
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(cut.max(3));
            if let Ok(report) = DtaReport::parse_payload(&bytes) {
                let mut again = [0xa5; 100];
                let len = report.encode_into(&mut again).unwrap();
                prop_assert_eq!(len, bytes.len());
                prop_assert_eq!(DtaReport::parse_payload(&again[..len]), Ok(report));
            }
        }
    }
}
