//! Errors as problem details (RFC 9457).

use dta_rpc::ClientError;
use dta_views::int::IntError;
use http::StatusCode;
use serde::Serialize;
use tonic::Code;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// What is wrong, and what to do about it.
    pub(crate) detail: String,
}

#[derive(Serialize)]
struct ProblemDocument<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    detail: &'a str,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let title = self.status.canonical_reason().unwrap_or("Error");
        let document = ProblemDocument {
            r#type: "about:blank",
            title,
            status: self.status.as_u16(),
            detail: &self.detail,
        };
        serde_json::to_vec(&document).unwrap_or_default()
    }
}

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Self {
        let status = match error.status().map(tonic::Status::code) {
            Some(Code::InvalidArgument) => StatusCode::BAD_REQUEST,
            // No such store, nothing kept of that moment, or a store without a history.
            Some(Code::NotFound | Code::OutOfRange | Code::Unimplemented) => StatusCode::NOT_FOUND,
            Some(Code::FailedPrecondition) => StatusCode::CONFLICT,
            Some(Code::ResourceExhausted) => StatusCode::TOO_MANY_REQUESTS,
            Some(Code::DeadlineExceeded) => StatusCode::GATEWAY_TIMEOUT,
            Some(Code::Internal) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl From<IntError> for Problem {
    fn from(error: IntError) -> Self {
        match error {
            IntError::Client(error) => error.into(),
            IntError::NoStore(text) | IntError::NotKept(text) => Self::new(StatusCode::NOT_FOUND, text),
        }
    }
}
