//! Why an exporter does not start.

use dta_files::config_file::ConfigError;

/// Why an exporter does not start, or cannot use its spool, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExportError(pub(crate) String);

impl From<ConfigError> for ExportError {
    fn from(error: ConfigError) -> ExportError {
        ExportError(error.to_string())
    }
}
