//! Filters in the language of pcap, compiled to the kernel's table.
//!
//! ```
//! let table = dta_reporter::packet_trace::filter::compile_filter("tcp port 80 and net 10.0.0.0/8").unwrap();
//! assert!(table.terms().len() <= 4);
//! ```
//!
//! The language is that of `pcap-filter(7)`, as far as the table can distinguish packets; unsupported words
//! are rejected by name. As in pcap, `and` and `or` have equal precedence and associate to the left, and
//! `not` binds tighter. Tests apply to the innermost packet, whatever tunnels are around it, because that is
//! the one that the trace follows. `outer` before a test or a parenthesis selects the outermost.

mod compile;
mod net;
mod parse;

use crate::packet_trace::matching::{FilterTable, TooLong};

/// Why a text is not a filter, or not one that the kernel's table can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("{}: {wanted}", describe_place(.found))]
    Syntax {
        /// What was found; `None` = the end of the text.
        found: Option<String>,
        wanted: &'static str,
    },
    /// An unsupported word of the language.
    #[error("`{word}` is not supported: {why}")]
    Unsupported {
        word: String,
        /// Why, or what to write instead.
        why: &'static str,
    },
    /// Parentheses, `not`, or alternations of `and` and `or` are nested too deeply.
    #[error(
        "the filter is nested more than {} deep; each change from `and` to `or` counts as a level",
        parse::DEEPEST
    )]
    Deep,
    #[error("the filter has {0} bytes; the limit is {longest}", longest = parse::LONGEST)]
    Long(usize),
    /// It does not fit the table.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

fn describe_place(found: &Option<String>) -> String {
    match found {
        Some(found) => format!("at `{found}`"),
        None => "at the end".to_owned(),
    }
}

/// Compiles a filter. An empty text matches every packet.
///
/// # Errors
/// The text is not a filter, has an unsupported word, or is too long for the table.
pub fn compile_filter(text: &str) -> Result<FilterTable, FilterError> {
    match parse::parse_filter(text)? {
        Some(tree) => Ok(compile::compile_tree(&tree)?),
        None => Ok(FilterTable::match_all()),
    }
}
