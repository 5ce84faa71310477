//! The protocol between the server and its workers. A request is a line of JSON; an answer is frames, each with its kind, its length and its
//! bytes: parts as they come, then an end.

use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

use crate::session::StatementLimits;
use crate::source::SourceFlags;

/// The first line that a worker reads. Its answer has no parts.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct WorkerSetup {
    pub(super) source: SourceFlags,
    pub(super) limits: StatementLimits,
    /// Most rows in an answer.
    pub(super) rows: u64,
    pub(super) log: String,
    pub(super) log_json: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WorkerRequest {
    /// The columns of a statement's answer: one part, an IPC message.
    Columns(String),
    /// The rows of a statement's answer: messages of Flight.
    Rows(String),
    /// What a `CommandGetDbSchemas` asks for: messages of Flight.
    ListSchemas(Vec<u8>),
    /// What a `CommandGetTables` asks for: messages of Flight.
    ListTables(Vec<u8>),
}

impl WorkerRequest {
    /// `None` for a list.
    pub(super) fn statement(&self) -> Option<&str> {
        match self {
            WorkerRequest::Columns(text) | WorkerRequest::Rows(text) => Some(text),
            WorkerRequest::ListSchemas(_) | WorkerRequest::ListTables(_) => None,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct AnswerEnd {
    code: i32,
    message: String,
    /// Whether the worker can take another request: it must not hold too much memory.
    pub(super) is_reusable: bool,
}

impl AnswerEnd {
    pub(super) fn new(done: Result<(), Status>, is_reusable: bool) -> AnswerEnd {
        let (code, message) = match done {
            Ok(()) => (Code::Ok, String::new()),
            Err(status) => (status.code(), status.message().to_owned()),
        };
        AnswerEnd { code: code.into(), message, is_reusable }
    }

    pub(super) fn result(self) -> Result<(), Status> {
        match Code::from_i32(self.code) {
            Code::Ok => Ok(()),
            code => Err(Status::new(code, self.message)),
        }
    }
}

/// The longest part of an answer, in bytes: the server holds some parts of each answer.
pub(super) const LONGEST_PART: usize = 16 << 20;

pub(super) const PART: u8 = 0;
pub(super) const END: u8 = 1;
/// Bytes before the contents of a frame: its kind, and its length, little-endian.
pub(super) const PREFIX: usize = 5;

pub(super) fn frame_prefix(kind: u8, bytes: usize) -> [u8; PREFIX] {
    let [a, b, c, d] = u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
    [kind, a, b, c, d]
}
