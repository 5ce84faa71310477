//! What can be seen to be wrong before a collector starts.

use std::path::Path;

use tonic::transport::ServerTlsConfig;

use super::{ServerError, tls};
use crate::config::{Config, Memory};

/// Looks whether a collector of this configuration could start: TLS files, and room for the stores. Opens nothing and changes nothing.
///
/// # Errors
/// What would keep it from starting.
pub fn check(config: &Config) -> Result<(), ServerError> {
    checked(config).map(drop)
}

/// As [`check`]; gives the TLS that was found good.
pub(super) fn checked(config: &Config) -> Result<Option<ServerTlsConfig>, ServerError> {
    config.check()?;
    let tls = config.tls.as_ref().map(tls::load).transpose()?;
    if let Some(tls) = &tls {
        tonic::transport::Server::builder().tls_config(tls.clone()).map_err(ServerError::Tls)?;
    }
    let need = config.stores.iter().map(|store| store.region_len()).fold(0, u64::saturating_add);
    let (have, place) = match &config.memory {
        Memory::Anonymous => {
            let system = rustix::system::sysinfo();
            let ram = system.totalram as u64;
            (ram.saturating_mul(system.mem_unit.into()), "this machine's memory".to_owned())
        }
        Memory::Directory(dir) => {
            let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
            let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
            let fail = |source| ServerError::Directory { path: dir.clone(), action: "look at", source };
            let system = rustix::fs::statvfs(there).map_err(|errno| fail(errno.into()))?;
            let place = format!("the file system of {}", dir.display());
            (system.f_blocks.saturating_mul(system.f_frsize), place)
        }
    };
    if need > have {
        return Err(ServerError::TooLarge { need, have, place });
    }
    Ok(tls)
}
