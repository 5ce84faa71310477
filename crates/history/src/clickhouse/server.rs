//! ClickHouse's HTTP interface, by the client that exporters use.

use std::path::Path;
use std::time::Duration;

use dta_files::http::SentSecrets;
use ureq::Agent;
use ureq::http::HeaderValue;

use super::{ClickHouseError, rows};

const CONNECT: Duration = Duration::from_secs(5);
/// Timeout of a part of a block that cannot be sent.
const WRITE: Duration = Duration::from_secs(30);
/// How long a block may take until it is inserted: with replicas, views and throttling, minutes.
const ANSWERED: Duration = Duration::from_secs(300);
/// How long the check at the start takes at most.
const START: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read.
const ANSWER: u64 = 16 << 10;
/// Blocks whose tokens a table that is made here remembers: of each collector, only the last one can be sent again.
const WINDOW: usize = 1000;

/// What each statement is sent with, whatever the user's profile says: it is answered when it is over, and a block that is there
/// already is not inserted again.
const SETTINGS: [(&str, &str); 3] =
    [("async_insert", "0"), ("insert_deduplicate", "1"), ("wait_end_of_query", "1")];

/// ClickHouse's numbers of errors.
const UNKNOWN_TABLE: u32 = 60;
const UNKNOWN_DATABASE: u32 = 81;
const UNKNOWN_SETTING: u32 = 115;
const NO_PRIVILEGE: u32 = 497;
/// Unknown user, wrong or missing password, no access to the database, no privilege, authentication failed.
const NO_ACCESS: [u32; 6] = [192, 193, 194, 291, NO_PRIVILEGE, 516];

pub type Login = (String, String);

/// A database of a server, and whose rows it gets. Its `Debug` shows no password.
pub struct ClickHouseServer {
    agent: Agent,
    url: String,
    database: String,
    /// The values of the headers with user and password.
    login: Option<[HeaderValue; 2]>,
    /// What no message may repeat.
    sent: SentSecrets,
    collector: String,
}

impl std::fmt::Debug for ClickHouseServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("url", &self.url).finish_non_exhaustive()
    }
}

impl ClickHouseServer {
    /// A database by the URL of its server (`http://HOST:8123`). Rows carry the name of the collector. `ca` is a file of certificate
    /// authorities (PEM). Makes no connection.
    ///
    /// # Errors
    /// The file cannot be used; user or password have characters that no header has.
    pub fn open(
        url: &str,
        database: &str,
        login: Option<Login>,
        ca: Option<&Path>,
        collector: &str,
    ) -> Result<ClickHouseServer, ClickHouseError> {
        let client = dta_files::http::client_config(ca, concat!("dta-history/", env!("CARGO_PKG_VERSION")));
        let agent = client
            .map_err(|problem| ClickHouseError::Authorities {
                path: ca.unwrap_or(Path::new("")).into(),
                problem,
            })?
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(ANSWERED))
            .timeout_per_write(Some(WRITE))
            .build()
            .into();
        let url = format!("{}/", url.trim_end_matches('/'));
        let header = |text: &str| {
            let mut value =
                HeaderValue::from_bytes(text.as_bytes()).map_err(|_| ClickHouseError::Refused {
                    url: url.clone(),
                    problem: "user or password have control characters".to_owned(),
                })?;
            value.set_sensitive(true);
            Ok::<HeaderValue, ClickHouseError>(value)
        };
        let sent = SentSecrets::new(login.iter().map(|(_, password)| password.as_str()));
        let login =
            login.map(|(user, password)| Ok::<_, ClickHouseError>([header(&user)?, header(&password)?]));
        let login = login.transpose()?;
        Ok(ClickHouseServer {
            agent,
            url,
            database: database.to_owned(),
            login,
            sent,
            collector: collector.to_owned(),
        })
    }

    /// Checks that it is a ClickHouse that knows deduplication tokens, takes the password and has the database.
    pub fn check_server(&self) -> Result<(), ClickHouseError> {
        let said = self
            .ask_within(Some(START), "SELECT 1", "check", &[])
            .map_err(|error| error.into_error("", self))?;
        match said.trim() {
            "1" => Ok(()),
            _ => {
                let said = self.sent.strike_out_text(said);
                Err(self.refused_error(format!("it answers {said:?}; is this the HTTP port of ClickHouse?")))
            }
        }
    }

    /// Inserts a block of rows (`RowBinary`), unless one with this token is there. Makes the table if there is none: `true`.
    pub(super) fn insert_block(
        &self,
        table: &str,
        columns: &[(&str, String)],
        token: &str,
        rows: &[u8],
    ) -> Result<bool, ClickHouseError> {
        let names: Vec<String> = columns.iter().map(|(name, _)| quote_name(name)).collect();
        let insert = format!("INSERT INTO {} ({}) FORMAT RowBinary", quote_name(table), names.join(", "));
        let insert = || self.run_statement(&insert, token, rows);
        match insert() {
            Ok(_) => Ok(false),
            Err(StatementFailure::Code(UNKNOWN_TABLE, _)) => {
                let made = self.run_statement(&create_statement(table, columns), token, &[]);
                made.and_then(|_| insert()).map(|_| true).map_err(|error| error.into_error(table, self))
            }
            Err(error) => Err(error.into_error(table, self)),
        }
    }

    pub(super) fn collector(&self) -> &str {
        &self.collector
    }

    /// What distinguishes it from other servers.
    pub(super) fn server_identity(&self) -> String {
        format!("{}{}", self.url, self.database)
    }

    fn run_statement(&self, statement: &str, token: &str, data: &[u8]) -> Result<String, StatementFailure> {
        self.ask_within(None, statement, token, data)
    }

    fn ask_within(
        &self,
        limit: Option<Duration>,
        statement: &str,
        token: &str,
        data: &[u8],
    ) -> Result<String, StatementFailure> {
        let request = self.agent.post(&self.url).config().timeout_global(limit).build();
        let mut request = request.query("database", &self.database);
        for (name, value) in SETTINGS.into_iter().chain([("insert_deduplication_token", token)]) {
            request = request.query(name, value);
        }
        if let Some([user, password]) = &self.login {
            request = request.header("X-ClickHouse-User", user).header("X-ClickHouse-Key", password);
        }
        let answer = request
            .query("query", statement)
            .send(data)
            .map_err(|error| StatementFailure::Away(error.to_string()))?;
        let (parts, mut body) = answer.into_parts();
        let body = body.with_config().limit(ANSWER).lossy_utf8(true).read_to_string();
        let body = body.map_err(|error| StatementFailure::Away(error.to_string()))?;
        let words = || -> String {
            let said = self.sent.strike_out_text(body.clone());
            said.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
        };
        match (parts.status.as_u16(), parse_error_code(&body)) {
            (200, None) => Ok(body),
            (_, Some(code)) => Err(StatementFailure::Code(code, words())),
            (status @ (300..=499), None) if ![408, 429].contains(&status) => Err(StatementFailure::Refused(
                format!("it answers {status} ({}); is this the HTTP port of ClickHouse?", words()),
            )),
            (status, None) => Err(StatementFailure::Away(format!("it answers {status} ({})", words()))),
        }
    }

    fn refused_error(&self, problem: String) -> ClickHouseError {
        ClickHouseError::Refused { url: self.url.clone(), problem }
    }
}

