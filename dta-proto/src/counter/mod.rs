//! What every node counts: name, unit, stage and meaning of each counter, defined once for all programs.
//!
//! A node builds its names from these tables, and readers look up the [`Definition`] of a name with [`find_counter`].
//! Unknown names come from newer or foreign programs: [`find_counter`] returns `None`, and readers pass them through.
//! `docs/counters.md` has the same tables; a test keeps the two equal.
//!
//! - [`translator`], [`reporter`], [`nic`], [`collector`], [`ring`], [`between`]: the tables, by the node that counts.
//! - [`gaps`]: which numbered datagrams are missing.
//! - [`published_counters`](crate::published_counters), [`shared_counters`](crate::shared_counters): declare structures of
//!   counters from these definitions; [`counters`](crate::counters) declares one whose sums are published otherwise.
//! - [`Reason`], [`Discard`], [`LossCause`], [`nic::Counter`], [`LinkLoss`], [`Fault`]: enumerations that
//!   index arrays of counters.

pub mod between;
pub mod collector;
mod definition;
pub mod gaps;
mod link;
pub mod nic;
mod node;
mod reason;
pub mod reporter;
pub mod ring;
mod structs;
pub mod translator;
mod variable;

pub use definition::{
    CounterKind, CounterStep, CounterTable, Definition, MAX_VARIABLES, ParsedCounter, Unit,
};
pub use link::{Fault, LinkIgnored, LinkLoss, LinkXdp};
pub use node::{CounterNode, EVICTED, Stage, find_counter};
pub use reason::{Discard, Enterprise, FlowReason, IntReason, LossCause, Reason};
pub use variable::{Values, Variable, VariableValue};

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
                $crate::counter::CounterStep::$step,
                $meaning,
            )$(.$method($($argument)*))*;
        )+
        $(#[$table_doc])*
        pub static $table: $crate::counter::CounterTable = $crate::counter::CounterTable { title: $title, definitions: &[$(&$NAME),+] };
    };
}
use table;

/// Declares an enumeration whose values are parts of names, each with its meaning.
macro_rules! values {
    ($(#[$doc:meta])* $Name:ident { $($Variant:ident = $text:literal, $meaning:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $Name { $(#[doc = concat!("`", $text, "`: ", $meaning, ".")] $Variant,)+ }

        impl $Name {
            /// All values.
            pub const ALL: &'static [$Name] = &[$($Name::$Variant,)+];
            /// Their names and meanings, in the same order.
            pub const VALUES: &'static [$crate::counter::VariableValue] =
                &[$($crate::counter::VariableValue { name: $text, meaning: $meaning },)+];

            /// Its spelling in names of counters.
            pub const fn name(self) -> &'static str {
                $Name::VALUES[self as usize].name
            }

            /// The value with this name; `None` for one of a newer program.
            pub fn from_name(name: &str) -> Option<$Name> {
                $Name::ALL.iter().copied().find(|value| value.name() == name)
            }
        }
    };
}
use values;
