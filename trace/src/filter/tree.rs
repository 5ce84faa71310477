//! A filter that has been read.

use super::net::Net;

/// Which end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

/// A test of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// The IP version, 4 or 6.
    Version(u8),
    Protocol(u8),
    Address(End, Net),
    /// A port from the first to the second, both counted in.
    Port(End, u16, u16),
    /// A fragment but the first.
    LaterFragment,
    /// The flags of TCP under a mask are this.
    TcpFlags {
        mask: u8,
        equal: u8,
    },
    /// Any VLAN tag, or the one of this number.
    Vlan(Option<u16>),
}

/// A filter, of tests of the innermost or the outermost packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    Test { outer: bool, test: Test },
    Not(Box<Tree>),
    All(Vec<Tree>),
    Any(Vec<Tree>),
}
