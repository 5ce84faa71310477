//! Who may create interfaces with fixed names, and remove those left by a killed run.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context, bail};

/// The right to interface names in this network namespace: one process has it at a time, and loses it however it
/// ends. It is a socket with an abstract name, which belongs to the network namespace, like interfaces.
#[derive(Debug)]
pub struct Alone(#[expect(dead_code, reason = "it is held")] UnixListener);

impl Alone {
    /// Takes the right; `interface` is the first of the names.
    ///
    /// # Errors
    /// Another process has it.
    pub fn acquire_for(interface: &str) -> anyhow::Result<Alone> {
        let name = SocketAddr::from_abstract_name(format!("dta-manager/{interface}"))?;
        match UnixListener::bind_addr(&name) {
            Ok(socket) => Ok(Alone(socket)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
                "another dta-manager is using {interface} in this network namespace: wait until it has ended, or end it"
            ),
            Err(error) => Err(error).context("cannot bind a Unix socket"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_a_name() {
        let name = format!("dta-test-{}", std::process::id());
        let first = Alone::acquire_for(&name).unwrap();
        let error = Alone::acquire_for(&name).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains("another dta-manager"), "{error}");
        Alone::acquire_for(&format!("{name}-other")).unwrap();
        drop(first);
        Alone::acquire_for(&name).unwrap();
    }
}
