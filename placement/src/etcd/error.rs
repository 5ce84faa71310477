//! Errors in words.

use dta_grpc::tls::TlsError;

/// Why something in etcd could not be read or changed, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EtcdError(pub(super) String);

impl From<etcd_client::Error> for EtcdError {
    fn from(error: etcd_client::Error) -> Self {
        EtcdError(match &error {
            etcd_client::Error::GRpcStatus(status) => format!("etcd: {}", dta_grpc::status_reason(status)),
            other => format!("etcd: {other}"),
        })
    }
}

impl From<TlsError> for EtcdError {
    fn from(error: TlsError) -> Self {
        EtcdError(error.to_string())
    }
}
