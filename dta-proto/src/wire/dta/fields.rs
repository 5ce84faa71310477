//! Byte ranges of a report's fields, to write them in place.

use super::{Addressing, Primitive, V1_HEADER_LEN, Version};
use crate::key::KEY_LEN;

/// The bytes that may differ between reports of one length, apart from flags and sequence. Any contents are
/// valid. A field that the primitive lacks is empty.
#[derive(Debug, PartialEq, Eq)]
pub struct ReportFields<'a> {
    /// The key: 16 bytes, 4 in version 0. Empty for append and sketch-merge.
    pub key: &'a mut [u8],
    /// Append: the list. Sketch-merge: the column. 4 bytes, big-endian.
    pub place: &'a mut [u8],
    /// The value, the entry or the cells; key-increment: the addend, 8 bytes; postcard: the hop's value, 4
    /// bytes, both big-endian.
    pub value: &'a mut [u8],
}

impl<'a> ReportFields<'a> {
    /// The fields of a report of `primitive` that [`DtaReport::encode_into`](super::DtaReport::encode_into) wrote;
    /// `None` if the bytes are shorter.
    #[inline]
    pub fn from_report(
        version: Version,
        primitive: Primitive,
        report: &'a mut [u8],
    ) -> Option<ReportFields<'a>> {
        // The bytes before the key or place, those of the key or place, and those between it and the value.
        let (before, key, place, between) = match (version, primitive.addressing()) {
            (Version::V0, Addressing::Key) if matches!(primitive, Primitive::Postcarding) => (3, 4, 0, 1),
            (Version::V0, Addressing::Key) => (4, 4, 0, 0),
            (Version::V0, Addressing::List | Addressing::Column) => (3, 0, 4, 0),
            (Version::V1, Addressing::Key) => (V1_HEADER_LEN, KEY_LEN, 0, 0),
            (Version::V1, Addressing::List) => (V1_HEADER_LEN, 0, 4, 0),
            (Version::V1, Addressing::Column) => (V1_HEADER_LEN + 4, 0, 4, 0),
        };
        let (key, rest) = report.get_mut(before..)?.split_at_mut_checked(key)?;
        let (place, rest) = rest.split_at_mut_checked(place)?;
        Some(ReportFields { key, place, value: rest.get_mut(between..)? })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DtaBody, DtaReport};
    use super::*;
    use crate::key::Key;

    #[test]
    fn what_is_written_in_place_is_what_a_parser_reads() {
        let bodies = |key| {
            [
                DtaBody::KeyWrite { redundancy: 2, key, value: &[0; 4] },
                DtaBody::Append { list: 1, value: &[0; 4] },
                DtaBody::KeyIncrement { redundancy: 2, key, delta: 1 },
                DtaBody::Postcard { key, hop: 3, path_length: 0, value: 1 },
                DtaBody::SketchMerge { epoch: 7, column: 1, cells: &[0; 4] },
            ]
        };
        for version in [Version::V0, Version::V1] {
            let key = match version {
                Version::V0 => Key::from_version_0([1; 4]),
                Version::V1 => Key([1; 16]),
            };
            for body in
                bodies(key).into_iter().filter(|b| version == Version::V1 || b.primitive().in_version0())
            {
                let mut bytes = [0; 100];
                let report = DtaReport {
                    version,
                    immediate: false,
                    retransmittable: false,
                    restarted: false,
                    sequence: 9,
                    reporter: 0,
                    store: 0,
                    body,
                };
                let len = report.encode_into(&mut bytes).unwrap();
                let fields = ReportFields::from_report(version, body.primitive(), &mut bytes[..len]).unwrap();
                fields.key.fill(5);
                fields.place.fill(6);
                fields.value.fill(8);
                let written = match version {
                    Version::V0 => Key::from_version_0([5; 4]),
                    Version::V1 => Key([5; 16]),
                };
                let expect = match body {
                    DtaBody::KeyWrite { redundancy, .. } => {
                        DtaBody::KeyWrite { redundancy, key: written, value: &[8; 4] }
                    }
                    DtaBody::Append { .. } => DtaBody::Append { list: 0x0606_0606, value: &[8; 4] },
                    DtaBody::KeyIncrement { redundancy, .. } => {
                        DtaBody::KeyIncrement { redundancy, key: written, delta: 0x0808_0808_0808_0808 }
                    }
                    DtaBody::Postcard { hop, path_length, .. } => {
                        DtaBody::Postcard { key: written, hop, path_length, value: 0x0808_0808 }
                    }
                    DtaBody::SketchMerge { epoch, .. } => {
                        DtaBody::SketchMerge { epoch, column: 0x0606_0606, cells: &[8; 4] }
                    }
                };
                assert_eq!(DtaReport::parse_payload(&bytes[..len]), Ok(DtaReport { body: expect, ..report }));
                assert_eq!(ReportFields::from_report(version, body.primitive(), &mut bytes[..3]), None);
            }
        }
    }
}
