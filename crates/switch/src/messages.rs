//! The parts of P4Runtime and BfRuntime that program a switch: messages, clients, and servers for tests.
//!
//! Written from the specification of P4Runtime 1.3: arbitration, pipeline configuration, tables, multicast groups,
//! counters, digests, and packets to and from the switch; and from the descriptions of BfRuntime, the gRPC service of a
//! Tofino's driver (`bf_switchd`, TCP port 50052). What a switch sends beyond that is skipped.

/// Declares how the details of a failed write describe the outcome of each update, in the messages of a package.
macro_rules! errors_of_updates {
    ($package:ident, $type:literal) => {
        /// The outcome of each update of a failed write, in the order of the updates; empty if the switch
        /// does not say. Code 0 means that the update was made.
        pub fn update_errors(status: &tonic::Status) -> Vec<$package::Error> {
            let Ok(status) = $package::Status::decode(status.details()) else { return Vec::new() };
            let error = |detail: &$package::Detail| $package::Error::decode(detail.value.as_slice()).ok();
            status.details.iter().filter(|detail| detail.type_url == $type).filter_map(error).collect()
        }

        /// The answer of a switch that did not make every update: one error per update, in order, with code 0
        /// where it was made.
        pub fn write_failed(errors: &[$package::Error]) -> tonic::Status {
            let detail = |error: &$package::Error| $package::Detail {
                type_url: $type.into(),
                value: error.encode_to_vec(),
            };
            let message = String::from("one or more updates of the write failed");
            let code = tonic::Code::Unknown;
            let details = errors.iter().map(detail).collect();
            let status = $package::Status { code: code.into(), message: message.clone(), details };
            tonic::Status::with_details(code, message, status.encode_to_vec().into())
        }
    };
}

/// P4Runtime ([`v1`](p4runtime::v1)), and the tables that a compiled program describes ([`config`](p4runtime::config)).
pub mod p4runtime {
    use prost::Message;

    /// Messages, client and server of `p4.v1`.
    pub mod v1 {
        #![allow(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated")]
        tonic::include_proto!("p4.v1");
    }

    /// What a compiled program says about itself: `p4.config.v1`.
    pub mod config {
        #![allow(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated")]
        tonic::include_proto!("p4.config.v1");
    }

    errors_of_updates!(v1, "type.googleapis.com/p4.v1.Error");

    /// A number as P4Runtime writes it: big-endian, in as few bytes as it takes, at least one.
    pub fn to_bytes(value: u128) -> Vec<u8> {
        let bytes = value.to_be_bytes();
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count().min(bytes.len() - 1);
        bytes[zeros..].to_vec()
    }

    /// The number in these bytes; `None` if it exceeds 128 bits. Leading zeros are accepted, since not every
    /// switch leaves them out.
    pub fn from_bytes(bytes: &[u8]) -> Option<u128> {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let bytes = &bytes[zeros..];
        (bytes.len() <= 16).then(|| bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte)))
    }

    /// A P4Info in its binary form.
    pub fn read_p4info(bytes: &[u8]) -> Result<config::P4Info, prost::DecodeError> {
        config::P4Info::decode(bytes)
    }
}

/// BfRuntime. The `bfrt.json` of the compiled program lists its tables ([`crate::bfrt_json`]).
pub mod bfruntime {
    use prost::Message;

    /// Messages, client and server of `bfrt_proto`.
    pub mod bfrt {
        #![allow(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated")]
        tonic::include_proto!("bfrt_proto");
    }

    errors_of_updates!(bfrt, "type.googleapis.com/bfrt_proto.Error");
}

#[cfg(test)]
mod tests {
    use super::bfruntime::{self, bfrt};
    use super::p4runtime::{self, from_bytes, to_bytes, v1};

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
        let made = v1::Error::default();
        let errors = [made.clone(), v1::Error { canonical_code: 6, message: "it is there".into(), ..made }];
        assert_eq!(p4runtime::update_errors(&p4runtime::write_failed(&errors)), errors);
        assert_eq!(p4runtime::update_errors(&tonic::Status::unknown("no details")), []);
        let made = bfrt::Error::default();
        let errors = [made.clone(), bfrt::Error { canonical_code: 6, message: "it is there".into(), ..made }];
        assert_eq!(bfruntime::update_errors(&bfruntime::write_failed(&errors)), errors);
        assert_eq!(bfruntime::update_errors(&tonic::Status::unknown("no details")), []);
    }
}
