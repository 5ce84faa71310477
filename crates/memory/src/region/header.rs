//! The header of a region file.
//!
//! ```text
//! offset  bytes
//!  0      8     magic "DTAREGN\0"
//!  8      4     header version, little-endian: 2
//! 12      4     0x01020304 in the writer's byte order, which counters in the data use too
//! 16      8     offset of the data in the file, little-endian
//! 24      8     bytes of data, little-endian
//! 32      4     bytes of the body, little-endian
//! 36      4     CRC-32 (ISO-HDLC) of bytes 8 to 35 and the body, little-endian
//! 40      n     body: bincode 2, standard configuration, of generation u64, iova u64, created u64 (seconds since
//!               1970), and the store as the bytes of protobuf message dta.v1.Store
//! ```
//!
//! The magic is written last, so a file whose creation was interrupted has none and is created again.

use std::time::{SystemTime, UNIX_EPOCH};

use bincode::{Decode, Encode};
use dta_proto::store::StoreSpec;
use dta_proto::{control, crc};
use prost::Message;

use super::wire_address_for;

/// Bytes reserved for the header at the beginning of the file.
pub const HEADER_LEN: usize = 4096;
pub const VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"DTAREGN\0";
const BYTE_ORDER_MARK: u32 = 0x0102_0304;
const CHECKSUM: usize = 36;
const BODY: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionHeader {
    pub spec: StoreSpec,
    /// The store's generation, which increases whenever its memory is replaced.
    pub generation: u64,
    pub iova: u64,
    /// When the file was created, in seconds since 1970.
    pub created: u64,
}

impl RegionHeader {
    /// The header of a new region of a store: generation 1, the store's usual address, created now.
    pub fn new(spec: StoreSpec) -> RegionHeader {
        Self::of_generation(spec, 1)
    }

    /// The header of a new region that replaces one of the previous generation.
    pub fn of_generation(spec: StoreSpec, generation: u64) -> RegionHeader {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let iova = wire_address_for(spec.id, spec.region_len(), generation);
        RegionHeader { spec, generation, iova, created }
    }
}

/// Why a file is not the expected region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Shorter than its header says, or than a header is.
    #[error("is cut off: {has} bytes, but it should have {wants}; remove it to start empty")]
    Truncated {
        /// Its length in bytes.
        has: u64,
        /// The length that it should have.
        wants: u64,
    },
    /// Does not begin as a region file does.
    #[error("is not a region file (no magic \"DTAREGN\"); choose another name, or remove it")]
    NotARegion,
    /// Another version of the header.
    #[error(
        "has header version {0}, this program reads version {VERSION}; use the program that wrote it, or remove it to \
         start empty"
    )]
    Version(u32),
    /// Written on a machine of the other byte order.
    #[error("was written on a machine of the other byte order; remove it to start empty")]
    ByteOrder,
    /// The header's own checksum or encoding is wrong.
    #[error("has a damaged header ({0}); remove it to start empty")]
    Damaged(&'static str),
    #[error(
        "holds store `{}` (id {}, {:?}), but the configuration wants `{}` (id {}, {:?}); change the configuration back, or \
         remove the file to start empty",
        file.name, file.id, file.kind, wanted.name, wanted.id, wanted.kind
    )]
    Store { file: Box<StoreSpec>, wanted: Box<StoreSpec> },
}

#[derive(Encode, Decode)]
struct HeaderBody {
    generation: u64,
    iova: u64,
    created: u64,
    store: Vec<u8>,
}

/// A header as read from a file.
pub(super) struct ParsedHeader {
    pub(super) header: RegionHeader,
    pub(super) data_offset: u64,
    pub(super) data_len: u64,
}

