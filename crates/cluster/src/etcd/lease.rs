//! Leases of a collector.

use etcd_client::{Client, LeaseKeepAliveStream, LeaseKeeper};

use crate::{Config, EtcdError};

/// The previous lease if it still holds, or a new one, with what renews it.
pub(super) async fn obtain_lease(
    config: &Config,
    last: &mut Option<i64>,
    client: &mut Client,
) -> Result<(i64, (LeaseKeeper, LeaseKeepAliveStream)), EtcdError> {
    if let Some(lease) = *last {
        match client.lease_keep_alive(lease).await {
            Ok(renewer) => return Ok((lease, renewer)),
            // It has ended.
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => *last = None,
            Err(error) => return Err(error.into()),
        }
    }
    let lease = client.lease_grant(config.lease_seconds.max(1).into(), None).await?.id();
    *last = Some(lease);
    Ok((lease, client.lease_keep_alive(lease).await?))
}
