//! ClickHouse's HTTP interface, through the HTTP client that the exporters use.

use std::path::Path;
use std::time::Duration;

use dta_files::http::SentSecrets;
use ureq::Agent;
use ureq::http::HeaderValue;

use super::{ClickHouseError, rows};

const CONNECT: Duration = Duration::from_secs(5);
/// How long a block may make no progress while being sent.
const WRITE: Duration = Duration::from_secs(30);
/// How long ClickHouse may take to insert a block: with replicas, views and throttling, minutes.
const ANSWERED: Duration = Duration::from_secs(300);
/// How long the check at the start may take.
const START: Duration = Duration::from_secs(5);
/// Most bytes read of an answer.
const ANSWER: u64 = 16 << 10;
/// How many blocks' tokens a table created here remembers: only the last block of each collector can be sent again.
const WINDOW: usize = 1000;

/// Settings sent with each statement, whatever the user's profile says: answer only when the statement is finished, and do not
/// insert a block twice.
const SETTINGS: [(&str, &str); 3] =
    [("async_insert", "0"), ("insert_deduplicate", "1"), ("wait_end_of_query", "1")];

/// ClickHouse's error numbers.
const UNKNOWN_TABLE: u32 = 60;
const UNKNOWN_DATABASE: u32 = 81;
const UNKNOWN_SETTING: u32 = 115;
const NO_PRIVILEGE: u32 = 497;
/// Unknown user, wrong or missing password, no access to the database, no privilege, authentication failed.
const NO_ACCESS: [u32; 6] = [192, 193, 194, 291, NO_PRIVILEGE, 516];

pub type Login = (String, String);

/// A database of a server, and the collector whose rows it receives. Its `Debug` shows no password.
pub struct ClickHouseServer {
    agent: Agent,
    url: String,
    database: String,
    /// Header values with user and password.
    login: Option<[HeaderValue; 2]>,
    /// Secrets that no message may repeat.
    sent: SentSecrets,
    collector: String,
}

impl std::fmt::Debug for ClickHouseServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("url", &self.url).finish_non_exhaustive()
    }
}

impl ClickHouseServer {
    /// Opens a database by the URL of its server (`http://HOST:8123`). Rows carry the name of the collector. `ca` is a file of
    /// certificate authorities (PEM). Makes no connection.
    ///
    /// # Errors
    /// The file cannot be used; user or password contain characters that a header cannot carry.
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

    /// Checks that the server is a ClickHouse that knows deduplication tokens, accepts the password and has the database.
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

    /// Inserts a block of rows (`RowBinary`), unless one with this token is there. Returns whether it had to create the table.
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
    /// ClickHouse's error number and message.
    Code(u32, String),
}

impl StatementFailure {
    /// The error for a table; with an empty name, for requests about no table.
    fn into_error(self, table: &str, server: &ClickHouseServer) -> ClickHouseError {
        let url = server.url.clone();
        match self {
            StatementFailure::Away(problem) => ClickHouseError::Away { url, problem },
            StatementFailure::Refused(problem) => server.refused_error(problem),
            StatementFailure::Code(UNKNOWN_DATABASE, words) => server.refused_error(format!(
                "there is no database {:?}: create it with CREATE DATABASE ({words})",
                server.database
            )),
            StatementFailure::Code(UNKNOWN_SETTING, words) => server.refused_error(format!(
                "it has no deduplication tokens: ClickHouse 22.2 or newer is needed ({words})"
            )),
            // The user may have the privilege for other tables.
            StatementFailure::Code(NO_PRIVILEGE, words) if !table.is_empty() => ClickHouseError::Statement {
                url,
                table: table.to_owned(),
                problem: format!("the user may not insert into this table, or create it ({words})"),
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

/// The statement that creates a table. Each block falls into one partition, as its epoch was opened on one day.
fn create_statement(table: &str, columns: &[(&str, String)]) -> String {
    let all: Vec<String> = columns.iter().map(|(name, of)| format!("{} {of}", quote_name(name))).collect();
    // Queries look for a slot, a list or a key over time.
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

/// The error number in ClickHouse's message: `Code: 60. DB::Exception: …`.
fn parse_error_code(said: &str) -> Option<u32> {
    let rest = said.trim_start().strip_prefix("Code: ")?;
    rest[..rest.find(|c: char| !c.is_ascii_digit())?].parse().ok()
}
