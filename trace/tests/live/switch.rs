//! Open vSwitch for a test, stopped at its end.

use std::process::Command;

use tempfile::TempDir;

use crate::bed::run;

/// A switch with one bridge.
pub(crate) struct Switch(TempDir);

impl Switch {
    /// Starts it in a namespace, with a bridge between these devices of it; `datapath` is `netdev` (user space) or `system` (the kernel's).
    pub(crate) fn start(namespace: &str, datapath: &str, devices: [&str; 2]) -> Self {
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
