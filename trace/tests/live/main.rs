//! The programs in the running kernel, in network namespaces.
#![cfg(all(feature = "ebpf", target_os = "linux"))]

mod bed;
mod overlay;
