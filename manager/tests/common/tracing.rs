//! `dta-reporter trace` as a process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::MANAGER;

/// It ends with the test.
pub struct Tracing {
    child: Child,
    says: BufReader<ChildStderr>,
}

impl Tracing {
    /// Starts it at these points, which are attached when this returns.
    pub fn start(at: &[&str], more: &[&str]) -> Self {
        let mut child = Command::new(MANAGER)
            .args(["__reporter", "trace"])
            .args(at.iter().flat_map(|at| ["--at", at]))
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut says = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.ends_with("are attached\n") {
            assert!(says.read_line(&mut said).unwrap() > 0, "it ended: {said}");
        }
        Self { child, says }
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and returns its output since its points were attached.
    pub fn end(mut self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let mut said = String::new();
        self.says.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