enum StatementFailure {
    Away(String),
    Refused(String),
    /// ClickHouse's number, and its words.
    Code(u32, String),
}

impl StatementFailure {
    /// What it means for a table; none for whatever is asked.
    fn into_error(self, table: &str, server: &ClickHouseServer) -> ClickHouseError {
        let url = server.url.clone();
        match self {
            StatementFailure::Away(problem) => ClickHouseError::Away { url, problem },
            StatementFailure::Refused(problem) => server.refused_error(problem),
            StatementFailure::Code(UNKNOWN_DATABASE, words) => server.refused_error(format!(
                "there is no database {:?}: make it with CREATE DATABASE ({words})",
                server.database
            )),
            StatementFailure::Code(UNKNOWN_SETTING, words) => server.refused_error(format!(
                "it has no deduplication tokens: ClickHouse 22.2 or newer is needed ({words})"
            )),
            // For other tables, the user may have it.
            StatementFailure::Code(NO_PRIVILEGE, words) if !table.is_empty() => ClickHouseError::Statement {
                url,
                table: table.to_owned(),
                problem: format!("the user may not insert into this table, or make it ({words})"),
            },
            StatementFailure::Code(code, words) if NO_ACCESS.contains(&code) => {
                server.refused_error(format!("user or password is wrong, or may not do that ({words})"))
            }
            StatementFailure::Code(_, problem) if table.is_empty() => ClickHouseError::Away { url, problem },
            StatementFailure::Code(_, problem) => {
                ClickHouseError::Statement { url, table: table.to_owned(), problem }
            }
        }
    }
}

/// The statement that makes a table. Each block is in one partition, as its epoch was opened on one day.
fn create_statement(table: &str, columns: &[(&str, String)]) -> String {
    let all: Vec<String> = columns.iter().map(|(name, of)| format!("{} {of}", quote_name(name))).collect();
    // What is looked for is a slot, a list or a key over time.
    let (slot, _) = &columns[rows::SLOT];
    format!(
        "CREATE TABLE IF NOT EXISTS {} ({}) ENGINE = MergeTree PARTITION BY toDate(opened) ORDER BY ({}, opened) \
         SETTINGS non_replicated_deduplication_window = {WINDOW}",
        quote_name(table),
        all.join(", "),
        quote_name(slot)
    )
}

fn quote_name(name: &str) -> String {
    format!("`{}`", name.replace('\\', "\\\\").replace('`', "\\`"))
}

/// The number of an error in ClickHouse's words: `Code: 60. DB::Exception: …`.
fn parse_error_code(said: &str) -> Option<u32> {
    let rest = said.trim_start().strip_prefix("Code: ")?;
    rest[..rest.find(|c: char| !c.is_ascii_digit())?].parse().ok()
}
