//! The software NIC: a RoCEv2 responder in user space.
