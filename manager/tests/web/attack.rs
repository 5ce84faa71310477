//! Other sites, slow readers, many connections and malformed requests: refused, bounded and counted.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::int_bed::PATIENCE;
use crate::{WebBed, http};

/// Waits until the collector counts at least so many.
async fn until_counted(bed: &WebBed, name: &str, least: u64) {
    let begun = Instant::now();
    loop {
        let counted = bed.counted(name).await;
        if counted >= least {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{name} is {counted}, not {least}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_other_sites_are_refused_and_counted() {
    let Some(bed) = WebBed::start().await else { return };
    let status = |method: &str, headers: &[(&str, &str)]| {
        http::request(&bed.page, method, "/api/v1/stores", headers, "").map(|answer| answer.status)
    };
    assert_eq!(status("GET", &[]), Some(200));
    for headers in [
        &[("Host", "attacker.example")][..],
        &[("Origin", "http://attacker.example")],
        &[("Origin", "null")],
        &[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")],
    ] {
        assert_eq!(status("GET", headers), Some(403), "{headers:?}");
    }
    assert_eq!(bed.counted("web.refused").await, 4);
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        assert_eq!(status(method, &[]), Some(405), "{method}");
    }
    let page = http::get(&bed.page, "/");
    let policy = page.header("content-security-policy");
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("access-control-allow-origin"), "");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_and_giant_requests_end_their_connection_alone() {
    let Some(bed) = WebBed::start().await else { return };
    let giant = format!("GET /{} HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(1 << 20), bed.page);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(1000));
    let requests: [&[u8]; 5] = [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        giant.as_bytes(),
        many.as_bytes(),
    ];
    for request in requests {
        let mut stream = TcpStream::connect(&bed.page).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may be cut off in the middle.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    until_counted(&bed, "web.malformed", 3).await;
    let body = http::request(&bed.page, "GET", "/api/v1/stores", &[], &"x".repeat(1 << 20));
    assert!(body.is_none_or(|answer| answer.status == 200));
    assert_eq!(http::get(&bed.page, "/api/v1/stores").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_and_slow_readers_lock_nobody_out() {
    let Some(bed) = WebBed::start().await else { return };
    let before = bed.int.collector.as_ref().unwrap().most_memory();
    // Many more than there are places; two of three say something, and none reads.
    let mut held = Vec::new();
    for number in 0..10_000 {
        let Ok(mut stream) = TcpStream::connect(&bed.page) else { continue };
        let _ = match number % 3 {
            0 => Ok(()),
            1 => stream.write_all(b"GET / HTTP/1.1\r\nHost: 127."),
            _ => write!(stream, "GET /api/v1/events/live HTTP/1.1\r\nHost: {}\r\n\r\n", bed.page),
        };
        held.push(stream);
    }
    assert!(held.len() > 600, "only {} connections were made", held.len());
    // 128 have places, and a queue of the system's as many again.
    until_counted(&bed, "web.displaced", held.len() as u64 / 2).await;
    let files = bed.int.collector.as_ref().unwrap().open_files();
    assert!(files < 1024, "{files} files are open");
    assert_eq!(http::get(&bed.page, "/api/v1/stores").status, 200);
    assert_eq!(http::get(&bed.page, "/").status, 200);
    // One that asks without end and never reads.
    let mut deaf = TcpStream::connect(&bed.page).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let request = format!("GET /api/openapi.json HTTP/1.1\r\nHost: {}\r\n\r\n", bed.page);
    for _ in 0..100_000 {
        if deaf.write_all(request.as_bytes()).is_err() {
            break;
        }
    }
    until_counted(&bed, "web.unread", 1).await;
    let grown = bed.int.collector.as_ref().unwrap().most_memory() - before;
    assert!(grown < 64 << 20, "{grown} bytes more");
    // gRPC did not notice.
    assert_eq!(bed.counted("connections.refused").await, 0);
}
