//! What each example brings about.

/// What is expected of an example. Blanks in what is printed do not count.
pub(crate) enum Judge {
    /// It prints all of this.
    Says(&'static [&'static str]),
    /// After it, this command prints all of that.
    Then(&'static str, &'static [&'static str]),
    /// It goes on; meanwhile this command prints all of that. Ctrl-C ends it.
    Serves(&'static str, &'static [&'static str]),
    /// It goes on, and prints all of this. Ctrl-C ends it.
    Shows(&'static [&'static str]),
    /// It fills a terminal, where all of this is to be seen.
    Screen(&'static [&'static str]),
    /// This is run in its place, and prints all of that; and why.
    Instead(&'static str, &'static [&'static str], &'static str),
    /// It is not run, and why.
    NotHere(&'static str),
}

/// What is known of an example.
pub(crate) struct Known {
    /// As it is typed.
    pub(crate) command: &'static str,
    /// Whether a collector and a translator run, with their defaults and with what the examples of `dta-reporter send`
    /// have reported.
    pub(crate) up: bool,
    /// Commands that make what it needs. A collector is asked until it has what they report.
    pub(crate) before: &'static str,
    /// Commands that run in the background, with what they print when they are ready.
    pub(crate) beside: &'static [(&'static str, &'static str)],
    pub(crate) judge: Judge,
}

use Judge::{Instead, NotHere, Says, Screen, Serves, Shows, Then};

const fn up(command: &'static str, judge: Judge) -> Known {
    Known { command, up: true, before: "", beside: &[], judge }
}

const fn alone(command: &'static str, judge: Judge) -> Known {
    Known { command, up: false, before: "", beside: &[], judge }
}

const fn with(before: &'static str, known: Known) -> Known {
    Known { before, ..known }
}

const fn beside(beside: &'static [(&'static str, &'static str)], known: Known) -> Known {
    Known { beside, ..known }
}

const HOURS: &str =
    "it takes minutes in a debug build; testbed/src/scenario/alert_truth.rs is tested on one episode";
const EVENTS: &str = "it needs reports of INT switches; manager/tests/ask.rs replays captures of them";
/// Bytes of a flow, and its key in a list, as a switch reports one that it has not seen before.
const KEY_ENTRY: &str = "\
dta-reporter send key-increment --store bytes --delta 1500 --key '10.0.0.1:5000->10.0.0.2:5000/udp' 2>/dev/null
dta-reporter send append --store events --list 7 --value 0x0a0000010a0000021388138811000000 2>/dev/null";
const VALUE: &str = "dta-collector query key-write '10.0.0.1:5000->10.0.0.2:5000/udp' -o json";
const BUILDS: &str = "it builds, which the tests have done, too";
const PACKAGES: &str = "`make package` tries packages, units and static programs on a root of their own";
const INSTALLS: &str =
    "it installs packages, for which a test has no place; those of Debian are what `make python` runs on";
const CI: &str = "it is what CI runs, and this test is part of it";
const CLUSTER: &str = "it needs etcd: manager/tests/cluster runs it";
const CLUSTER_PAGE: &str = "it needs etcd; of other collectors the same command is run here";
const ELSEWHERE: &str = "the collector of the examples is on this host";
const INITIALIZE: &str = "printf '%s\\n' '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{},\"clientInfo\":{\"name\":\"test\",\"version\":\"1\"}}}' | dta-collector mcp";
const PAGE: &str = "\
dta-collector web --collector 127.0.0.1:40050 --listen 127.0.0.1:40059 >/dev/null 2>&1 & page=$!
until curl -sf http://127.0.0.1:40059/api/v1/stores; do kill -0 $page || exit 1; sleep 0.1; done
kill $page";
const CLUSTER_BENCH: &str = "it needs etcd: manager/tests/bench.rs runs it";
const NVIDIA: &str = "it needs a NIC of NVIDIA";
const GUEST: &str = "it needs the guest with soft-RoCE: make rxe runs its tests";
const P4: &str = "it needs a P4 switch: translator-ctl/tests/bmv2.rs runs it";
const REPORTER: &str = "it needs a P4 switch: translator-ctl/tests/p4/reporter.rs runs it";
const BMV2: &str = "it needs simple_switch_grpc: make test-p4 runs it, in manager/tests/bmv2.rs";
const KERNEL: &str = "it attaches programs to the kernel, and goes on; make privileged runs it in namespaces";
const FEWER: &str = "fewer reports, as this is a debug build";
const GOOD: &[&str] = &["unexplained"];

/// An agent's configuration, and a file for `dta-manager trace` that names it.
const AGENT_FILES: &str = "dta-reporter config --example > agent.toml
printf '[[agent]]\naddress = \"127.0.0.1:40054\"\nat = [\"iface:lo\"]\n' > agents.toml";
const AN_AGENT: &[(&str, &str)] = &[("dta-reporter agent --config agent.toml", "\"ready\":true")];
/// A test of alert rules.
const ALERT_TESTS: &str = "printf '[[test]]\nname = \"a flood\"\nexpect = [ { rule = \"syn-flood\" } ]\n[[test.records]]\nto = \"40s\"\nvalues = { dst = \"192.0.2.7\", protocol = \"tcp\", tcp-flags = \"syn\", packets = 5000 }\n' > tests.toml";
const CHAOS: &str = "manager/tests/chaos.rs runs it, and judges each counter";
const BENCH: &str = "as short as it can be, as this is a debug build; its figures mean nothing here";
const SERVE: &[(&str, &str)] = &[("dta-collector serve", "\"listen\"")];
const SEND_ONE: &str = "\
dta-reporter send key-write --store flows --key 0123 --value 1500 2>/dev/null; sleep 1
dta-collector query key-write 0123 -o json";
const SEND_ELSEWHERE: &str = "\
dta-reporter send key-write --store flows --key 0123 --value 1500 --translator 10.0.0.6:40040 --collector 10.0.0.5:40050 2>/dev/null
sleep 1; dta-collector query key-write 0123 -o json --collector 10.0.0.5:40050";
const CAPTURE: &str = "dta-manager make-capture --force traffic.pcap";
/// Makes captures of DTA reports, as anybody would: `catch.py ADDRESS PORT FILE` catches three datagrams, and writes them as
/// frames. `look.py` says what comes to `veth1`.
macro_rules! capture {
    ($address:literal, $port:literal, $file:literal) => {
        concat!(
            "\
cat > catch.py <<'END'
import socket, struct, sys
port, to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), open(sys.argv[3], 'wb')
port.bind((sys.argv[1], int(sys.argv[2])))
open('caught', 'w').close()
to.write(struct.pack('<IHHIIII', 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
for n in range(3):
    data = port.recv(2000)
    udp = struct.pack('>HHHH', 9, int(sys.argv[2]), 8 + len(data), 0) + data
    ip = struct.pack('>BBHHHBBHII', 0x45, 0, 20 + len(udp), n, 0, 64, 17, 0, 0x7f000001, 0x7f000001)
    frame = bytes(12) + b'\\x08\\x00' + ip + udp
    to.write(struct.pack('<IIII', n, 0, len(frame), len(frame)) + frame)
END
rm -f caught; python3 catch.py ",
            $address,
            " ",
            $port,
            " ",
            $file,
            " & catching=$!
until [ -e caught ]; do sleep 0.1; done
for n in 4 5 6; do dta-reporter send key-write --store 1 --key 0abd --value $n --unchecked --translator ",
            $address,
            ":",
            $port,
            "; done
wait $catching"
        )
    };
}
/// At another address, as the translator has that port of the usual one.
const REPORTS: &str = capture!("127.0.0.9", "40040", "reports.pcap");
const OTHER_REPORTS: &str = capture!("127.0.0.1", "5000", "reports.pcapng");
const FRAMES: &str = concat!(
    "ip link add veth0 type veth peer name veth1; ip link set veth0 up; ip link set veth1 up
cat > look.py <<'END'
import socket
veth1 = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(0x0800))
veth1.bind(('veth1', 0))
open('looking', 'w').close()
ports = [int.from_bytes(veth1.recv(2000)[36:38], 'big') for _ in range(3)]
print('came to', *ports)
END
",
    capture!("127.0.0.1", "5000", "frames.pcap")
);
const fn there(command: &'static str, wanted: &'static [&'static str]) -> Judge {
    Instead(command, wanted, "the configuration is not at its usual place")
}
const TRANSLATOR_ELSEWHERE: &[(&str, &str)] =
    &[SERVE[0], ("dta-translator run --ready --listen 10.0.0.1:40040", "\"listen\"")];
const EPOCHS: &str =
    "the default stores have no epochs; manager/tests/sessions/epochs.rs asks stores that have some";
const OTHERS: &str = "it needs what takes it, which export/tests/export_parts starts";
const INFLUX: &str = "it needs an InfluxDB server, which manager/tests/export.rs starts";
const MORE_ENTRIES: &[(&str, &str)] =
    &[("while sleep 0.5; do dta-reporter send append --list 0 --value 10,11,12,13; done", "")];
/// An event as the translator's rules for INT append it: a drop of a flow's packet.
/// Connections that nobody accepts.
const PACKETS_TO_PORT_80: &[(&str, &str)] =
    &[("echo ready; while sleep 0.2; do (: </dev/tcp/127.0.0.1/80) 2>/dev/null || true; done", "ready")];
const DROP: &str = "dta-reporter send append --store 18 --list 1 --value 0x64726f70,0,7,0x0a000009,0x0a000002,0x13881388,0x11000000,1,2,3,4,0x47000000,0,0,0";
const MORE_DROPS: &[(&str, &str)] = &[(
    "while sleep 0.5; do dta-reporter send append --store 18 --list 1 --value 0x64726f70,0,7,0x0a000009,0x0a000002,0x13881388,0x11000000,1,2,3,4,0x47000000,0,0,0; done",
    "",
)];
const COLLECTOR_ELSEWHERE: &[(&str, &str)] = &[(
    "dta-collector serve --listen 10.0.0.5:40050 --insecure --soft-address 10.0.0.5 --memory anonymous",
    "\"listen\"",
)];
const TWO_COLLECTORS: &[(&str, &str)] =
    &[COLLECTOR_ELSEWHERE[0], ("dta-collector serve --config other.toml", "\"listen\"")];
/// A second collector, whose one store is none of the first one's.
const OTHER_COLLECTOR: &str = "\
cat > other.toml <<'END'
[collector]
name = \"other\"
listen = \"10.0.0.7:40050\"
insecure = true
memory = \"anonymous\"
[soft]
address = \"10.0.0.7\"
[[store]]
id = 9
name = \"others\"
kind = \"key-write\"
slots = 1024
value_len = 12
redundancy = 2
END";
/// A switch, which is a translator that waits for its program; and where it gets the program.
const SWITCH: &str = "\
cat > translator.toml <<'END'
[translator]
collector = \"http://127.0.0.1:40050\"
[switch.tor1]
type = \"software\"
control = \"127.0.0.1:40061\"
listen = \"10.0.1.1:40040\"
source = \"10.0.1.1\"
stores = [\"flows\", \"bytes\"]
END";
const BLANK: &[(&str, &str)] = &[(
    "dta-translator run --ready --blank --listen 10.0.1.1:40040 --control 127.0.0.1:40061 --source 10.0.1.1",
    "10.0.1.1:40040",
)];

/// What every program has.
macro_rules! common {
    ($program:literal) => {
        [
            alone(
                concat!($program, " completions bash > /etc/bash_completion.d/", $program),
                Then(
                    concat!("cat /etc/bash_completion.d/", $program),
                    &["complete -F", concat!("-o bashdefault -o default ", $program)],
                ),
            ),
            alone(
                concat!($program, " completions zsh > /usr/share/zsh/site-functions/_", $program),
                Then(
                    concat!("cat /usr/share/zsh/site-functions/_", $program),
                    &[concat!("#compdef ", $program)],
                ),
            ),
            with(
                "mkdir -p /etc/fish/completions",
                alone(
                    concat!($program, " completions fish > /etc/fish/completions/", $program, ".fish"),
                    Then(
                        concat!("cat /etc/fish/completions/", $program, ".fish"),
                        &[concat!("complete -c ", $program)],
                    ),
                ),
            ),
            alone(
                concat!($program, " completions powershell >> $PROFILE"),
                Instead(
                    concat!($program, " completions powershell"),
                    &["Register-ArgumentCompleter"],
                    "only PowerShell sets the variable",
                ),
            ),
            alone(
                concat!($program, " man | man -l -"),
                Instead(concat!($program, " man"), &[".TH", $program], "a bare machine has no man"),
            ),
            alone(
                concat!($program, " man /usr/local/share/man/man1"),
                Then(
                    "ls /usr/local/share/man/man1",
                    &[concat!($program, ".1"), concat!($program, "-completions.1")],
                ),
            ),
        ]
    };
}

/// Every example.
pub(crate) fn truth() -> Vec<Known> {
    let programs = [
        common!("dta-collector"),
        common!("dta-translator"),
        common!("dta-reporter"),
        common!("dta-manager"),
    ];
    programs.into_iter().flatten().chain(own()).collect()
}

fn own() -> Vec<Known> {
    vec![
    // dta-reporter
    up(
        "dta-reporter send key-write --store flows --value 1500 --key '10.0.0.1:5000->10.0.0.2:5000/udp'",
        Then(VALUE, &["000005dc0000000000000000"]),
    ),
    up(
        "dta-reporter send key-write --key 0a000000 --value 7 --vary key --count 1000 --rate 1000 --retransmittable",
        Then("dta-collector query key-write 0a0003e7 -o json", &["000000070000000000000000"]),
    ),
    up(
        "dta-reporter send append --store 3 --list 3 --value 1,2,3,0xdeadbeef",
        Then("dta-collector tail --list 3 --from-start --once", &["000000010000000200000003deadbeef"]),
    ),
    up(
        "dta-reporter send key-increment --delta 1500 --key '10.0.0.1:5000->10.0.0.2:5000/udp'",
        Then("dta-collector query key-increment '10.0.0.1:5000->10.0.0.2:5000/udp' -o json", &["\"counted\":1500"]),
    ),
    up(
        "dta-reporter send postcarding --hop 2 --path-length 5 --value 103 --key '10.0.0.1:5000->10.0.0.2:5000/udp'",
        Then("dta-collector query postcarding '10.0.0.1:5000->10.0.0.2:5000/udp' -o json", &["[null,null,103,null,null"]),
    ),
    up(
        "dta-reporter send sketch-merge --epoch 1 --column 17 --cells 12,40,8",
        // One reporter of two: that the column went out is what can be asked of it alone.
        Then("dta-collector stats -o json", &["\"sketch-merge.emitted\":1"]),
    ),
    up(
        "echo '{\"primitive\":\"append\",\"list\":2,\"value\":[1,2,3,4]}' | dta-reporter send --file -",
        Then("dta-collector tail --list 2 --from-start --once", &["00000001000000020000000300000004"]),
    ),
    up(
        "dta-reporter send key-write --dta-version 0 --key 0a0b0c0d --value 7",
        Then("dta-collector query key-write 0a0b0c0d -o json", &["000000070000000000000000"]),
    ),
    up(
        "dta-reporter send key-write --store flows --key '10.0.0.1:5000->10.0.0.2:5000/udp' --value 0x000000010000000200000003",
        Then(VALUE, &["000000010000000200000003"]),
    ),
    alone("dta-reporter points", Says(&["tp:kfree_skb", "iface:lo"])),
    beside(
        PACKETS_TO_PORT_80,
        alone(
            "dta-reporter trace --at tp:net_dev_queue --at tp:netif_receive_skb --at tp:kfree_skb --filter 'tcp port 80' --print",
            Shows(&["->127.0.0.1:80/tcp"]),
        ),
    ),
    alone(
        "dta-reporter trace --at iface:eth0 --at netns:pod1/iface:eth0 --sample 1/64 --print",
        NotHere("it needs a container; trace/tests/live/ traces in network namespaces"),
    ),
    alone("dta-reporter trace --at iface:eth0 --program netif_rx.o --print", NotHere(KERNEL)),
    with(
        AGENT_FILES,
        alone(
            "dta-reporter agent --config agent.toml",
            Serves("dta-manager trace --agents agents.toml", &["127.0.0.1:40054", "nothing"]),
        ),
    ),
    alone(
        "dta-reporter config --example > agent.toml",
        Then("dta-reporter check-config --config agent.toml", &["127.0.0.1:40054", "settle_ms"]),
    ),
    with(
        AGENT_FILES,
        alone("dta-reporter check-config --config agent.toml", Says(&["127.0.0.1:40054", "settle_ms"])),
    ),
    // dta-collector
    alone("dta-collector serve", Serves("dta-collector stores", &["flows", "key-write", "packets"])),
    alone(
        "dta-collector config --example > collector.toml",
        Then("dta-collector check-config --config collector.toml", &["127.0.0.1:40050", "flows"]),
    ),
    with(
        "dta-collector config --example > collector.toml",
        alone("dta-collector serve --config collector.toml", Serves("dta-collector stores", &["flows", "packets"])),
    ),
    with(
        "dta-collector config --example > collector.toml",
        alone("dta-collector check-config --config collector.toml", Says(&["127.0.0.1:40050", "flows"])),
    ),
    alone("dta-collector serve --listen 10.0.0.5:40050 --cluster etcd://10.0.0.1:2379", NotHere(CLUSTER)),
    alone(
        "dta-translator run --cluster etcd://10.0.0.1:2379 --listen 10.0.0.6:40040 --source 10.0.0.6",
        NotHere(CLUSTER),
    ),
    alone("dta-collector placement show --cluster etcd://10.0.0.1:2379", NotHere(CLUSTER)),
    alone("dta-collector placement drain c3 --cluster etcd://10.0.0.1:2379", NotHere(CLUSTER)),
    alone("dta-collector placement drain c3 --undo --cluster etcd://10.0.0.1:2379", NotHere(CLUSTER)),
    alone("dta-collector placement rebalance --cluster etcd://10.0.0.1:2379", NotHere(CLUSTER)),
    alone(
        "dta-collector serve --config collector.toml --listen 10.0.0.5:40050 --cluster etcd://10.0.0.1:2379,10.0.0.2:2379 --id c1",
        NotHere(CLUSTER),
    ),
    alone(
        "dta-translator run --listen 10.0.0.6:40040 --source 10.0.0.6 --cluster etcd://10.0.0.1:2379,10.0.0.2:2379",
        NotHere(CLUSTER),
    ),
    alone("dta-collector query key-write --store flows 0123 --cluster etcd://10.0.0.1:2379", NotHere(CLUSTER)),
    alone("dta-collector serve --device mlx5_0", NotHere(NVIDIA)),
    alone("dta-collector serve --device mlx5_0 --listen 192.0.2.1:40050 --insecure", NotHere(NVIDIA)),
    alone(
        "dta-translator run --device mlx5_0 --collector 192.0.2.1:40050 --listen 192.0.2.2:40040",
        NotHere(NVIDIA),
    ),
    alone(
        "dta-translator run --device mlx5_2 --collector 192.0.2.1:40050 --listen 192.0.2.2:40040 --workers 4",
        NotHere(NVIDIA),
    ),
    with(
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=ca 2>/dev/null
         openssl req -newkey rsa:2048 -nodes -keyout c.key -out c.csr -subj /CN=c 2>/dev/null
         printf 'subjectAltName=IP:10.0.0.5,DNS:c.example\\n' > san
         openssl x509 -req -in c.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out c.crt -days 2 -extfile san 2>/dev/null",
        alone(
            "dta-collector serve --listen 10.0.0.5:40050 --tls-cert c.crt --tls-key c.key --tls-client-ca ca.crt",
            Serves(
                "dta-collector stores --collector 10.0.0.5:40050 --ca ca.crt --client-cert c.crt --client-key c.key",
                &["flows", "packets"],
            ),
        ),
    ),
    up(
        "dta-collector query key-write '10.0.0.1:5000->10.0.0.2:5000/udp' --at -1h",
        Instead(
            "dta-collector query key-write '10.0.0.1:5000->10.0.0.2:5000/udp' --at -1h 2>&1 | cat",
            &["no history", "epoch"],
            EPOCHS,
        ),
    ),
    up(
        "dta-collector query postcarding '10.0.0.1:5000->10.0.0.2:5000/udp' --at 2026-11-24T14:00",
        Instead(
            "dta-collector query postcarding '10.0.0.1:5000->10.0.0.2:5000/udp' --at 2026-11-24T14:00 2>&1 | cat",
            &["no history", "epoch"],
            EPOCHS,
        ),
    ),
    up(
        "dta-collector query key-write 0a000000 --at -1h",
        Instead("dta-collector query key-write 0a000000 --at -1h 2>&1 | cat", &["no history", "epoch"], EPOCHS),
    ),
    up(
        "dta-collector query key-write 0a000000 --since -1h",
        Instead("dta-collector query key-write 0a000000 --since -1h 2>&1 | cat", &["no history", "epoch"], EPOCHS),
    ),
    up(
        "dta-collector query postcarding 0a000000 --since -1h",
        Instead("dta-collector query postcarding 0a000000 --since -1h 2>&1 | cat", &["no history", "epoch"], EPOCHS),
    ),
    up(
        "dta-collector query key-write '10.0.0.1:5000->10.0.0.2:5000/udp' --since -10min",
        Instead("dta-collector query key-write '10.0.0.1:5000->10.0.0.2:5000/udp' --since -10min 2>&1 | cat", &["no history", "epoch"], EPOCHS),
    ),
    up(
        "dta-collector history flows",
        Instead("dta-collector history flows 2>&1 | cat", &["no history", "epoch"], EPOCHS),
    ),
    up(
        "dta-collector history flows --since -1h",
        Instead("dta-collector history flows --since -1h 2>&1 | cat", &["no history", "epoch"], EPOCHS),
    ),
    up(
        "dta-collector history flows --since 2026-11-24T14:00 --until 2026-11-24T15:00",
        Instead(
            "dta-collector history flows --since 2026-11-24T14:00 --until 2026-11-24T15:00 2>&1 | cat",
            &["no history", "epoch"],
            EPOCHS,
        ),
    ),
    up("dta-collector stores", Says(&["flows", "key-write", "paths", "events", "bytes", "packets"])),
    // Other examples write another value under that key.
    with(
        "dta-reporter send key-write --store flows --key '10.0.0.1:5000->10.0.0.2:5000/udp' --value 0x000000010000000200000003",
        up("dta-collector query key-write '10.0.0.1:5000->10.0.0.2:5000/udp'", Says(&["000000010000000200000003"])),
    ),
    beside(
        MORE_ENTRIES,
        up("dta-collector tail --store events --list 0 --from-start", Shows(&["0000000a0000000b0000000c0000000d"])),
    ),
    beside(MORE_ENTRIES, up("dta-collector tail", Shows(&["0000000a0000000b0000000c0000000d"]))),
    up("dta-collector tail --store events --list 3 --from-start", Shows(&["000000010000000200000003deadbeef"])),
    with(
        "dta-reporter send append --list 0 --value 5,6,7,8",
        up("dta-collector tail --once -o json | jq .entry", Says(&["\"00000005000000060000000700000008\""])),
    ),
    beside(MORE_DROPS, up("dta-collector export --json -", Shows(&["\"event\":\"drop\""]))),
    with(
        DROP,
        up(
            "dta-collector export --json - --from-start --once | jq .flow",
            Says(&["\"10.0.0.9:5000->10.0.0.2:5000/udp\""]),
        ),
    ),
    alone("dta-collector export --influx http://127.0.0.1:8086 --database int", NotHere(INFLUX)),
    alone("dta-collector export --otlp http://127.0.0.1:4318", NotHere(OTHERS)),
    alone("dta-collector export --remote-write http://127.0.0.1:9090/api/v1/write", NotHere(OTHERS)),
    alone("dta-collector export --kafka 127.0.0.1:9092 --kafka-topic dta-events", NotHere(OTHERS)),
    alone("dta-collector export --config collector.toml", NotHere(INFLUX)),
    up("dta-collector stats", Says(&["translator", "reporter", "accepted"])),
    up("dta-collector stats --watch", Shows(&["translator", "accepted"])),
    up("dta-collector stats --all -o json", Says(&["\"nodes\":", "\"dropped.destination\":0"])),
    up("dta-collector sessions", Says(&["translator", "write", "atomic"])),
    up("dta-collector sessions -o wide", Says(&["translator", "gen."])),
    up("dta-collector stores -o wide", Says(&["flows", "12-byte values", "events"])),
    up(
        "dta-collector stats -o json | jq '.nodes[] | select(.stage == \"translator\") | .counters.accepted'",
        Says(&["1"]),
    ),
    up(
            "dta-collector query key-write \"$flow\" -o json; test $? -eq 3 && echo \"nobody reported it\"",
            Instead(
                "flow=ffff; dta-collector query key-write \"$flow\" -o json; test $? -eq 3 && echo \"nobody reported it\"",
                &["nobody reported it"],
                "the reader's script sets the variable",
            ),
    ),
    beside(
        &[(
            "dta-translator run --ready --name leaf1 --stores flows --listen 127.0.0.1:0 --control 127.0.0.1:0 --source 127.0.0.3",
            "\"listen\"",
        )],
        up("dta-collector sessions end leaf1", Says(&["leaf1"])),
    ),
    up("dta-collector sessions list", Says(&["translator", "write", "atomic"])),
    with(
        "printf '%s\\n' 0a0a0a0a >keys.txt
         dta-reporter send key-increment --delta 3 --key 0a0a0a0a 2>/dev/null",
        up("dta-collector query key-increment - < keys.txt", Says(&["0a0a0a0a", "counted"])),
    ),
    with(
        "dta-reporter send key-write --store flows --key 0a000000 --value 7 2>/dev/null",
        up(
            "dta-collector query key-write --store flows --policy at-least=2 0a000000",
            Says(&["000000070000000000000000", "2 of 2 copies"]),
        ),
    ),
    with(
        "dta-reporter send postcarding --hop 2 --path-length 5 --value 103 --key '10.0.0.1:5000->10.0.0.2:5000/udp' 2>/dev/null",
        up("dta-collector query postcarding '10.0.0.1:5000->10.0.0.2:5000/udp'", Says(&["103", "1 of 5"])),
    ),
    with(
        "dta-reporter send key-increment --delta 1500 --key '10.0.0.1:5000->10.0.0.2:5000/udp' 2>/dev/null",
        up("dta-collector query key-increment '10.0.0.1:5000->10.0.0.2:5000/udp'", Says(&["counted"])),
    ),
    up(
        "dta-collector query sketch-merge '10.0.0.1:5000->10.0.0.2:5000/udp'",
        Instead(
            "dta-collector query sketch-merge '10.0.0.1:5000->10.0.0.2:5000/udp' 2>&1 || [ $? = 1 ]",
            &["no complete epoch", "1, has 0 complete of 65,536 columns"],
            "one column of one reporter was sent here; the tutorial has whole epochs",
        ),
    ),
    up(
        "dta-collector query sketch-merge '10.0.0.1:5000->10.0.0.2:5000/udp' --epoch 1",
        Instead(
            "dta-collector query sketch-merge '10.0.0.1:5000->10.0.0.2:5000/udp' --epoch 1 || [ $? = 3 ]",
            &["unknown", "0 of 2"],
            "one column of one reporter was sent here; the tutorial has whole epochs",
        ),
    ),
    up(
        "dta-collector query sketch-merge 0a000000 --at -1h",
        Instead("dta-collector query sketch-merge 0a000000 --at -1h 2>&1 | cat", &["no history", "epoch"], EPOCHS),
    ),
    up(
        "dta-collector query key-increment 0a000000 --since -1h",
        Instead("dta-collector query key-increment 0a000000 --since -1h 2>&1 | cat", &["no history", "epoch"], EPOCHS),
    ),
    up(
        "dta-collector query sketch-merge '10.0.0.1:5000->10.0.0.2:5000/udp' --at -1h",
        Instead(
            "dta-collector query sketch-merge '10.0.0.1:5000->10.0.0.2:5000/udp' --at -1h 2>&1 | cat",
            &["no history", "epoch"],
            EPOCHS,
        ),
    ),
    up(
        "dta-collector tail --store events --list 3 --at -1h",
        Instead("dta-collector tail --store events --list 3 --at -1h 2>&1 | cat", &["no history", "epoch"], EPOCHS),
    ),
    up(
        "dta-collector tail --store events --list 3 --since 2026-11-24T13:50 --until 2026-11-24T14:00",
        Instead(
            "dta-collector tail --store events --list 3 --since 2026-11-24T13:50 --until 2026-11-24T14:00 2>&1 | cat",
            &["no history", "epoch"],
            EPOCHS,
        ),
    ),
    up(
        "dta-collector tail --list 3 --at -1h",
        Instead("dta-collector tail --list 3 --at -1h 2>&1 | cat", &["no history", "epoch"], EPOCHS),
    ),
    up(
        "dta-collector tail --since 2026-11-24T14:00 --until 2026-11-24T15:00",
        Instead(
            "dta-collector tail --since 2026-11-24T14:00 --until 2026-11-24T15:00 2>&1 | cat",
            &["no history", "epoch"],
            EPOCHS,
        ),
    ),
    up(
        "dta-collector stats --since -1h",
        Instead("dta-collector stats --since -1h 2>&1 | cat", &["no store has a history", "epoch"], EPOCHS),
    ),
    up("dta-collector query sketch-merge --epochs", Says(&["1", "partial", "65,536"])),
    up(
        "dta-collector devices",
        Instead("dta-collector devices 2>&1 || [ $? = 1 ]", &["RDMA"], "there are none here, and it says so"),
    ),
    up("dta-collector dashboard", Screen(&["flows"])),
    up("dta-collector dashboard --memory /dev/shm/dta-collector", Screen(&["flows"])),
    with(
        OTHER_COLLECTOR,
        beside(
            TWO_COLLECTORS,
            alone(
                "dta-collector dashboard --collector 10.0.0.5:40050,10.0.0.7:40050",
                Screen(&["10.0.0.7:40050", "share"]),
            ),
        ),
    ),
    alone("dta-collector dashboard --cluster etcd://10.0.0.1:2379", NotHere(CLUSTER)),
    // dta-translator
    beside(SERVE, alone("dta-translator run", Serves(SEND_ONE, &["000005dc0000000000000000"]))),
    beside(
        COLLECTOR_ELSEWHERE,
        alone(
            "dta-translator run --collector 10.0.0.5:40050 --listen 10.0.0.6:40040 --source 10.0.0.6",
            Serves(SEND_ELSEWHERE, &["000005dc0000000000000000"]),
        ),
    ),
    with(
        OTHER_COLLECTOR,
        beside(
            TWO_COLLECTORS,
            alone(
                "dta-translator run --collector 10.0.0.5:40050,10.0.0.7:40050 --listen 10.0.0.6:40040 --source 10.0.0.6",
                Serves(
                    "dta-reporter send key-write --key 01 --value 9 --store others --translator 10.0.0.6:40040 --collector 10.0.0.7:40050
                     sleep 1; dta-collector query key-write 01 -o json --collector 10.0.0.7:40050",
                    &["000000090000000000000000"],
                ),
            ),
        ),
    ),
    beside(
        SERVE,
        alone(
            "dta-translator run --faults drop=0.01,dup=0.01 --seed 7 --ledger /tmp/ledger",
            Serves(SEND_ONE, &["000005dc0000000000000000"]),
        ),
    ),
    alone(
        "dta-translator run --listen xdp:eth1 --int xdp:eth1 --flows xdp:eth1",
        Instead(
            "dta-translator check-config --listen xdp:eth1 --int xdp:eth1 --flows xdp:eth1",
            &["xdp:eth1:40040", "xdp:eth1:32766", "xdp:eth1:2055"],
            "it needs an interface; manager/tests/xdp.rs has one",
        ),
    ),
    alone(
        "dta-translator run --int 'xdp:eth1?events=kernel'",
        Instead(
            "dta-translator check-config --int 'xdp:eth1?events=kernel'",
            &["xdp:eth1:32766", "events=kernel"],
            "it needs an interface; manager/tests/xdp.rs has one",
        ),
    ),
    alone(
        "dta-translator run --link eth1 --source 10.9.0.2 --collector 10.9.0.1:40050",
        NotHere("it needs an interface towards an RDMA NIC; the guest's tests have one"),
    ),
    alone(
        "dta-translator config --example > translator.toml",
        Then("dta-translator check-config --config translator.toml", &["127.0.0.1:40040", "[translator.rc]"]),
    ),
    with(SWITCH, alone("dta-translator check-config --config translator.toml", Says(&["tor1"]))),
    up("dta-translator stats", Says(&["accepted", "key-write"])),
    up("dta-translator plan", Says(&["flows", "packets", "queue"])),
    up("dta-translator plan --against 127.0.0.1:40051", Says(&["nothing"])),
    with(SWITCH, beside(BLANK, up("dta-translator setup --switch tor1", there("DTA_TRANSLATOR_CONFIG=translator.toml dta-translator setup --switch tor1", &["store"])))),
    with(SWITCH, beside(BLANK, up("dta-translator teardown --switch tor1", there("export DTA_TRANSLATOR_CONFIG=translator.toml; dta-translator setup --switch tor1 && dta-translator teardown --switch tor1", &["session tor1 ended"])))),
    with(SWITCH, beside(BLANK, up("dta-translator plan --switch tor1", there("DTA_TRANSLATOR_CONFIG=translator.toml dta-translator plan --switch tor1", &["flows", "bytes"])))),
    with(SWITCH, beside(BLANK, up("dta-translator plan --switch tor1 --against", there("DTA_TRANSLATOR_CONFIG=translator.toml dta-translator plan --switch tor1 --against", &["flows", "bytes"])))),
    up("dta-translator plan -o json | jq '.[] | select(.table == \"store\")'", Says(&["\"flows\""])),
    // dta-manager
    alone(
        "dta-manager run-testbed --bench",
        Instead("dta-manager run-testbed --bench --reports 20000", GOOD, FEWER),
    ),
    alone("dta-manager alerts-truth", NotHere(HOURS)),
    alone("dta-manager alerts-truth --seeds 10", NotHere(HOURS)),
    alone("dta-manager alerts-truth --pcap traffic.pcap", NotHere(HOURS)),
    alone("dta-manager demo", Shows(&["A network of 12 switches reports", "What goes wrong meanwhile:"])),
    alone(
        "dta-manager demo --for 5m",
        Instead("dta-manager demo --for 2s", &["What goes wrong meanwhile:", "Sent:"], "five minutes are long"),
    ),
    alone("dta-manager demo --listen 127.0.0.1:40050", Serves("dta-collector stores", &["flow-records", "int-events"])),
    alone(
        "dta-manager demo --keep demo-files",
        Instead(
            "dta-manager demo --for 2s --keep demo-files; ls demo-files",
            &["Sent:", "collector.log", "memory"],
            "it goes on",
        ),
    ),
    alone("dta-manager run-testbed", Instead("dta-manager run-testbed --reports 20000", GOOD, FEWER)),
    with(
        CAPTURE,
        alone("dta-manager run-testbed --pcap traffic.pcap", Instead("dta-manager run-testbed --pcap traffic.pcap --reports 20000", GOOD, FEWER)),
    ),
    with(
        CAPTURE,
        alone(
            "dta-manager run-testbed --pcap traffic.pcap --json outcome.json",
            Instead(
                "dta-manager run-testbed --pcap traffic.pcap --reports 20000 --json outcome.json; jq '{unexplained, sent}' outcome.json",
                &["\"unexplained\":0,\"sent\":20000"],
                FEWER,
            ),
        ),
    ),
    alone(
        "dta-manager run-testbed --faults drop=0.01",
        Instead("dta-manager run-testbed --faults drop=0.01 --reports 20000", GOOD, FEWER),
    ),
    alone(
        "dta-manager run-testbed --faults drop=0.01,dup=0.01,reorder=0.01,corrupt=0.01",
        Instead(
            "dta-manager run-testbed --faults drop=0.01,dup=0.01,reorder=0.01,corrupt=0.01 --reports 20000",
            GOOD,
            FEWER,
        ),
    ),
    alone(
        "dta-manager run-testbed --epochs 3",
        Instead("dta-manager run-testbed --epochs 2 --reports 20000", GOOD, FEWER),
    ),
    with(
        CAPTURE,
        alone(
            "dta-manager run-testbed --epochs 10 --pcap traffic.pcap --faults drop=0.1",
            Instead(
                "dta-manager run-testbed --epochs 2 --pcap traffic.pcap --faults drop=0.1 --reports 20000",
                GOOD,
                FEWER,
            ),
        ),
    ),
    alone(
        "dta-manager run-testbed --transport rc --reports 1000000",
        Instead("dta-manager run-testbed --transport rc --reports 20000", GOOD, FEWER),
    ),
    alone(
        "dta-manager run-testbed --ip 6",
        Instead("dta-manager run-testbed --ip 6 --reports 20000", GOOD, FEWER),
    ),
    alone("dta-manager run-testbed --nic rxe --transport rc", NotHere(GUEST)),
    alone("dta-manager run-testbed --nic rxe --translator-nic rxe --faults drop=0.1", NotHere(GUEST)),
    alone("dta-manager run-testbed --nic rxe --translator-nic rxe --ip 6", NotHere(GUEST)),
    alone(
        "dta-manager run-testbed --topology testbed/topologies/crowded.toml",
        Instead("dta-manager run-testbed --topology testbed/topologies/crowded.toml --reports 20000", GOOD, FEWER),
    ),
    alone(
        "dta-manager run-testbed --topology hardware.toml --pcap traffic.pcap --logs logs",
        NotHere("it needs machines that ssh reaches: manager/tests/machines.rs has some, in namespaces"),
    ),
    alone("dta-manager run-testbed --switch bmv2 --pcap traffic.pcap", NotHere(BMV2)),
    alone("dta-manager run-testbed --switch bmv2 --collectors 2 --pcap traffic.pcap -o json", NotHere(BMV2)),
    alone(
        "dta-manager run-testbed --switch bmv2 --epochs 3 --collectors 2 --chaos kill-translator --pcap traffic.pcap",
        NotHere(BMV2),
    ),
    alone("dta-manager run-testbed --switch bmv2 --nic rxe --pcap traffic.pcap", NotHere(BMV2)),
    alone("dta-translator setup --switch edge1", NotHere(REPORTER)),
    alone("dta-translator stats --switch edge1", NotHere(REPORTER)),
    alone("dta-translator status --switch edge1", NotHere(REPORTER)),
    alone("dta-translator flush --switch leaf1", NotHere(P4)),
    alone("dta-translator watch --switch leaf1", NotHere(P4)),
    alone("dta-manager run-testbed --chaos kill-collector", NotHere(CHAOS)),
    alone(
        "dta-manager run-testbed --chaos kill-translator --chaos-reports 350000 --reports 1200000",
        NotHere(CHAOS),
    ),
    alone("dta-manager run-testbed --nic rxe --chaos remove-device", NotHere(GUEST)),
    alone(
        "dta-manager run-testbed --keep --listen 127.0.0.1:40050",
        Instead(
            "dta-manager run-testbed --keep --listen 127.0.0.1:40050 --reports 20000 > kept & \
             until grep -q 'Files are in' kept; do sleep 1; done; dta-collector stores; kill $!",
            &["flows", "packets"],
            FEWER,
        ),
    ),
    with(
        REPORTS,
        up("dta-manager replay reports.pcap --translator 127.0.0.1:40040", Says(&["3 of 3 datagrams sent"])),
    ),
    with(
        OTHER_REPORTS,
        beside(
            TRANSLATOR_ELSEWHERE,
            alone(
                "dta-manager replay reports.pcapng --translator tor1.example:40040 --port 5000 --rate 10000 --loop 100",
                Then("dta-collector query key-write 0abd -o json", &["\"value\":\"000000"]),
            ),
        ),
    ),
    with(
        FRAMES,
        alone(
            "dta-manager replay frames.pcap --raw veth0",
            Instead(
                "rm -f looking; python3 look.py & looking=$!; until [ -e looking ]; do sleep 0.1; done
                 dta-manager replay frames.pcap --raw veth0; wait $looking",
                &["3 of 3 datagrams sent", "came to 5000 5000 5000"],
                "the other end of the pair looks at what comes",
            ),
        ),
    ),
    with("rm -f traffic.pcap",
    alone(
        "dta-manager make-capture traffic.pcap",
        Then("dta-manager run-testbed --pcap traffic.pcap --reports 20000", GOOD),
    )),
    with("rm -f traffic.pcap",
    alone(
        "dta-manager make-capture traffic.pcap --packets 100000 --flows 5000 --seed 7",
        Then("dta-manager run-testbed --pcap traffic.pcap --reports 20000", GOOD),
    )),
    with(AGENT_FILES, beside(AN_AGENT, alone("dta-manager trace --agents agents.toml", Says(&["127.0.0.1:40054", "nothing"])))),
    with(
        AGENT_FILES,
        beside(
            AN_AGENT,
            alone(
                "dta-manager trace --agents agents.toml --set --filter 'tcp port 80' --sample 1/64",
                Says(&["tcp port 80, 1/64", "iface:lo/ingress", "iface:lo/egress", "yes"]),
            ),
        ),
    ),
    with(
        AGENT_FILES,
        beside(
            AN_AGENT,
            alone(
                "dta-manager trace --agents agents.toml --at tp:kfree_skb",
                Says(&["iface:lo/egress", "tp:kfree_skb", "yes"]),
            ),
        ),
    ),
    with(AGENT_FILES, beside(AN_AGENT, alone("dta-manager trace --agents agents.toml --back", Says(&["nothing"])))),
    alone("dta-manager bench", Instead("dta-manager bench query --quick || [ $? = 4 ]", &["query"], BENCH)),
    alone(
        "dta-manager bench nic chain -o json > figures.json",
        Instead(
            "dta-manager bench nic chain --quick -o json > figures.json || [ $? = 4 ]; jq .[].name figures.json",
            &["nic", "chain"],
            BENCH,
        ),
    ),
    alone("dta-manager bench --int unchanged", Instead("dta-manager bench --int --quick unchanged-3-few || [ $? = 4 ]", &["nothing changes"], BENCH)),
    alone("dta-manager bench --wire", Instead("dta-manager bench --wire --quick || [ $? = 4 ]", &["veth pair", "one by one"], BENCH)),
    alone("dta-manager bench --cluster", NotHere(CLUSTER_BENCH)),
    alone("dta-manager bench --trace", Instead("dta-manager bench --trace --quick || [ $? = 4 ]", &["empty program", "sampled out"], BENCH)),
    alone("dta-manager bench --quick", Instead("dta-manager bench query --quick || [ $? = 4 ]", &["query"], BENCH)),
    alone(
        "dta-manager bench memory --reports 100000000",
        Instead("dta-manager bench memory --reports 20000 || [ $? = 4 ]", &["collector", "translator", "KiB"], FEWER),
    ),
    alone("dta-manager doctor", Instead("dta-manager doctor || [ $? = 4 ]", &["cpu"], "it may find something here")),
    alone(
        "dta-manager doctor -o json | jq '.[] | select(.level != \"ok\")'",
        Says(&["\"level\""]),
    ),
    // What is on its way while it looks would be missed.
    with("sleep 3", up("dta-manager doctor --collector 127.0.0.1:40050", Says(&["session"]))),
    beside(
        COLLECTOR_ELSEWHERE,
        alone(
            "dta-manager doctor --collector 10.0.0.5:40050 --session tor1 --seconds 10",
            Instead(
                "dta-manager doctor --collector 10.0.0.5:40050 --session tor1 --seconds 1 || [ $? = 4 ]",
                &["there is no session"],
                "there is no such session, which is what it says",
            ),
        ),
    ),
    alone("dta-manager simulate placement", Says(&["506 joins", "0 buckets with two copies in one zone"])),
    alone(
        "dta-manager simulate placement --collectors 16 --events 5000 --copies 2",
        Says(&["2,502 joins", "0 buckets with two copies in one zone"]),
    ),
    alone(
        "dta-manager simulate placement --memory 64GiB,256GiB --seed 7 -o json",
        Says(&["\"joins\": 510", "\"ideal\""]),
    ),
    alone("dta-manager size --flows 1M --reports 5M", Says(&["16,777,216 slots", "for 5.00M, choose"])),
    alone(
        "dta-manager size --flows 1000000 --reports 5M --retention 60s",
        Says(&["16,777,216 slots", "16 lists of 8,388,608 batches", "for 5.00M, choose"]),
    ),
    alone(
        "dta-manager size --flows 250k --survival 99.9 --only key-write,append",
        Says(&["8,388,608 slots", "events", "key-write"]),
    ),
    alone(
        "dta-manager size --flows 10M --epoch 60s --reporters 32 --link 25G --plain",
        Says(&["134,217,728 slots", "479.5 GiB"]),
    ),
    alone("dta-manager size --reports 2M --cores 16 -o json | jq .stores[].choose", Says(&["\"way\": \"ring\""])),
    alone(
        "dta-manager size --flows 1M --config > collector.toml",
        Then("dta-collector check-config --config collector.toml | grep slots", &["slots = 16777216"]),
    ),
    alone(
        "dta-manager bench reports-plain translator nic -o json > figures.json",
        Instead(
            "dta-manager bench reports translator nic --quick -o json > figures.json || [ $? = 4 ]; jq .[].name figures.json",
            &["reports-plain", "translator", "nic"],
            BENCH,
        ),
    ),
    with(
        "echo '[{\"name\": \"reports\", \"value\": 1e6}, {\"name\": \"reports-plain\", \"value\": 1e6},
         {\"name\": \"translator\", \"value\": 1e6}, {\"name\": \"nic\", \"value\": 1e6}]' > figures.json",
        alone("dta-manager size --reports 5M --cores 16 --figures figures.json", Says(&["for 5.00M, choose"])),
    ),
    // docs/install.md
    alone("make deb", NotHere(PACKAGES)),
    alone("make static", NotHere(PACKAGES)),
    alone("make container", NotHere(PACKAGES)),
    alone("apt install ./target/packages/dta-collector_*.deb", NotHere(PACKAGES)),
    alone("systemctl enable --now dta-collector", NotHere(PACKAGES)),
    alone("systemctl enable --now dta-translator", NotHere(PACKAGES)),
    alone("podman run --rm --network host --shm-size 1g dta dta-collector serve", NotHere(PACKAGES)),
    alone("podman run --rm --network host dta dta-translator run", NotHere(PACKAGES)),
    alone("podman run --rm --network host dta dta-collector stores", NotHere(PACKAGES)),
    up(
        "dta-reporter send key-write --store flows --key '10.0.0.1:5000->10.0.0.2:5000/udp' --value 42",
        Then(VALUE, &["0000002a0000000000000000"]),
    ),
    // docs/dashboard.md
    beside(
        COLLECTOR_ELSEWHERE,
        alone("dta-collector dashboard --collector 10.0.0.5:40050", Screen(&["share"])),
    ),
    up("dta-collector dashboard --interval 2000", Screen(&["flows"])),
    // docs/int.md
    beside(
        SERVE,
        alone(
            "dta-translator run --int 'udp://0.0.0.0:32766?dialect=sdfabric'",
            Serves("dta-translator stats -o json", &["int.received"]),
        ),
    ),
    beside(
        SERVE,
        alone(
            "dta-translator run --int 'udp://127.0.0.1:54321?dialect=intcollector'",
            Serves("dta-translator stats -o json", &["int.received"]),
        ),
    ),
    // docs/flows.md
    beside(
        SERVE,
        alone(
            "dta-translator run --flows udp://0.0.0.0:2055 --sflow udp://0.0.0.0:6343",
            Serves("dta-translator stats -o json", &["flows.datagrams"]),
        ),
    ),
    up("dta-collector flows --since -5m", Says(&["0 groups of 0 records"])),
    up("dta-collector flows --at -10m", Says(&["0 groups of 0 records"])),
    up("dta-collector flows --group dst-as,in-if --by packets -n 20", Says(&["0 groups of 0 records"])),
    up("dta-collector flows --since -5m --group dst-as,in-if --by packets -n 20", Says(&["0 groups of 0 records"])),
    up(
        "dta-collector flows --group src -w 'dst-port = 443 and not src in 10.0.0.0/8'",
        Says(&["0 groups of 0 records"]),
    ),
    up(
        "dta-collector flows --group src --where 'dst-port = 443 and exporter = 192.0.2.1 and not src in 10.0.0.0/8'",
        Says(&["0 groups of 0 records"]),
    ),
    up("dta-collector flows --group exporter --per 10s --since -1m", Says(&["0 groups of 0 records"])),
    up("dta-collector flows --group exporter --since -1m --per 10s", Says(&["0 groups of 0 records"])),
    up("dta-collector flows --group total -w 'dst = 192.0.2.7'", Says(&["0 groups of 0 records"])),
    up("dta-collector flows --group total --where 'dst = 192.0.2.7' --csv", Says(&["bytes,packets,flows"])),
    up("dta-collector alerts", Says(&["0 alerts of 18 rules firing"])),
    up("dta-collector alerts -o json", Says(&["\"rules\": 18", "\"alerts\": []", "\"transitions\": []"])),
    with(
        "dta-collector config --example > collector.toml",
        alone("dta-collector alerts check collector.toml", Says(&["syn-flood", "above 1.0k packets/s, in 30 s, by dst"])),
    ),
    with(
        ALERT_TESTS,
        alone("dta-collector alerts test tests.toml", Says(&["good a flood", "192.0.2.7 gets", "only open connections"])),
    ),
    up("dta-collector top --by bytes -n 3", Says(&["No flow is known"])),
    alone(
        "dta-manager replay int-v1.0-three-reports.pcap --translator 127.0.0.1:54321 --port 54321",
        NotHere("it needs a capture that the repository does not hold; the tests of INT replay it where it is"),
    ),
    up("dta-translator flush", Says(&["waiting"])),
    up(
        "dta-collector query key-write --store int-values '10.0.0.1:5000->10.0.0.2:5000/udp'",
        Instead(
            "dta-collector query key-write --store int-values '10.0.0.1:5000->10.0.0.2:5000/udp' || [ $? = 3 ]",
            &["10.0.0.1:5000->10.0.0.2:5000/udp"],
            "no INT switch has reported here, which is what it says",
        ),
    ),
    // What readers say of INT. The flow is that of the examples of `dta-reporter send`, by which no switch reports INT.
    up("dta-collector mcp", Instead(INITIALIZE, &["\"protocolVersion\"", "\"serverInfo\""], "an agent asks it")),
    up(
        "dta-collector mcp --collector 10.0.0.5:40050",
        Instead(INITIALIZE, &["\"protocolVersion\"", "\"serverInfo\""], ELSEWHERE),
    ),
    up("dta-collector web --collector 10.0.0.5:40050,10.0.0.7:40050", Instead(PAGE, &["\"name\":\"flows\""], ELSEWHERE)),
    alone("dta-collector web --cluster etcd://10.0.0.1:2379", NotHere(CLUSTER_PAGE)),
    alone("dta-collector web --cluster etcd://10.0.0.1:2379 --listen 127.0.0.1:8080", NotHere(CLUSTER_PAGE)),
    up("dta-collector top --by bytes", Says(&["No flow is known"])),
    up("dta-collector top", Says(&["No flow is known: int-events has no keys"])),
    up(
        "dta-collector top --at -1h",
        Instead("dta-collector top --at -1h 2>&1 | cat", &["no history", "epochs"], EPOCHS),
    ),
    up("dta-collector top --by drops -n 5", Says(&["No flow is known"])),
    up("dta-collector top --by latency", Says(&["No flow is known"])),
    up("dta-collector top --by reports --prefix 10.0.0.0/8 --watch", Shows(&["No flow is known"])),
    with(
        KEY_ENTRY,
        up(
            "dta-collector top --keys events --store bytes",
            Says(&["10.0.0.1:5000->10.0.0.2:5000/udp"]),
        ),
    ),
    // Traces of hosts.
    alone(
        "dta-reporter trace --at iface:eth0 --at netns:pod1/iface:eth0 --sample 1/64 --translator 192.0.2.10:40040 --reporter-id 7",
        NotHere(KERNEL),
    ),
    alone(
        "dta-reporter trace --at iface:eth0/queue --at iface:eth0/driver --at iface:vxlan0/queue --at iface:vxlan0/driver --translator 192.0.2.10:40040 --reporter-id 7",
        NotHere(KERNEL),
    ),
    up(
        "dta-collector trace '10.0.0.1:5000->10.0.0.2:5000/udp'",
        Instead(
            "dta-collector trace '10.0.0.1:5000->10.0.0.2:5000/udp' || [ $? = 3 ]",
            &["No host reported this flow."],
            "no host has traced here, which is what it says",
        ),
    ),
    up(
        "dta-collector trace '10.0.0.1:5000->10.0.0.2:5000/udp' --output json",
        Instead(
            "dta-collector trace '10.0.0.1:5000->10.0.0.2:5000/udp' --output json || [ $? = 3 ]",
            &["\"found\": false"],
            "no host has traced here, which is what it says",
        ),
    ),
    up(
        "dta-collector query flow '10.0.0.1:5000->10.0.0.2:5000/udp'",
        Instead(
            "dta-collector query flow '10.0.0.1:5000->10.0.0.2:5000/udp' || [ $? = 3 ]",
            &["Nothing is known about this flow."],
            "no INT switch has reported here, which is what it says",
        ),
    ),
    up(
        "dta-collector query flow '10.0.0.1:5000->10.0.0.2:5000/udp' --at -1h",
        Instead(
            "dta-collector query flow '10.0.0.1:5000->10.0.0.2:5000/udp' --at -1h 2>&1 | cat",
            &["no history", "epochs"],
            EPOCHS,
        ),
    ),
    with(
        KEY_ENTRY,
        up(
            "dta-collector query flow '10.0.0.1:5000->10.0.0.2:5000/udp' --paths paths --counters bytes --values flows",
            Says(&["counted"]),
        ),
    ),
    up("dta-collector tail events", NotHere(EVENTS)),
    up("dta-collector tail events -n 20 --once", NotHere(EVENTS)),
    up("dta-collector tail events --kind drop,loop --since 10m", NotHere(EVENTS)),
    up("dta-collector tail events --prefix 10.0.0.0/8 --switch leaf1 -o json", NotHere(EVENTS)),
    up("dta-collector tail events --kind drop --at -1h", NotHere(EVENTS)),
    up("dta-collector tail events --since 2026-11-24T14:00 --until 2026-11-24T15:00", NotHere(EVENTS)),
    // What builds and tests.
    with(
        "dta-manager make-capture capture.pcap",
        alone(
            "dta-manager run-testbed --pcap capture.pcap",
            Instead("dta-manager run-testbed --pcap capture.pcap --reports 20000", GOOD, FEWER),
        ),
    ),
    alone(
        "dta-manager run-testbed --faults drop=0.01,dup=0.01,reorder=0.01",
        Instead(
            "dta-manager run-testbed --faults drop=0.01,dup=0.01,reorder=0.01 --reports 20000",
            GOOD,
            FEWER,
        ),
    ),
    alone(
        "dta-manager run-testbed --keep",
        Instead(
            // Its own file: in that of the other example an answer may stand before this one has begun.
            "dta-manager run-testbed --keep --reports 20000 > from-source & \
             until grep -q 'Files are in' from-source; do sleep 1; done; \
             $(grep -o 'dta-collector stats --collector .*' from-source); kill $!",
            &["accepted"],
            FEWER,
        ),
    ),
    alone("make demo", Instead("make -n demo", &["run-testbed"], "the command that it runs is another example")),
    alone("make test", NotHere(CI)),
    alone("make bench", Instead("make -n bench", &["dta-manager -- bench"], "the command that it runs is another example")),
    alone(
        "dta-manager run-testbed --reports 100000 --transport rc --faults drop=0.1,dup=0.1,reorder=0.1,corrupt=0.1 --report-faults none --seed 1",
        Instead(
            "dta-manager run-testbed --reports 5000 --transport rc --faults drop=0.1,dup=0.1,reorder=0.1,corrupt=0.1 --report-faults none --seed 1",
            GOOD,
            FEWER,
        ),
    ),
    alone(
        "export PATH=\"$PWD/target/release:$PATH\"",
        Instead(
            "export PATH=\"$PWD/target/release:$PATH\"; command -v dta-collector",
            &["target/release/dta-collector"],
            "a variable ends with its shell",
        ),
    ),
    alone("apt-get install python3-numpy python3-grpcio python3-protobuf", NotHere(INSTALLS)),
    alone("pip install './python[live]'", NotHere(INSTALLS)),
    alone("modprobe crc32_generic && modprobe rdma_rxe", NotHere(GUEST)),
    alone("rdma link add rxe0 type rxe netdev eth0", NotHere(GUEST)),
    alone("testbed/rxe-guest/install", NotHere(GUEST)),
    alone("testbed/rxe-guest/run -- ibv_devinfo -v", NotHere(GUEST)),
    alone(
        "testbed/rxe-guest/run --timeout 300 --share /tmp/results -- target/debug/dta-manager run-testbed --nic rxe",
        NotHere(GUEST),
    ),
    alone("testbed/rxe-guest/run --timeout 300 -- dta-manager bench --nic rxe", NotHere(GUEST)),
    alone(
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=\"$PWD/testbed/rxe-guest/run --\" cargo test -p dta-memory --features verbs-requester --test verbs_rxe -- --ignored",
        NotHere(GUEST),
    ),
    alone("cargo test -p dta-testbed --test seeded", NotHere(CI)),
    alone("cargo run --release -p dta-proto --example compare", NotHere("it measures, and a debug build has nothing to show")),
    alone("make fuzz", NotHere("it needs a nightly compiler")),
    alone("cargo build --release", NotHere(BUILDS)),
    alone("cargo build --release -p dta-translator --features verbs", NotHere(BUILDS)),
    ]
}
