//! What becomes of a report: the state that each primitive keeps of a store, and how it takes a report. One file for
//! each primitive.

pub(crate) mod append;
pub(crate) mod increment;
pub(crate) mod key_write;
pub(crate) mod postcarding;
pub(crate) mod sketch;

use dta_proto::layout::key_write as layout;
use dta_proto::program::Store;
use dta_proto::store::StoreKind;
use dta_proto::wire::dta::Body;

use self::append::AppendState;
use self::increment::{Increments, KeyIncrementShape};
use self::key_write::KeyWriteShape;
use self::postcarding::PostcardState;
use self::sketch::SketchState;
use crate::context::Context;
use crate::counters::Reason;
use crate::engine::{Admitted, Limits};
use crate::gathers::Gathers;
use crate::losses::Origin;

/// What is kept of a store, by its primitive.
pub(crate) enum State {
    KeyWrite(KeyWriteShape),
    /// Whose slots hold their keys. Its shape is that of what they hold: key and value.
    InlineKeyWrite(KeyWriteShape),
    KeyIncrement(KeyIncrementShape),
    Append(AppendState),
    Postcarding(PostcardState),
    SketchMerge(Box<SketchState>),
}

impl State {
    /// The state that a new store begins with.
    pub(crate) fn new(store: &Store, limits: &Limits, reference: bool) -> State {
        let names = limits.name_reports;
        let mut state = match store.spec.kind {
            StoreKind::KeyWrite { slots, value_len, redundancy: copies, keys } => {
                let value_len = keys.key_len() + value_len;
                let shape = KeyWriteShape { slots, value_len, copies };
                if keys.are_hashed() { State::KeyWrite(shape) } else { State::InlineKeyWrite(shape) }
            }
            StoreKind::KeyIncrement { slots, redundancy, .. } => {
                State::KeyIncrement(KeyIncrementShape { slots, copies: redundancy })
            }
            StoreKind::Append { lists, ring, batch_len, entry_len, notify } => {
                State::Append(AppendState::new(lists, ring, batch_len, entry_len, notify))
            }
            StoreKind::Postcarding { slots, hops, redundancy } => {
                State::Postcarding(PostcardState::new(slots, hops, redundancy, limits.postcard_rows, names))
            }
            StoreKind::SketchMerge { columns, rows, epochs, merge, expected } => {
                State::SketchMerge(Box::new(SketchState::new(columns, rows, epochs, merge, expected, names)))
            }
        };
        if reference {
            state.set_reference(true);
        }
        state
    }

    /// Sets whether what is gathered follows the rules of a switch.
    pub(crate) fn set_reference(&mut self, reference: bool) {
        match self {
            State::KeyWrite(_) | State::InlineKeyWrite(_) | State::KeyIncrement(_) | State::Append(_) => {}
            State::Postcarding(state) => state.set_reference(reference),
            State::SketchMerge(state) => state.set_reference(reference),
        }
    }

    /// Whether what is written to the store can wake a reader.
    pub(crate) fn wakes(&self) -> bool {
        matches!(self, State::Append(state) if state.wakes())
    }

    /// The part that gathers reports; `None` where each leaves as it comes.
    pub(crate) fn gathers(&self) -> Option<&dyn Gathers> {
        match self {
            State::KeyWrite(_) | State::InlineKeyWrite(_) | State::KeyIncrement(_) => None,
            State::Append(state) => Some(state),
            State::Postcarding(state) => Some(state),
            State::SketchMerge(state) => Some(&**state),
        }
    }

    /// [`State::gathers`], to be changed.
    pub(crate) fn gathers_mut(&mut self) -> Option<&mut dyn Gathers> {
        match self {
            State::KeyWrite(_) | State::InlineKeyWrite(_) | State::KeyIncrement(_) => None,
            State::Append(state) => Some(state),
            State::Postcarding(state) => Some(state),
            State::SketchMerge(state) => Some(&mut **state),
        }
    }

    /// Takes a report: it becomes operations, or is gathered. `restarts` is how often reporters had begun anew when it
    /// was admitted, where that means something ([`postcarding::Arrival::restarts`]).
    #[inline(always)] // on the path of every report: no call, and no copy of the report
    pub(crate) fn ingest(
        &mut self,
        report: Admitted<'_>,
        origin: Origin,
        restarts: Option<u32>,
        increments: &mut Increments,
        context: &mut Context<'_>,
    ) -> Result<(), Reason> {
        // By copies, where a reference is handed on: so the report need not be in memory.
        match (*report.body, self) {
            (Body::KeyWrite { redundancy, key, value }, State::KeyWrite(shape)) => {
                shape.ingest(redundancy, &key, value, origin, context)?;
            }
            (Body::KeyWrite { redundancy, key, value }, State::InlineKeyWrite(shape)) => {
                // Of a report with both faults, this one counts, as in other stores.
                shape.copies(redundancy)?;
                let both = layout::inline(&key, value).ok_or(Reason::ValueLength)?;
                shape.ingest(redundancy, &key, &both, origin, context)?;
            }
            (Body::Append { list, value }, State::Append(state)) => {
                state.ingest(list, value, report.immediate, origin, context)?;
            }
            (Body::KeyIncrement { redundancy, key, delta }, State::KeyIncrement(shape)) => {
                increments.ingest(*shape, redundancy, &key, delta, origin, context)?;
            }
            (Body::Postcard { key, hop, path_length, value }, State::Postcarding(state)) => {
                let arrival =
                    postcarding::Arrival { key: &key, hop, length: path_length, value, origin, restarts };
                state.ingest(&arrival, context)?;
            }
            (Body::SketchMerge { epoch, column, cells }, State::SketchMerge(state)) => {
                state.ingest(epoch, column, cells, origin, context)?;
            }
            _ => return Err(Reason::WrongPrimitive),
        }
        Ok(())
    }
}
