//! Decoding of gRPC messages, with a limit on how large a request can become in memory.
//!
//! A message of a few megabytes can hold millions of empty fields, each of which takes a hundred bytes once
//! decoded. So fields are counted before decoding.

use std::marker::PhantomData;

use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};
use prost::{Message, Name};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// Most parts of a request: its fields, and their fields.
pub const MAX_PARTS: usize = 1 << 18;

/// prost's codec, except that it refuses requests of more than [`MAX_PARTS`] parts. Answers are not limited:
/// the client chose the server.
#[derive(Clone, Debug)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstDecoder::default())
    }
}

/// The decoder of [`BoundedCodec`].
#[derive(Clone, Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Name + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic passes a message in one piece; one in several pieces would escape the count.
        let whole = buf.chunk();
        if U::NAME.ends_with("Request") && (whole.len() != buf.remaining() || count_parts(whole) > MAX_PARTS)
        {
            return Err(Status::invalid_argument(format!(
                "{} has more than {MAX_PARTS} parts: send it in several",
                U::NAME
            )));
        }
        self.0.decode(buf)
    }
}

/// Counts fields, and the fields of those that parse as messages, up to one more than [`MAX_PARTS`]. A string
/// that happens to parse as a message adds at most one part per two bytes.
fn count_parts(message: &[u8]) -> usize {
    let mut count = 0;
    // The decoder rejects what is not a message.
    let _ = for_each_field(message, |field| {
        count += 1;
        let mut inner = 0;
        if for_each_field(field, |_| {
            inner += 1;
            count + inner <= MAX_PARTS
        })
        .is_some()
            || count + inner > MAX_PARTS
        {
            count += inner;
        }
        count <= MAX_PARTS
    });
    count
}

/// Calls `with` for each field's contents (empty for numbers) until it returns `false`. `None` if this is not
/// a message.
fn for_each_field<'a>(mut message: &'a [u8], mut with: impl FnMut(&'a [u8]) -> bool) -> Option<()> {
    while !message.is_empty() {
        let (_, wire) = decode_key(&mut message).ok()?;
        let len = match wire {
            WireType::Varint => {
                decode_varint(&mut message).ok()?;
                0
            }
            WireType::LengthDelimited => usize::try_from(decode_varint(&mut message).ok()?).ok()?,
            WireType::ThirtyTwoBit => 4,
            WireType::SixtyFourBit => 8,
            // Our messages have no groups. The contents of one are counted as ordinary fields.
            WireType::StartGroup | WireType::EndGroup => 0,
        };
        let (field, rest) = message.split_at_checked(len)?;
        message = rest;
        if !with(field) {
            return Some(());
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Counter, NodeStatistics, QueryRequest, RenewSessionRequest};

    #[test]
    fn parts_are_counted_with_those_inside_them() {
        let node = NodeStatistics {
            node: "translator/t".into(),
            life: 5,
            counters: (0..10).map(|value| Counter { name: format!("c{value}"), value }).collect(),
            ..Default::default()
        };
        let renew = RenewSessionRequest {
            name: "x".into(),
            generation: 1,
            statistics: vec![node; 3],
            ..Default::default()
        };
        // Name and generation; per node its name, its start and ten counters.
        assert_eq!(count_parts(&renew.encode_to_vec()), 2 + 3 * (1 + 12));
        // The longest allowed query stays below the limit whatever its keys.
        for byte in [0, 8, 0xff] {
            let query = QueryRequest { keys: vec![vec![byte; 16]; 16_384], ..Default::default() };
            assert!(count_parts(&query.encode_to_vec()) <= MAX_PARTS, "{byte}");
        }
    }

    #[test]
    fn a_flood_is_counted_no_further_than_needed() {
        let renew = RenewSessionRequest {
            statistics: vec![NodeStatistics::default(); 1 << 20],
            ..Default::default()
        };
        assert_eq!(count_parts(&renew.encode_to_vec()), MAX_PARTS + 1);
        let node = NodeStatistics { counters: vec![Counter::default(); 1 << 20], ..Default::default() };
        let renew = RenewSessionRequest { statistics: vec![node], ..Default::default() };
        assert_eq!(count_parts(&renew.encode_to_vec()), MAX_PARTS + 1);
        // Bytes that are not a message are not counted; the decoder refuses them.
        assert_eq!(count_parts(&[0xff; 64]), 0);
    }
}
