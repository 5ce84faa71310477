//! The state that each primitive keeps for a store, and how it takes a report. One file per primitive.

pub(crate) mod append;
pub(crate) mod increment;
pub(crate) mod key_write;
pub(crate) mod postcarding;
pub(crate) mod sketch;

use dta_proto::layout::key_write as layout;
use dta_proto::program::Store;
use dta_proto::store::StoreKind;
use dta_proto::wire::dta::DtaBody;

use self::append::AppendState;
use self::increment::{Increments, KeyIncrementShape};
use self::key_write::KeyWriteShape;
use self::postcarding::PostcardState;
use self::sketch::SketchState;
use crate::context::Context;
use crate::counters::{EngineCounters, Reason};
use crate::engine::{Admitted, EngineLimits};
use crate::losses::Origin;
use crate::regions::Regions;

/// A store's state that gathers reports, to send many in one operation.
pub(crate) trait Gathers {
    /// Sends what was started at or before `born_by`.
    fn flush_started_by(&mut self, born_by: u64, context: &mut Context<'_>);

    /// Sends everything held, in order of place (lists by number), the order in which a switch's registers
    /// are read.
    fn flush_all(&mut self, context: &mut Context<'_>);

    /// Start time of the oldest held element; `None` if nothing is held.
    fn oldest_start_time(&self) -> Option<u64>;

    /// Discards what is held and known for the region at a place, because the region is going away or its memory may
    /// hold newer data. The region then starts out like that of a new store. What another collector also has stays.
    fn discard_region(&mut self, regions: &Regions, place: usize, counters: &mut EngineCounters);
}

/// The state kept for a store, by its primitive.
pub(crate) enum PrimitiveState {
    KeyWrite(KeyWriteShape),
    /// Slots hold keys, too: the value length in the shape is that of key and value together.
    InlineKeyWrite(KeyWriteShape),
    KeyIncrement(KeyIncrementShape),
    Append(AppendState),
    Postcarding(PostcardState),
    SketchMerge(Box<SketchState>),
}

impl PrimitiveState {
    /// The state that a new store begins with.
    pub(crate) fn new(store: &Store, limits: &EngineLimits, reference: bool) -> PrimitiveState {
        let names = limits.name_reports;
        let mut state = match store.spec.kind {
            StoreKind::KeyWrite { slots, value_len, redundancy: copies, keys } => {
                let value_len = keys.inline_key_len() + value_len;
                let shape = KeyWriteShape { slots, value_len, copies };
                if keys.are_hashed() {
                    PrimitiveState::KeyWrite(shape)
                } else {
                    PrimitiveState::InlineKeyWrite(shape)
                }
            }
            StoreKind::KeyIncrement { slots, redundancy, .. } => {
                PrimitiveState::KeyIncrement(KeyIncrementShape { slots, copies: redundancy })
            }
            StoreKind::Append { lists, ring, batch_len, entry_len, notify } => {
                PrimitiveState::Append(AppendState::new(lists, ring, batch_len, entry_len, notify))
            }
            StoreKind::Postcarding { slots, hops, redundancy } => PrimitiveState::Postcarding(
                PostcardState::new(slots, hops, redundancy, limits.postcard_rows, names),
            ),
            StoreKind::SketchMerge { columns, rows, epochs, merge, expected } => PrimitiveState::SketchMerge(
                Box::new(SketchState::new(columns, rows, epochs, merge, expected, names)),
            ),
        };
        if reference {
            state.set_reference(true);
        }
        state
    }

    /// Sets whether what is gathered follows the rules of a switch.
    pub(crate) fn set_reference(&mut self, reference: bool) {
        match self {
            PrimitiveState::KeyWrite(_)
            | PrimitiveState::InlineKeyWrite(_)
            | PrimitiveState::KeyIncrement(_)
            | PrimitiveState::Append(_) => {}
            PrimitiveState::Postcarding(state) => state.set_reference(reference),
            PrimitiveState::SketchMerge(state) => state.set_reference(reference),
        }
    }

    /// Whether what is written to the store can wake a reader.
    pub(crate) fn wakes_reader(&self) -> bool {
        matches!(self, PrimitiveState::Append(state) if state.wakes_reader())
    }

    /// The part that gathers reports; `None` where each report is sent as it comes.
    pub(crate) fn gathers(&self) -> Option<&dyn Gathers> {
        match self {
            PrimitiveState::KeyWrite(_)
            | PrimitiveState::InlineKeyWrite(_)
            | PrimitiveState::KeyIncrement(_) => None,
            PrimitiveState::Append(state) => Some(state),
            PrimitiveState::Postcarding(state) => Some(state),
            PrimitiveState::SketchMerge(state) => Some(&**state),
        }
    }

    /// Mutable access to [`PrimitiveState::gathers`].
    pub(crate) fn gathers_mut(&mut self) -> Option<&mut dyn Gathers> {
        match self {
            PrimitiveState::KeyWrite(_)
            | PrimitiveState::InlineKeyWrite(_)
            | PrimitiveState::KeyIncrement(_) => None,
            PrimitiveState::Append(state) => Some(state),
            PrimitiveState::Postcarding(state) => Some(state),
            PrimitiveState::SketchMerge(state) => Some(&mut **state),
        }
    }

    /// Takes a report: it becomes operations, or is gathered. `restarts` is the number of reporter restarts
    /// when it was admitted, where that is meaningful ([`postcarding::PostcardArrival::restarts`]).
    #[inline(always)] // on the path of every report: no call, and no copy of the report
    pub(crate) fn ingest_report(
        &mut self,
        report: Admitted<'_>,
        origin: Origin,
        restarts: Option<u32>,
        increments: &mut Increments,
        context: &mut Context<'_>,
    ) -> Result<(), Reason> {
        // Copies even where a reference is handed on, so that the report need not be in memory.
        match (*report.body, self) {
            (DtaBody::KeyWrite { redundancy, key, value }, PrimitiveState::KeyWrite(shape)) => {
                shape.ingest_value(redundancy, &key, value, origin, context)?;
            }
            (DtaBody::KeyWrite { redundancy, key, value }, PrimitiveState::InlineKeyWrite(shape)) => {
                // If a report has both faults, this one counts, as in other stores.
                shape.requested_copies(redundancy)?;
                let both = layout::inline_value(&key, value).ok_or(Reason::ValueLength)?;
                shape.ingest_value(redundancy, &key, &both, origin, context)?;
            }
            (DtaBody::Append { list, value }, PrimitiveState::Append(state)) => {
                state.ingest_entry(list, value, report.immediate, origin, context)?;
            }
            (DtaBody::KeyIncrement { redundancy, key, delta }, PrimitiveState::KeyIncrement(shape)) => {
                increments.ingest_increment(*shape, redundancy, &key, delta, origin, context)?;
            }
            (DtaBody::Postcard { key, hop, path_length, value }, PrimitiveState::Postcarding(state)) => {
                let arrival = postcarding::PostcardArrival {
                    key: &key,
                    hop,
                    length: path_length,
                    value,
                    origin,
                    restarts,
                };
                state.ingest_postcard(&arrival, context)?;
            }
            (DtaBody::SketchMerge { epoch, column, cells }, PrimitiveState::SketchMerge(state)) => {
                state.ingest_column(epoch, column, cells, origin, context)?;
            }
            _ => return Err(Reason::WrongPrimitive),
        }
        Ok(())
    }
}
