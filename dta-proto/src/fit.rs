//! Whether a report fits a store.

use crate::store::{StoreKind, StoreSpec};
use crate::wire::dta::{DtaBody, Primitive};

/// Why a report does not fit a store, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misfit(String);

impl Misfit {
    /// A store of another kind than the report's.
    pub fn wrong_kind(store: &str, kind: Primitive, primitive: Primitive) -> Misfit {
        Misfit(format!("store `{store}` is a {kind} store, and takes no {primitive} reports"))
    }
}

/// Checks what every data plane checks of a report for a store. Whether the report then lands depends on
/// earlier reports, and on the lists, epochs and reporters that the translator accepts.
///
/// # Errors
/// The first field that does not fit.
pub fn check_report_fit(store: &StoreSpec, body: &DtaBody<'_>) -> Result<(), Misfit> {
    let (kind, primitive) = (store.kind.primitive(), body.primitive());
    let field = |field, value: u64, must: String| {
        Err(Misfit(format!("{field} is {value}, but store `{}` takes {must}", store.name)))
    };
    match (body, &store.kind) {
        (
            DtaBody::KeyWrite { redundancy, value, .. },
            &StoreKind::KeyWrite { value_len, redundancy: most, .. },
        ) => {
            if *redundancy > most {
                return field("redundancy", (*redundancy).into(), format!("0 to {most}"));
            }
            if value.len() > value_len.into() {
                return field(
                    "the length of the value",
                    value.len() as u64,
                    format!("at most {value_len} bytes"),
                );
            }
        }
        (DtaBody::Append { list, value }, &StoreKind::Append { lists, entry_len, .. }) => {
            if *list >= lists {
                return field("list", (*list).into(), format!("0 to {}", lists - 1));
            }
            if value.len() != usize::from(entry_len) {
                return field("the length of the value", value.len() as u64, format!("{entry_len} bytes"));
            }
        }
        (DtaBody::KeyIncrement { redundancy, .. }, &StoreKind::KeyIncrement { redundancy: all, .. }) => {
            if *redundancy != 0 && *redundancy != all {
                return field("redundancy", (*redundancy).into(), format!("0 or {all}"));
            }
        }
        (DtaBody::Postcard { hop, path_length, .. }, &StoreKind::Postcarding { hops, .. }) => {
            if *path_length > hops {
                return field("path-length", (*path_length).into(), format!("at most {hops}"));
            }
            let most = if *path_length == 0 { hops } else { *path_length };
            if *hop >= most {
                return field("hop", (*hop).into(), format!("0 to {}", most - 1));
            }
        }
        (DtaBody::SketchMerge { column, cells, .. }, &StoreKind::SketchMerge { columns, rows, .. }) => {
            if *column >= columns {
                return field("column", (*column).into(), format!("0 to {}", columns - 1));
            }
            if cells.len() != 4 * usize::from(rows) {
                return field("the number of cells", cells.len() as u64 / 4, format!("{rows}"));
            }
        }
        // Primitives without limits always fit.
        _ if kind == primitive => {}
        _ => return Err(Misfit::wrong_kind(&store.name, kind, primitive)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    #[test]
    fn what_does_not_fit_is_named() {
        let store = |name: &str, kind| StoreSpec { id: 1, name: name.into(), kind };
        let flows = store(
            "flows",
            StoreKind::KeyWrite { slots: 8, value_len: 12, redundancy: 2, keys: Default::default() },
        );
        let events = store(
            "events",
            StoreKind::Append { lists: 16, ring: 8, batch_len: 64, entry_len: 16, notify: false },
        );
        let paths = store("paths", StoreKind::Postcarding { slots: 8, hops: 6, redundancy: 2 });
        let key = Key([1; 16]);
        let refusal =
            |store: &StoreSpec, body: &DtaBody<'_>| check_report_fit(store, body).unwrap_err().to_string();
        assert_eq!(
            check_report_fit(&flows, &DtaBody::KeyWrite { redundancy: 2, key, value: &[0; 12] }),
            Ok(())
        );
        assert_eq!(
            refusal(&flows, &DtaBody::KeyWrite { redundancy: 0, key, value: &[0; 16] }),
            "the length of the value is 16, but store `flows` takes at most 12 bytes"
        );
        assert_eq!(
            refusal(&flows, &DtaBody::KeyIncrement { redundancy: 0, key, delta: 1 }),
            "store `flows` is a key-write store, and takes no key-increment reports"
        );
        assert_eq!(
            refusal(&events, &DtaBody::Append { list: 16, value: &[0; 16] }),
            "list is 16, but store `events` takes 0 to 15"
        );
        assert_eq!(
            refusal(&paths, &DtaBody::Postcard { key, hop: 5, path_length: 5, value: 1 }),
            "hop is 5, but store `paths` takes 0 to 4"
        );
    }
}