/// The bytes of a header without its magic (zeros instead), and the magic, to be written after them.
pub(super) fn encode_header(header: &RegionHeader, data_offset: u64) -> (Vec<u8>, [u8; 8]) {
    let body = HeaderBody {
        generation: header.generation,
        iova: header.iova,
        created: header.created,
        store: control::Store::from(&header.spec).encode_to_vec(),
    };
    let body =
        bincode::encode_to_vec(body, bincode::config::standard()).expect("integers and bytes always encode");
    let mut bytes = vec![0; 8];
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(BYTE_ORDER_MARK.to_ne_bytes());
    bytes.extend(data_offset.to_le_bytes());
    bytes.extend(header.spec.region_len().to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(header_checksum(&bytes, &body).to_le_bytes());
    bytes.extend(&body);
    (bytes, MAGIC)
}

/// The checksum of a header whose first bytes are `bytes`.
fn header_checksum(bytes: &[u8], body: &[u8]) -> u32 {
    crc::crc32(&[&bytes[8..CHECKSUM], body].concat())
}

/// Reads a header. `None` if there never was one (no magic, all zeros), because creation was interrupted.
pub(super) fn decode_header(bytes: &[u8; HEADER_LEN]) -> Result<Option<ParsedHeader>, Mismatch> {
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    if bytes[..8] == [0; 8] {
        return Ok(None);
    }
    if bytes[..8] != MAGIC {
        return Err(Mismatch::NotARegion);
    }
    // The version comes first: it decides what follows.
    let version = u32_at(8);
    if version != VERSION {
        return Err(Mismatch::Version(version));
    }
    let mark: [u8; 4] = bytes[12..16].try_into().expect("4 bytes");
    if mark != BYTE_ORDER_MARK.to_ne_bytes() {
        let mut swapped = mark;
        swapped.reverse();
        return Err(if swapped == BYTE_ORDER_MARK.to_ne_bytes() {
            Mismatch::ByteOrder
        } else {
            Mismatch::Damaged("byte order mark")
        });
    }
    let (data_offset, data_len) = (u64_at(16), u64_at(24));
    let body_len = u32_at(32) as usize;
    let body = bytes[BODY..].get(..body_len).ok_or(Mismatch::Damaged("length of its body"))?;
    if header_checksum(bytes, body) != u32_at(CHECKSUM) {
        return Err(Mismatch::Damaged("checksum"));
    }
    let (body, used): (HeaderBody, usize) = bincode::decode_from_slice(body, bincode::config::standard())
        .map_err(|_| Mismatch::Damaged("encoding of its body"))?;
    if used != body_len {
        return Err(Mismatch::Damaged("length of its body"));
    }
    let store = control::Store::decode(body.store.as_slice())
        .map_err(|_| Mismatch::Damaged("encoding of its store"))?;
    let spec = StoreSpec::try_from(&store).map_err(|_| Mismatch::Damaged("description of its store"))?;
    if spec.region_len() != data_len {
        return Err(Mismatch::Damaged("length of its data"));
    }
    if data_offset < HEADER_LEN as u64 || data_offset % HEADER_LEN as u64 != 0 {
        return Err(Mismatch::Damaged("offset of its data"));
    }
    let header = RegionHeader { spec, generation: body.generation, iova: body.iova, created: body.created };
    Ok(Some(ParsedHeader { header, data_offset, data_len }))
}

#[cfg(test)]
mod tests {
    use dta_proto::store::StoreKind;

    use super::*;

    /// The bytes of the example in the documentation, which a program in another language wrote.
    fn of_the_document() -> Vec<u8> {
        let document = include_str!("../../../../docs/region-file.md");
        let example = document.split("```hex\n").nth(1).and_then(|rest| rest.split("```").next());
        let digits = example.expect("an example").split_whitespace();
        digits.map(|byte| u8::from_str_radix(byte, 16).expect("hex")).collect()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_document_has_these_bytes() {
        let spec = StoreSpec {
            id: 1,
            name: "flows".into(),
            kind: StoreKind::KeyWrite { slots: 16, value_len: 12, redundancy: 2, keys: Default::default() },
        };
        let header = RegionHeader { spec, generation: 1, iova: 2 << 40, created: 1_700_000_000 };
        let (mut bytes, magic) = encode_header(&header, 4096);
        bytes[..8].copy_from_slice(&magic);
        assert_eq!(bytes, of_the_document());
        assert_eq!(header.iova, wire_address_for(1, 256, 1));

        let mut file = [0; HEADER_LEN];
        file[..bytes.len()].copy_from_slice(&bytes);
        let found = decode_header(&file).unwrap().expect("a header");
        assert_eq!((found.header, found.data_offset, found.data_len), (header, 4096, 256));
    }
}
