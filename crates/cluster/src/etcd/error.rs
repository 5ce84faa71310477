//! What etcd's errors are called.

use dta_rpc::transport::tls::TlsError;

use crate::EtcdError;

impl From<etcd_client::Error> for EtcdError {
    fn from(error: etcd_client::Error) -> Self {
        EtcdError(match &error {
            etcd_client::Error::GRpcStatus(status) => {
                format!("etcd: {}", dta_rpc::transport::status_reason(status))
            }
            other => format!("etcd: {other}"),
        })
    }
}

impl From<TlsError> for EtcdError {
    fn from(error: TlsError) -> Self {
        EtcdError(error.to_string())
    }
}
