//! The part of P4Runtime that programs a switch: messages with client and server ([`v1`]), and the tables that a
//! compiled program describes ([`config`]).
//!
//! Written from the specification of P4Runtime 1.3: arbitration, pipeline configuration, tables, multicast groups,
//! counters, digests, and packets to and from the switch. What a switch sends beyond that is skipped.

pub mod bfruntime;

use prost::Message;

/// Messages, client and server of `p4.v1`.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, reason = "generated")]
    tonic::include_proto!("p4.v1");
}

/// What a compiled program says about itself: `p4.config.v1`.
pub mod config {
    #![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, reason = "generated")]
    tonic::include_proto!("p4.config.v1");
}

/// The type of one [`v1::Error`] in the details of a failed write.
const ERROR_TYPE: &str = "type.googleapis.com/p4.v1.Error";

/// What became of each update of a write that failed, in the order of the updates; empty where the switch does not
/// say. Code 0 stands for an update that was made.
pub fn update_errors(status: &tonic::Status) -> Vec<v1::Error> {
    let Ok(status) = v1::Status::decode(status.details()) else { return Vec::new() };
    let error = |detail: &v1::Detail| v1::Error::decode(detail.value.as_slice()).ok();
    status.details.iter().filter(|detail| detail.type_url == ERROR_TYPE).filter_map(error).collect()
}

/// The answer of a switch that did not make each update: an error for each in their order, of code 0 where it was made.
pub fn write_failed(errors: &[v1::Error]) -> tonic::Status {
    let detail = |error: &v1::Error| v1::Detail { type_url: ERROR_TYPE.into(), value: error.encode_to_vec() };
    let message = String::from("one or more updates of the write failed");
    let code = tonic::Code::Unknown;
    let status = v1::Status {
        code: code.into(),
        message: message.clone(),
        details: errors.iter().map(detail).collect(),
    };
    tonic::Status::with_details(code, message, status.encode_to_vec().into())
}

/// A number as P4Runtime writes it: big-endian in as few bytes as it takes, one at least.
pub fn to_bytes(value: u128) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count().min(bytes.len() - 1);
    bytes[zeros..].to_vec()
}

/// The number in these bytes; `None` for one beyond 128 bits. Leading zeros are taken: not every switch leaves them out.
pub fn from_bytes(bytes: &[u8]) -> Option<u128> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let bytes = &bytes[zeros..];
    (bytes.len() <= 16).then(|| bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte)))
}

/// A P4Info in its binary form.
///
/// # Errors
/// Bytes that are none.
pub fn read_p4info(bytes: &[u8]) -> Result<config::P4Info, prost::DecodeError> {
    config::P4Info::decode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_short_as_they_can_be() {
        for (value, bytes) in [(0, &[0][..]), (1, &[1]), (0x100, &[1, 0]), (u128::MAX, &[0xff; 16])] {
            assert_eq!(to_bytes(value), bytes);
            assert_eq!(from_bytes(bytes), Some(value));
        }
        assert_eq!(from_bytes(&[]), Some(0));
        assert_eq!(from_bytes(&[0, 0, 5]), Some(5));
        assert_eq!(from_bytes(&[1; 17]), None);
        let mut long = [0; 20];
        long[19] = 7;
        assert_eq!(from_bytes(&long), Some(7));
    }

    #[test]
    fn errors_of_updates_are_read_back() {
        let error = |code: i32, message: &str| v1::Error {
            canonical_code: code,
            message: message.into(),
            ..v1::Error::default()
        };
        let errors = [error(0, ""), error(6, "it is there")];
        assert_eq!(update_errors(&write_failed(&errors)), errors);
        assert_eq!(update_errors(&tonic::Status::unknown("no details")), []);
    }
}
