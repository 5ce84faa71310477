//! A parsed filter.

use super::net::Net;

/// Which end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// The IP version, 4 or 6.
    Version(u8),
    Protocol(u8),
    Address(End, Net),
    /// A range of ports, both ends included.
    Port(End, u16, u16),
    /// A fragment other than the first.
    LaterFragment,
    /// TCP's flags under a mask equal this.
    TcpFlags {
        mask: u8,
        equal: u8,
    },
    /// Any VLAN tag, or one with this number.
    Vlan(Option<u16>),
}

/// A filter over tests of the innermost or the outermost packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    Test { outer: bool, test: Test },
    Not(Box<Tree>),
    All(Vec<Tree>),
    Any(Vec<Tree>),
}
