//! As much of HTTP as these tests need.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// What a server answered.
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    /// Lower-case names and values.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl HttpAnswer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

/// Sends a request with these headers, and reads the answer to its end; `None` if the connection was closed without one.
pub(crate) fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<HttpAnswer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        text += &format!("Host: {address}\r\n");
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    // A server may refuse before it has read all of it.
    let _ = stream.write_all(format!("{text}\r\n{body}").as_bytes());
    let answer = String::from_utf8(read_answer(&mut stream)).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines
        // chromedriver leaves out the blank behind the colon.
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Some(HttpAnswer { status, headers, body: body.to_owned() })
}

/// Reads up to the length that the head says, or to the end: chromedriver keeps its connections.
fn read_answer(stream: &mut TcpStream) -> Vec<u8> {
    let (mut answer, mut part) = (Vec::new(), [0; 64 << 10]);
    loop {
        let read = stream.read(&mut part).unwrap_or(0);
        answer.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&answer);
        let is_whole = text.split_once("\r\n\r\n").is_some_and(|(head, _)| {
            let lines = head.lines().filter_map(|line| line.split_once(':'));
            let mut lengths = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            let length: Option<usize> = lengths.next().and_then(|(_, length)| length.trim().parse().ok());
            length.is_some_and(|length| answer.len() >= head.len() + 4 + length)
        });
        if read == 0 || is_whole {
            return answer;
        }
    }
}

pub(crate) fn get(address: &str, path: &str) -> HttpAnswer {
    request(address, "GET", path, &[], "").unwrap_or_else(|| panic!("no answer to {path}"))
}
