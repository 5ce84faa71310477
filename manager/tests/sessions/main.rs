//! Translators with leases of a real collector: what happens to their reports when a lease ends, is taken, or comes back.
//! Needs no privilege.

#[allow(dead_code)] // the tests to come use the rest
mod ground;
mod superseded;
