//! What every node counts: name, unit, place in the waterfall and meaning of each counter, once for
//! all programs.
//!
//! A node that counts makes its names from these tables, and who reads counters finds the
//! [`Definition`] of a name by [`find`]. Names that nobody here knows come from newer or foreign
//! programs: [`find`] says so, and readers leave them as they are. `docs/counters.md` has the same
//! tables for people; a test keeps both equal.
//!
//! - [`translator`], [`reporter`], [`nic`], [`collector`], [`ring`], [`between`]: the tables, by the node that counts.
//! - [`Reason`], [`Discard`], [`LossCause`], [`nic::Counter`], [`LinkLoss`], [`Fault`]: what the
//!   parts that count have an array of.

pub mod between;
pub mod collector;
mod definition;
mod link;
pub mod nic;
mod node;
mod reason;
pub mod reporter;
pub mod ring;
pub mod translator;
mod variable;

pub use definition::{Definition, Found, Kind, MAX_VARIABLES, Step, Table, Unit};
pub use link::{Fault, LinkLoss};
pub use node::{EVICTED, Node, Stage, find};
pub use reason::{Discard, IntReason, LossCause, Reason};
pub use variable::{Value, Values, Variable};

/// Declares the counters of one table of the document: a static per definition, and the table.
macro_rules! table {
    ($(#[$table_doc:meta])* $table:ident $title:literal {
        $($NAME:ident: $name:literal, $unit:ident, $step:ident, $meaning:literal $(.$method:ident($($argument:tt)*))*;)+
    }) => {
        $(
            #[doc = concat!("`", $name, "`: ", $meaning, ".")]
            pub static $NAME: $crate::counter::Definition = $crate::counter::Definition::new(
                $name,
                $crate::counter::Unit::$unit,
                $crate::counter::Step::$step,
                $meaning,
            )$(.$method($($argument)*))*;
        )+
        $(#[$table_doc])*
        pub static $table: $crate::counter::Table = $crate::counter::Table { title: $title, definitions: &[$(&$NAME),+] };
    };
}
use table;

/// Declares an enumeration whose values stand in names, each with what it means.
macro_rules! values {
    ($(#[$doc:meta])* $Name:ident { $($Variant:ident = $text:literal, $meaning:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $Name { $(#[doc = concat!("`", $text, "`: ", $meaning, ".")] $Variant,)+ }

        impl $Name {
            /// All of them.
            pub const ALL: &'static [$Name] = &[$($Name::$Variant,)+];
            /// Their names and meanings, in the same order.
            pub const VALUES: &'static [$crate::counter::Value] =
                &[$($crate::counter::Value { name: $text, meaning: $meaning },)+];

            /// As it stands in names of counters.
            pub const fn name(self) -> &'static str {
                $Name::VALUES[self as usize].name
            }

            /// The one of this name; `None` for one of a newer program.
            pub fn from_name(name: &str) -> Option<$Name> {
                $Name::ALL.iter().copied().find(|value| value.name() == name)
            }
        }
    };
}
use values;
