//! The part of BfRuntime that programs a Tofino switch: messages, client and server.
//!
//! BfRuntime is the gRPC service of the switch's driver (`bf_switchd`, TCP port 50052). Which tables there are, the
//! `bfrt.json` of the compiled program tells. What a switch sends beyond the messages here is skipped.

use prost::Message;

/// Messages, client and server of `bfrt_proto`.
pub mod bfrt {
    #![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, reason = "generated")]
    tonic::include_proto!("bfrt_proto");
}

/// The type of one [`bfrt::Error`] in the details of a failed write.
const ERROR_TYPE: &str = "type.googleapis.com/bfrt_proto.Error";

/// What became of the updates of a write that failed; empty where the switch does not say. Code 0 stands for one
/// that was made.
pub fn update_errors(status: &tonic::Status) -> Vec<bfrt::Error> {
    let Ok(status) = bfrt::Status::decode(status.details()) else { return Vec::new() };
    let error = |detail: &bfrt::Detail| bfrt::Error::decode(detail.value.as_slice()).ok();
    status.details.iter().filter(|detail| detail.type_url == ERROR_TYPE).filter_map(error).collect()
}

/// The answer of a switch that did not make each update: an error for each in their order, of code 0 where it was made.
pub fn write_failed(errors: &[bfrt::Error]) -> tonic::Status {
    let detail =
        |error: &bfrt::Error| bfrt::Detail { type_url: ERROR_TYPE.into(), value: error.encode_to_vec() };
    let message = String::from("one or more updates of the write failed");
    let code = tonic::Code::Unknown;
    let status = bfrt::Status {
        code: code.into(),
        message: message.clone(),
        details: errors.iter().map(detail).collect(),
    };
    tonic::Status::with_details(code, message, status.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_updates_are_read_back() {
        let error =
            |code: i32| bfrt::Error { canonical_code: code, message: "x".into(), ..bfrt::Error::default() };
        let errors = [error(0), error(6)];
        assert_eq!(update_errors(&write_failed(&errors)), errors);
        assert_eq!(update_errors(&tonic::Status::unknown("no details")), []);
    }
}
