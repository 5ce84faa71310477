//! Translators with leases of a real collector: what happens to their reports when a lease ends, is
//! taken, or comes back. Needs no privilege.

#[path = "../common/apart.rs"]
mod apart;
mod copies;
mod epochs;
mod ground;
#[path = "../../../testbed/tests/shared/loopback.rs"]
mod loopback;
mod plan;
mod positions;
mod replaced;
mod several;
mod shared;
mod superseded;
