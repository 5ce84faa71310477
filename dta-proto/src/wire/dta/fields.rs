//! Byte ranges of a report's fields, to write them in place.

use super::{Addressing, Primitive, V1_HEADER_LEN, Version};
use crate::key::KEY_LEN;

/// The bytes that may differ between reports of one length, apart from flags and sequence. Any contents are
/// valid. A field that the primitive lacks is empty.
#[derive(Debug, PartialEq, Eq)]
pub struct Fields<'a> {
    /// The key: 16 bytes, 4 in version 0. Empty for append and sketch-merge.
    pub key: &'a mut [u8],
    /// Append: the list. Sketch-merge: the column. 4 bytes, big-endian.
    pub place: &'a mut [u8],
    /// The value, the entry or the cells; key-increment: the addend, 8 bytes; postcard: the hop's value, 4
    /// bytes, both big-endian.
    pub value: &'a mut [u8],
}

impl<'a> Fields<'a> {
    /// The fields of a report of `primitive` that [`Report::emit`](super::Report::emit) wrote; `None` if the
    /// bytes are shorter.
    #[inline]
    pub fn of(version: Version, primitive: Primitive, report: &'a mut [u8]) -> Option<Fields<'a>> {
        // Bytes before the key or place, the bytes of these, and those between them and the value.
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
        Some(Fields { key, place, value: rest.get_mut(between..)? })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Body, Report};
    use super::*;
    use crate::key::Key;

    #[test]
    fn what_is_written_in_place_is_what_a_parser_reads() {
        let bodies = |key| {
            [
                Body::KeyWrite { redundancy: 2, key, value: &[0; 4] },
                Body::Append { list: 1, value: &[0; 4] },
                Body::KeyIncrement { redundancy: 2, key, delta: 1 },
                Body::Postcard { key, hop: 3, path_length: 0, value: 1 },
                Body::SketchMerge { epoch: 7, column: 1, cells: &[0; 4] },
            ]
        };
        for version in [Version::V0, Version::V1] {
            let key = match version {
                Version::V0 => Key::from_v0([1; 4]),
                Version::V1 => Key([1; 16]),
            };
            for body in
                bodies(key).into_iter().filter(|b| version == Version::V1 || b.primitive().in_version0())
            {
                let mut bytes = [0; 100];
                let report = Report {
                    version,
                    immediate: false,
                    retransmittable: false,
                    restarted: false,
                    sequence: 9,
                    reporter: 0,
                    store: 0,
                    body,
                };
                let len = report.emit(&mut bytes).unwrap();
                let fields = Fields::of(version, body.primitive(), &mut bytes[..len]).unwrap();
                fields.key.fill(5);
                fields.place.fill(6);
                fields.value.fill(8);
                let written = match version {
                    Version::V0 => Key::from_v0([5; 4]),
                    Version::V1 => Key([5; 16]),
                };
                let expect = match body {
                    Body::KeyWrite { redundancy, .. } => {
                        Body::KeyWrite { redundancy, key: written, value: &[8; 4] }
                    }
                    Body::Append { .. } => Body::Append { list: 0x0606_0606, value: &[8; 4] },
                    Body::KeyIncrement { redundancy, .. } => {
                        Body::KeyIncrement { redundancy, key: written, delta: 0x0808_0808_0808_0808 }
                    }
                    Body::Postcard { hop, path_length, .. } => {
                        Body::Postcard { key: written, hop, path_length, value: 0x0808_0808 }
                    }
                    Body::SketchMerge { epoch, .. } => {
                        Body::SketchMerge { epoch, column: 0x0606_0606, cells: &[8; 4] }
                    }
                };
                assert_eq!(Report::parse(&bytes[..len]), Ok(Report { body: expect, ..report }));
                assert_eq!(Fields::of(version, body.primitive(), &mut bytes[..3]), None);
            }
        }
    }
}
