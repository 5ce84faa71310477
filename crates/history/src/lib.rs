//! What stores held, epoch by epoch: a table for each store, in Delta Lake's format with Parquet files, so that others read it as it
//! is. All calls block. `docs/decisions/history.md` says why in this format.
//!
//! - A [`EpochTable`] is a folder. [`EpochTable::begin_epoch`] takes the used slots of a region, or the entries of lists, and makes a file of them;
//!   [`EpochFlush::finish`] commits it: a killed writer leaves a whole epoch or none.
//! - [`EpochTable::kept_epochs`] and [`EpochTable::epoch_at_moment`] say which epochs are kept; [`EpochTable::read_slots`] looks slots up, [`EpochTable::scan_epoch`] and
//!   [`EpochTable::scan_entries`] read all.
//! - [`EpochTable::data_files`] and [`EpochTable::delta_schema`] say which files have the rows and which
//!   columns they have, for other readers of Parquet.
//! - [`EpochTable::open_rows`] is a table whose rows say by name what a store held.
//! - [`write_flow_groups`] makes one Parquet file, of no table, of sums of flow records.
//! - [`EpochTable::apply_retention`] and [`EpochTable::make_room`] remove the oldest; [`EpochTable::compact_span`] makes one file of many epochs' files,
//!   [`EpochTable::coarsen_span`] one epoch of many.
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
mod flow_groups;
mod flush;
mod layout;
mod log;
mod retention;
#[cfg(feature = "s3")]
pub mod s3;
mod table;
mod temporary;
mod vacuum;

pub use compact::{CompactedFile, SpanFiles, replaces_slots};
pub use epoch::{HistoryEpoch, KeptEpoch};
pub use error::HistoryError;
pub use files::{FileOfTable, store_delta_schema};
pub use flow_groups::write_flow_groups;
pub use flush::{EpochFlush, WrittenEpoch};
pub use layout::Cell;
pub use retention::{RemovedEpochs, Retention};
pub use table::{EpochTable, HistoryEntry};
