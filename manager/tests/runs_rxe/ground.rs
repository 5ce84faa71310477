//! A device, and a network namespace to send from.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs a program with blank-separated arguments; says whether it did what it should.
pub(crate) fn run(command: &str) -> bool {
    let words: Vec<&str> = command.split(' ').collect();
    Command::new(words[0]).args(&words[1..]).status().expect("it is installed").success()
}

/// A device on one end of a veth pair; the other end is in a network namespace of its own, where the translator is.
pub(crate) struct Ground;

impl Ground {
    pub(crate) fn new() -> Ground {
        for command in [
            "ip netns add switch",
            "ip link add vrx1 type veth peer name vtx1 netns switch",
            "ip address add 10.9.1.1/24 dev vrx1",
            "ip link set vrx1 up",
            "ip -n switch address add 10.9.1.2/24 dev vtx1",
            "ip -n switch link set vtx1 up",
            "ip -n switch link set lo up",
            "rdma link add rxe1 type rxe netdev vrx1",
        ] {
            assert!(run(command), "{command}");
        }
        Ground
    }

    /// Moves this thread to the translator's end.
    pub(crate) fn enter() {
        let space = File::open("/run/netns/switch").expect("a namespace");
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for command in ["rdma link delete rxe1", "ip link delete vrx1", "ip netns delete switch"] {
            run(command);
        }
    }
}
