//! Copies of tables in object storage that speaks S3, where others read them.
//!
//! - [`StorageBucket`]: a place in object storage, with what the environment says of how to get there. It is checked that a
//!   second writer of one object is refused ([`StorageBucket::check_access`]): commits depend on it.
//! - [`Mirror`]: the copy of one table. [`Mirror::mirror_table`] uploads what the table has and the copy has not, then commits
//!   it, and removes what the table has no longer. The copy has a log of its own, which says what is in it: after a
//!   restart nothing is uploaded twice.
//!
//! All calls block, and end early once the watched value is true.

mod bucket;
mod credentials;
mod error;
mod http;
mod mirror;

pub use bucket::StorageBucket;
pub use credentials::Variables;
pub use error::S3Error;
pub use mirror::{Followed, Mirror};
