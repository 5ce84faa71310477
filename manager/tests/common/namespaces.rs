//! Two network namespaces with a veth pair between them. Needs root.

use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Their names. The first has `va`, 10.98.0.1, and the second `vb`, 10.98.0.2; they are taken away at the end.
pub struct Namespaces(pub [String; 2]);

/// Runs a line of the shell, and returns its output.
pub fn run(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{line}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

impl Namespaces {
    pub fn make() -> Self {
        Self::with_queues(1)
    }

    /// The same with so many queues at each end of the pair.
    pub fn with_queues(queues: u32) -> Self {
        // Tests run in parallel.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let all = Self(["a", "b"].map(|end| format!("dta-{}-{number}{end}", std::process::id())));
        let [a, b] = &all.0;
        let many = format!("numrxqueues {queues} numtxqueues {queues}");
        run(&format!(
            "ip netns add {a} && ip netns add {b} && ip -n {a} link set lo up && ip -n {b} link set lo up \
             && ip -n {a} link add va {many} type veth peer name vb {many} netns {b} \
             && ip -n {a} addr add 10.98.0.1/24 dev va && ip -n {b} addr add 10.98.0.2/24 dev vb \
             && ip -n {a} link set va up && ip -n {b} link set vb up"
        ));
        all
    }

    /// Does something in one of them, in a thread of its own.
    pub fn inside<T: Send>(&self, which: usize, work: impl FnOnce() -> T + Send) -> T {
        let file = std::fs::File::open(format!("/run/netns/{}", self.0[which])).unwrap();
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            });
            inside.join().unwrap()
        })
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
