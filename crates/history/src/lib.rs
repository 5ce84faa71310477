//! What stores held, epoch by epoch: a table for each store, in Delta Lake's format with Parquet files, so that others read it as it
//! is. All calls block. `docs/decisions/history.md` says why in this format.
//!
//! - A [`Table`] is a folder. [`Table::begin`] takes the used slots of a region, or the entries of lists, and makes a file of them;
//!   [`Flush::finish`] commits it: a killed writer leaves a whole epoch or none.
//! - [`Table::epochs`] and [`Table::at`] say which epochs are kept; [`Table::slots`] looks slots up, [`Table::scan`] and
//!   [`Table::entries`] read all.
//! - [`Table::files`] and [`Table::schema`] say which files have the rows, and their columns: for other readers of Parquet.
//! - [`Table::open_rows`] is a table whose rows say by name what a store held.
//! - [`Table::retain`] and [`Table::make_room`] remove the oldest; [`Table::compact`] makes one file of many epochs' files,
//!   [`Table::coarsen`] one epoch of many.
//! - With the feature `s3`, `s3::Mirror` keeps a copy of a table in object storage; with the feature `clickhouse`,
//!   `clickhouse::Inserter` inserts its rows into a table of a ClickHouse server.

mod cache;
#[cfg(feature = "clickhouse")]
pub mod clickhouse;
mod compact;
mod data;
mod epoch;
mod error;
mod files;
mod flush;
mod layout;
mod log;
mod retention;
#[cfg(feature = "s3")]
pub mod s3;
mod table;
mod temporary;
mod vacuum;

pub use compact::{Compacted, Spanned};
pub use epoch::{Epoch, Kept};
pub use error::HistoryError;
pub use files::{FileOfTable, schema};
pub use flush::{Flush, Written};
pub use layout::Cell;
pub use retention::{Removed, Retention};
pub use table::{Entry, Table};
