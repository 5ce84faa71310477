//! The parts of the exporter without a database and without a collector: needs no privilege and starts no program.

mod directory;
mod events;
mod influx;
mod json;
mod lists;
mod schema;
mod source;
