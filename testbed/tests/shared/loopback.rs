//! Addresses of loopback of a test's own. A port that is closed there for a while stays free: what binds a free port of
//! 127.0.0.1 does not take it. Tests of several crates take this file by `#[path]`.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Another address each time.
pub(crate) fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = (std::process::id() & 0x3fff) << 6 | NEXT.fetch_add(1, Ordering::Relaxed) & 63;
    let [_, a, b, c] = number.to_be_bytes();
    Ipv4Addr::new(127, 208 + a, b, c)
}

/// A free TCP port at such an address.
#[allow(dead_code, reason = "not every test that takes this file calls it")]
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind((own_address(), 0)).unwrap().local_addr().unwrap()
}
