//! Open vSwitch for a test, stopped at its end.

use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::bed::run;

/// A switch with one bridge.
pub(crate) struct Switch(TempDir);

impl Switch {
    /// Starts it in a namespace, with a bridge between these devices of it; `datapath` is `netdev` (user space) or `system` (the kernel's).
    pub(crate) fn start(namespace: &str, datapath: &str, devices: [&str; 2]) -> Self {
        until_it_can_count();
        let switch = Self(tempfile::tempdir().unwrap());
        let folder = switch.0.path().display().to_string();
        let run = |line: &str| {
            run(&format!(
                "export OVS_RUNDIR={folder} OVS_LOGDIR={folder} OVS_DBDIR={folder}; cd {folder}; {line}"
            ))
        };
        let detached = "--pidfile --detach --no-chdir";
        run("ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema");
        run(&format!(
            "ip netns exec {namespace} ovsdb-server conf.db --remote=punix:{folder}/db.sock {detached} >server.log 2>&1 </dev/null"
        ));
        run(&format!(
            "ip netns exec {namespace} ovs-vswitchd unix:{folder}/db.sock {detached} >switch.log 2>&1 </dev/null"
        ));
        let [a, b] = devices;
        run(&format!(
            "ovs-vsctl --db=unix:{folder}/db.sock --timeout=120 add-br br0 -- set bridge br0 datapath_type={datapath} \
             -- add-port br0 {a} -- add-port br0 {b}"
        ));
        switch
    }
}

/// Waits until the machine has been up for longer than 10 s. In that time Open vSwitch 3.1 finds 0 processors, as it counts them
/// when 10 s of the monotonic clock have passed since the last count, and that begins at 0: it then has no thread for packets
/// that the kernel hands up, and none passes, even later.
fn until_it_can_count() {
    let up = || -> f64 {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        uptime.split(' ').next().unwrap().parse().unwrap()
    };
    while up() < 11.0 {
        std::thread::sleep(Duration::from_millis(100));
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for program in ["ovs-vswitchd", "ovsdb-server"] {
            let file = self.0.path().join(format!("{program}.pid"));
            if let Ok(id) = std::fs::read_to_string(file) {
                let _ = Command::new("kill").arg(id.trim()).status();
            }
        }
    }
}
