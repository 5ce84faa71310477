// Object storage for tests: moto's server (PyPI), and in front of it a proxy that records requests and makes faults.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is answered.
    Answered,
    /// It is answered later.
    After(Duration),
    /// The connection is closed before the server hears of it.
    Refused,
    /// The server does what is asked, and the connection is closed without its answer.
    AnswerLost,
    /// The server is not asked: this status is the answer.
    Status(u16),
    /// The server does not hear of the header `If-None-Match`.
    Unconditional,
}

/// A request, by method and path; the status of the server's answer, if it was asked; and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub status: Option<u16>,
    pub fate: Fate,
}

type Faults = Box<dyn FnMut(&Request) -> Fate + Send>;

pub struct ObjectStorage {
    server: Child,
    behind: SocketAddr,
    /// The proxy's address.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    faults: Mutex<Faults>,
    requests: Mutex<Vec<Request>>,
}

impl ObjectStorage {
    /// A server with an empty bucket called `bucket`; `None` if moto is not installed, which is printed. `target` is the folder of what is built.
    pub fn start(target: &Path) -> Option<ObjectStorage> {
        let packages = target.join("outside-readers");
        if !packages.exists() {
            println!("SKIPPED: moto is not installed in {} (make python)", packages.display());
            return None;
        }
        let mut server = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "KILL",
                "/usr/bin/python3",
                "-u",
                "-m",
                "moto.server",
                "-H",
                "127.0.0.1",
                "-p",
                "0",
            ])
            .env("PYTHONPATH", packages)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
        let mut log = Vec::new();
        let behind = loop {
            let line = lines.next().unwrap_or_else(|| panic!("moto's server ended: {log:#?}")).unwrap();
            if let Some((_, address)) = line.split_once("Running on http://") {
                break address.trim().parse().unwrap();
            }
            log.push(line);
        };
        std::thread::spawn(move || lines.for_each(drop));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let faults: Faults = Box::new(|_| Fate::Answered);
        let shared = Arc::new(Shared { faults: Mutex::new(faults), requests: Mutex::default() });
        let of_proxy = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = of_proxy.clone();
                std::thread::spawn(move || serve(client, behind, &shared));
            }
        });
        let storage = ObjectStorage { server, behind, address, shared };
        assert_eq!(storage.ask("PUT", "/bucket", b"").0, 200);
        Some(storage)
    }

    /// What a program's environment has to say.
    pub fn variables(&self) -> Vec<(String, String)> {
        let url = format!("http://{}", self.address);
        [
            ("AWS_ENDPOINT_URL", url.as_str()),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-east-1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    /// Decides from here on what becomes of requests.
    pub fn faults(&self, of: impl FnMut(&Request) -> Fate + Send + 'static) {
        *self.shared.faults.lock().unwrap() = Box::new(of);
    }

    /// The requests since the last call.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.shared.requests.lock().unwrap())
    }

    /// Asks the server, past the proxy. Gives status and body.
    pub fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        // It believes any signature.
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\nAuthorization: AWS4-HMAC-SHA256 \
             Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0\r\n\r\n",
            self.behind,
            body.len()
        );
        let answer = exchange(self.behind, &[head.as_bytes(), body].concat()).unwrap();
        let end = find(&answer, b"\r\n\r\n").unwrap() + 4;
        (status(&answer).unwrap(), answer[end..].to_vec())
    }

    /// The keys of all objects.
    pub fn keys(&self) -> Vec<String> {
        let text = String::from_utf8(self.ask("GET", "/bucket?list-type=2", b"").1).unwrap();
        assert!(text.contains("<IsTruncated>false"), "{text}");
        text.split("<Key>").skip(1).map(|rest| rest.split("</Key>").next().unwrap().to_owned()).collect()
    }

    /// Makes files of the objects below a prefix.
    pub fn download(&self, prefix: &str, folder: &Path) {
        for key in self.keys() {
            let Some(name) = key.strip_prefix(prefix) else { continue };
            let path = folder.join(name.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let (status, bytes) = self.ask("GET", &format!("/bucket/{key}"), b"");
            assert_eq!(status, 200, "{key}");
            std::fs::write(path, bytes).unwrap();
        }
    }
}

impl Drop for ObjectStorage {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Serves the one request of a connection.
fn serve(mut client: TcpStream, server: SocketAddr, shared: &Shared) {
    let Some((head, body)) = read(&mut client) else { return };
    let mut words = head.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut request = Request { method, path, status: None, fate: Fate::Answered };
    let fate = (shared.faults.lock().unwrap())(&request);
    let stays = |line: &&str| {
        let line = line.to_ascii_lowercase();
        let is_condition = line.starts_with("if-none-match:");
        let is_left_out = is_condition && fate == Fate::Unconditional;
        !line.starts_with("connection:") && !is_left_out
    };
    let answer = match fate {
        Fate::Refused => None,
        Fate::Status(status) => {
            let said = "<Error><Code>Broken</Code></Error>";
            Some(
                format!("HTTP/1.1 {status} Broken\r\nContent-Length: {}\r\n\r\n{said}", said.len())
                    .into_bytes(),
            )
        }
        _ => {
            if let Fate::After(time) = fate {
                std::thread::sleep(time);
            }
            let head: Vec<&str> = head.split("\r\n").filter(stays).collect();
            let asked =
                [format!("{}\r\nConnection: close\r\n\r\n", head.join("\r\n")).as_bytes(), &body].concat();
            let answer = exchange(server, &asked).unwrap_or_default();
            request.status = status(&answer);
            Some(answer)
        }
    };
    request.fate = fate;
    shared.requests.lock().unwrap().push(request);
    if let Some(answer) = answer.filter(|_| fate != Fate::AnswerLost)
        && let Some(end) = find(&answer, b"\r\n")
    {
        // Each connection takes one request.
        let close = b"\r\nConnection: close";
        let _ = client.write_all(&[&answer[..end], close, &answer[end..]].concat());
    }
}

/// Head and body of a request.
fn read(client: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut part) = (Vec::new(), vec![0; 1 << 16]);
    let end = loop {
        if let Some(end) = find(&bytes, b"\r\n\r\n") {
            break end;
        }
        match client.read(&mut part) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&part[..count]),
            _ => return None,
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let mut body = bytes.split_off(end + 4);
    let has = head.split("\r\n").map(str::to_ascii_lowercase).find_map(|line| {
        line.strip_prefix("content-length:").map(|length| length.trim().parse::<usize>().unwrap())
    });
    let before = body.len();
    body.resize(has.unwrap_or(0), 0);
    client.read_exact(&mut body[before..]).ok()?;
    Some((head, body))
}

fn exchange(server: SocketAddr, asked: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut server = TcpStream::connect(server)?;
    server.write_all(asked)?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    Ok(answer)
}

fn status(answer: &[u8]) -> Option<u16> {
    std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
