//! The program as people run it.

use std::io::Write;
use std::net::UdpSocket;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use dta_proto::wire::dta::{DtaBody, DtaReport, Version};

fn receiver() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

fn drain(socket: &UdpSocket) -> Vec<Vec<u8>> {
    let mut buffer = [0; 2048];
    std::iter::from_fn(|| socket.recv_from(&mut buffer).ok().map(|(len, _)| buffer[..len].to_vec())).collect()
}

fn program(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dta-reporter"))
        .args(arguments)
        .args(arguments.contains(&"send").then_some("--unchecked"))
        .env_remove("DTA_REPORTER_COLLECTOR")
        .env_remove("DTA_REPORTER_TRANSLATOR")
        .env_remove("DTA_REPORTER_FROM")
        .env_remove("DTA_REPORTER_REPORTER_ID")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that ends before it reads closes the pipe, which is not an error here.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn sends_each_primitive() {
    let (socket, to) = receiver();
    for arguments in [
        "send key-write --store 1 --key 10.0.0.1:5000->10.0.0.2:5000/udp --value 1500 --redundancy 2",
        "send --store 2 append --list 3 --value 1,2,0xdeadbeef --immediate",
        "send key-increment --store 3 --key 0a0b --delta 1500",
        "send postcarding --store 4 --key 0a0b --hop 2 --path-length 5 --value 103",
        "send sketch-merge --store 5 --epoch 1 --column 17 --cells 12,40 --reporter-id 7",
        "send key-write --dta-version 0 --redundancy 2 --key 0a0b0c0d --value 7",
    ] {
        let mut arguments: Vec<&str> = arguments.split(' ').collect();
        arguments.extend(["--to", &to]);
        let output = program(&arguments, "");
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(String::from_utf8(output.stdout).unwrap().contains("sent"));
    }
    let sent = drain(&socket);
    let reports: Vec<DtaReport> = sent.iter().map(|bytes| DtaReport::parse_payload(bytes).unwrap()).collect();
    assert_eq!(reports.iter().map(|r| r.store).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 0]);
    assert!(matches!(reports[0].body, DtaBody::KeyWrite { redundancy: 2, value: [0, 0, 5, 220], .. }));
    assert!(matches!(
        reports[1].body,
        DtaBody::Append { list: 3, value: [0, 0, 0, 1, 0, 0, 0, 2, 0xde, 0xad, 0xbe, 0xef] }
    ));
    assert!(reports[1].immediate && !reports[0].immediate);
    assert!(matches!(reports[2].body, DtaBody::KeyIncrement { delta: 1500, .. }));
    assert!(matches!(reports[3].body, DtaBody::Postcard { hop: 2, path_length: 5, value: 103, .. }));
    assert!(matches!(
        reports[4].body,
        DtaBody::SketchMerge { epoch: 1, column: 17, cells: [0, 0, 0, 12, 0, 0, 0, 40] }
    ));
    assert_eq!(reports[4].reporter, 7);
    assert_eq!(reports[5].version, Version::V0);
}

#[test]
fn repeats_varies_and_keeps_a_rate() {
    let (socket, to) = receiver();
    let started = std::time::Instant::now();
    let line = "send key-write --store 1 --key ffffffff --value 7 --vary key --count 50 --rate 500 --output json --to";
    let mut arguments: Vec<&str> = line.split(' ').collect();
    arguments.push(&to);
    let output = program(&arguments, "");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(started.elapsed() >= Duration::from_millis(90), "49 waits of 2 ms");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let node = &json["nodes"][0];
    assert_eq!((&node["node"], &node["stage"]), (&"reporter/0".into(), &"reporter".into()));
    assert_eq!((&node["counters"]["reports"], &node["counters"]["sent"]), (&50.into(), &50.into()));
    let keys: Vec<u32> = drain(&socket)
        .iter()
        .map(|bytes| match DtaReport::parse_payload(bytes).unwrap().body {
            DtaBody::KeyWrite { key, .. } => u32::from_be_bytes(*key.0.first_chunk().unwrap()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(keys, (0..50).map(|n| u32::MAX.wrapping_add(n)).collect::<Vec<_>>());
}

#[test]
fn sends_lines_and_names_the_bad_ones() {
    let (socket, to) = receiver();
    let lines = r#"{"primitive":"append","store":2,"list":3,"value":[1,2,3]}

{"primitive":"append","store":2,"lists":3,"value":7}
{"primitive":"append","store":2,"list":3,"value":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}
{"primitive":"postcard","store":4,"key":"0a","hop":14,"value":1}
not json
{"primitive":"key-increment","store":3,"key":"10.0.0.1:1->10.0.0.2:2/tcp","delta":5}"#;
    let output = program(&["send", "--file", "-", "--to", &to], lines);
    assert_eq!(output.status.code(), Some(1));
    let errors = stderr(&output);
    for expect in [
        "line 3: ",
        "`lists`",
        "line 4: ",
        "60 bytes",
        "line 5: ",
        "hop",
        "line 6: ",
        "4 lines were not sent",
    ] {
        assert!(errors.contains(expect), "no {expect} in {errors}");
    }
    let sent = drain(&socket);
    assert_eq!(sent.len(), 2, "the good ones are sent");

    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, r#"{{"primitive":"append","store":2,"list":0,"value":1}}"#).unwrap();
    let output = program(&["send", "--to", &to, "--file", file.path().to_str().unwrap()], "");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(drain(&socket).len(), 1);
}

#[test]
fn says_what_is_wrong() {
    for (arguments, status, expect) in [
        ("send", 2, "--file"),
        ("send append --list 1", 2, "--value"),
        ("send append --list 1 --value 1,x", 2, "`x` is neither a number"),
        ("send key-write --key 10.0.0.1->10.0.0.2 --value 1", 2, "protocol"),
        ("send append --list 1 --value 1 --dta-version 2", 2, "versions 0 and 1"),
        ("send append --list 1 --value 1 --rate=-1", 2, "from 0 on"),
        ("send append --list 1 --value 1 --dta-version 0 --store 3", 1, "neither a store nor a reporter id"),
        (
            "send append --list 1 --value 1 --dta-version 0 --to 127.0.0.1:9 --retransmittable --from 192.0.2.77:0",
            1,
            "192.0.2.77",
        ),
        ("send postcard --store 4 --key 0a --hop 20 --value 1 --to 127.0.0.1:9", 1, "hop"),
        ("send sketch-merge --epoch 1 --column 1 --cells 1 --dta-version 0 --to 127.0.0.1:9", 1, "version"),
        ("send append --store 2 --list 1 --value 1 --vary key --to 127.0.0.1:9", 1, "no key"),
        ("send append --list 1 --value 1 --to 127.0.0.1:9", 1, "with --store"),
        (
            "send append --store events --list 1 --value 1 --to 127.0.0.1:9",
            1,
            "the id of store `events` is unknown",
        ),
        ("send --file /does/not/exist --to 127.0.0.1:9", 1, "/does/not/exist"),
    ] {
        let output = program(&arguments.split(' ').collect::<Vec<_>>(), "");
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments}: {errors}");
        assert!(errors.contains(expect), "{arguments}: no {expect} in {errors}");
        assert!(!errors.contains("panicked"), "{errors}");
    }
}
