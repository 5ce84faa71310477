//! The programs in the running kernel, in network namespaces.
#![cfg(all(feature = "ebpf", target_os = "linux"))]

mod bed;
#[path = "../../../testbed/tests/shared/captures.rs"]
mod beside;
mod books;
mod calls;
mod capture;
mod cost;
mod drops;
mod ended;
mod frames;
mod overlay;
mod own;
mod rebuilt;
mod reports;
mod sides;
mod switch;
mod translated;
#[path = "../twin/mod.rs"]
mod twin;
