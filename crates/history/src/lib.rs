//! What stores held, epoch by epoch: a Delta Lake table of Parquet files for each store, which other tools read as it is. All calls block.
//! `docs/decisions/history.md` says why this format.
//!
//! - An [`EpochTable`] is a folder. [`EpochTable::begin_epoch`] takes the used slots of a region, or the entries of lists, and writes them to a file;
//!   [`EpochFlush::finish`] commits it: a writer that is killed leaves a whole epoch or none.
//! - [`EpochTable::kept_epochs`] and [`EpochTable::epoch_at_moment`] say which epochs are kept; [`EpochTable::read_slots`] looks up slots,
//!   [`EpochTable::scan_epoch`] and [`EpochTable::scan_entries`] read everything.
//! - [`EpochTable::data_files`] and [`EpochTable::delta_schema`] tell other Parquet readers which files have the rows, and which columns they have.
//! - [`EpochTable::open_rows`] opens a table with named columns for what a store held.
//! - [`write_flow_groups`] writes sums of flow records as one Parquet file, outside any table.
//! - [`EpochTable::apply_retention`] and [`EpochTable::make_room`] remove the oldest epochs; [`EpochTable::compact_span`] merges the files of many
//!   epochs into one, [`EpochTable::coarsen_span`] many epochs into one.
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
