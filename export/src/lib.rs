//! Out of a collector: the events that the translator's rules for INT append to the store `int-events`, for
//! databases and for people.
//!
//! It sees a collector only through [`dta_client::Ask`], so that it works inside the collector's process and
//! beside it. Modules point one way: [`source`] follows the lists and decodes what is in them, [`directory`]
//! remembers what keys stand for.

pub mod directory;
pub mod source;
