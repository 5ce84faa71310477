//! Filters in the language of pcap, compiled to the kernel's table.
//!
//! ```
//! let table = dta_trace::filter::compile("tcp port 80 and net 10.0.0.0/8").unwrap();
//! assert!(table.terms().len() <= 4);
//! ```
//!
//! The language is that of `pcap-filter(7)` as far as the table can tell packets apart; what it cannot is refused by name.
//! `and` and `or` bind alike and from the left, as they do there, and `not` binds more. What is meant is the innermost packet,
//! whatever tunnels are around it: the one that the trace follows. `outer` before a test or a parenthesis means the outermost.

mod compile;
mod lex;
mod net;
mod parse;
mod tree;

use crate::matching::{Table, TooLong};

/// Why a text is no filter, or one that the kernel's table cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Something else had to be there.
    #[error("{}: {wanted}", at(.found))]
    Syntax {
        /// What was found; `None` = the end.
        found: Option<String>,
        /// What is wrong with it.
        wanted: &'static str,
    },
    /// A word of the language that is not supported here.
    #[error("`{word}` is not supported: {why}")]
    Unsupported {
        /// The word.
        word: String,
        /// Why, or what to write instead.
        why: &'static str,
    },
    /// Parentheses, `not`, or turns of `and` and `or` are in each other too deeply.
    #[error(
        "the filter is nested more than {} deep; each turn from `and` to `or` nests, too",
        parse::DEEPEST
    )]
    Deep,
    /// It has too many bytes.
    #[error("the filter has {0} bytes; it may have {longest}", longest = parse::LONGEST)]
    Long(usize),
    /// It does not fit into the table.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

fn at(found: &Option<String>) -> String {
    match found {
        Some(found) => format!("at `{found}`"),
        None => "at the end".to_owned(),
    }
}

/// Compiles a filter. An empty text chooses every packet.
///
/// # Errors
/// The text is no filter, has a word that is not supported, or is too long for the table.
pub fn compile(text: &str) -> Result<Table, FilterError> {
    match parse::parse(text)? {
        Some(tree) => Ok(compile::table(&tree)?),
        None => Ok(Table::all()),
    }
}
