//! Histories as rows in ClickHouse: a table there for each table here, by the same name.
//!
//! - [`ClickHouseServer`]: a database of a server, over HTTP.
//! - [`Inserter`]: what becomes of one table. [`Inserter::insert_new_epochs`] inserts the epochs that the table has and that were not inserted
//!   yet, in blocks of [`BLOCK`] rows. Which those are is kept beside the table; a block whose answer was lost is sent again with the same
//!   deduplication token.
//!
//! All calls block.

mod error;
mod inserter;
mod position;
mod rows;
mod server;

pub use error::ClickHouseError;
pub use inserter::{BLOCK, Inserted, Inserter};
pub use server::{ClickHouseServer, Login};
