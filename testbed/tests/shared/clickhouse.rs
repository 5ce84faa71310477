// A ClickHouse server for tests: as much of its HTTP interface as inserts need, with faults. Rows are held as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

pub const DATABASE: &str = "dta";
pub const LOGIN: (&str, &str) = ("writer", "secret");

/// What becomes of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is answered.
    Answered,
    /// It is answered later.
    After(Duration),
    /// The connection is closed, and nothing done.
    Refused,
    /// It is done, and the connection closed without an answer.
    AnswerLost,
    /// It is not done: this is the answer.
    Status(u16, &'static str),
}

/// A table: names and types of its columns, its rows, and the tokens of its blocks.
#[derive(Clone, Debug, Default)]
pub struct Made {
    pub columns: Vec<(String, String)>,
    pub rows: Vec<Vec<Value>>,
    tokens: BTreeSet<String>,
}

type Faults = Box<dyn FnMut(&str) -> Fate + Send>;

pub struct ClickHouse {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    faults: Mutex<Faults>,
    tables: Mutex<BTreeMap<String, Made>>,
    /// All statements, in order, each with its token and the length of its data.
    statements: Mutex<Vec<(String, String, usize)>>,
}

impl ClickHouse {
    pub fn start() -> ClickHouse {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let faults: Faults = Box::new(|_| Fate::Answered);
        let shared = Arc::new(Shared {
            faults: Mutex::new(faults),
            tables: Mutex::default(),
            statements: Mutex::default(),
        });
        let of_server = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = of_server.clone();
                std::thread::spawn(move || serve(&client, &shared));
            }
        });
        ClickHouse { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Decides from here on what becomes of statements.
    pub fn faults(&self, of: impl FnMut(&str) -> Fate + Send + 'static) {
        *self.shared.faults.lock().unwrap() = Box::new(of);
    }

    /// The statements since the last call.
    pub fn statements(&self) -> Vec<(String, String, usize)> {
        std::mem::take(&mut self.shared.statements.lock().unwrap())
    }

    /// A table as it is now.
    pub fn table(&self, name: &str) -> Option<Made> {
        self.shared.tables.lock().unwrap().get(name).cloned()
    }

    /// Removes a table, and gives what it had.
    pub fn drop_table(&self, name: &str) -> Option<Made> {
        self.shared.tables.lock().unwrap().remove(name)
    }
}

struct Request {
    parameters: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

fn serve(client: &TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(client);
    while let Some(request) = read(&mut reader) {
        let statement = request.parameters["query"].clone();
        let fate = shared.faults.lock().unwrap()(&statement);
        let (status, body) = match fate {
            Fate::Refused => return,
            Fate::Status(status, body) => (status, body.to_owned()),
            Fate::Answered | Fate::After(_) | Fate::AnswerLost => done(&request, shared),
        };
        let token = request.parameters.get("insert_deduplication_token").cloned().unwrap_or_default();
        shared.statements.lock().unwrap().push((statement, token, request.body.len()));
        match fate {
            Fate::After(time) => std::thread::sleep(time),
            Fate::AnswerLost => return,
            _ => {}
        }
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if (&mut &*client).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let target = line.split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers.get("content-length").map_or(0, |len| len.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    let (_, query) = target.split_once('?')?;
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap());
    let parameters = pairs.map(|(name, value)| (name.to_owned(), plain(value))).collect();
    Some(Request { parameters, headers, body })
}

/// What percents stand for.
fn plain(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// Does what is asked, as ClickHouse does it.
fn done(request: &Request, shared: &Shared) -> (u16, String) {
    let header = |name: &str| request.headers.get(name).map(String::as_str);
    if (header("x-clickhouse-user"), header("x-clickhouse-key")) != (Some(LOGIN.0), Some(LOGIN.1)) {
        return (
            403,
            "Code: 516. DB::Exception: writer: Authentication failed: password is incorrect".into(),
        );
    }
    if request.parameters["database"] != DATABASE {
        return (404, "Code: 81. DB::Exception: Database nix does not exist. (UNKNOWN_DATABASE)".into());
    }
    assert_eq!(request.parameters["async_insert"], "0", "else an answer says nothing");
    let statement = &request.parameters["query"];
    let mut tables = shared.tables.lock().unwrap();
    if let Some(rest) = statement.strip_prefix("INSERT INTO `") {
        let (name, rest) = rest.split_once("` (`").unwrap();
        let names = rest.strip_suffix("`) FORMAT RowBinary").unwrap().split("`, `");
        let Some(table) = tables.get_mut(name) else {
            return (
                404,
                format!("Code: 60. DB::Exception: Table dta.{name} does not exist. (UNKNOWN_TABLE)"),
            );
        };
        assert!(names.eq(table.columns.iter().map(|(name, _)| name)), "{statement}");
        if table.tokens.insert(request.parameters["insert_deduplication_token"].clone()) {
            let mut data = &request.body[..];
            while !data.is_empty() {
                table.rows.push(table.columns.iter().map(|(_, of)| cell(&mut data, of)).collect());
            }
        }
        return (200, String::new());
    }
    if let Some(rest) = statement.strip_prefix("CREATE TABLE IF NOT EXISTS `") {
        let (name, rest) = rest.split_once("` (`").unwrap();
        let (columns, rest) = rest.split_once(") ENGINE = MergeTree PARTITION BY").unwrap();
        assert!(
            rest.contains("non_replicated_deduplication_window"),
            "else tokens mean nothing: {statement}"
        );
        let columns = columns.split(", `").map(|column| column.split_once("` ").unwrap());
        let columns = columns.map(|(name, of)| (name.to_owned(), of.to_owned())).collect();
        tables.entry(name.to_owned()).or_insert(Made { columns, ..Made::default() });
        return (200, String::new());
    }
    assert_eq!(statement, "SELECT 1");
    (200, "1\n".to_owned())
}

/// Takes a cell of this type.
fn cell(data: &mut &[u8], of: &str) -> Value {
    let mut take = |len: usize| {
        let (cell, rest) = data.split_at(len);
        *data = rest;
        cell.to_vec()
    };
    let number = |bytes: Vec<u8>| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    match of {
        "UInt64" | "DateTime64(3, 'UTC')" => json!(number(take(8))),
        "UInt32" => json!(number(take(4))),
        "UInt16" => json!(number(take(2))),
        "String" | "LowCardinality(String)" => {
            let len = take(1)[0];
            assert!(len < 0x80, "no test has longer ones");
            json!(String::from_utf8(take(len.into())).unwrap())
        }
        of => {
            let len = of.strip_prefix("FixedString(").unwrap().strip_suffix(')').unwrap().parse().unwrap();
            json!(dta_proto::to_hex_digits(&take(len)))
        }
    }
}
