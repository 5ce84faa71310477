//! The gRPC service against real servers in this process, with the software NIC.

mod alert_delivery;
mod both_sides;
mod calls;
mod common;
mod limits;
mod lost_interface;
mod notify;
mod placement;
mod reload;
mod standard;
mod tls;
