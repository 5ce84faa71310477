//! Decodes the bytes of one element into a line.

use dta_cli::number::format_count;
use dta_proto::hex_groups;
use dta_proto::layout::{ElementField, append, element_fields, postcarding, sketch_merge};
use dta_proto::store::{StoreKind, StoreSpec};

/// A value as text if it is valid text, otherwise as big-endian 32-bit numbers.
fn format_value(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(|c| !c.is_control()) => format!("{text:?}"),
        _ => {
            let words =
                bytes.chunks(4).map(|w| w.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)).to_string());
            words.collect::<Vec<_>>().join(" ")
        }
    }
}

/// The element `index` of a store, decoded for people. Most slots do not contain their key, so only a query can
/// check their checksum.
pub fn describe_element(spec: &StoreSpec, index: u64, bytes: &[u8]) -> String {
    if (bytes.len() as u64) < spec.element_len() {
        return String::new();
    }
    if bytes.iter().all(|b| *b == 0) {
        return "empty".into();
    }
    match spec.kind {
        StoreKind::KeyWrite { keys, .. } => {
            let (key, of_key) = bytes[4..].split_at(keys.inline_key_len().into());
            let key = if keys.are_hashed() { String::new() } else { format!("key {}, ", hex_groups(key)) };
            format!("{key}value {}", format_value(of_key))
        }
        StoreKind::Postcarding { hops, .. } => match postcarding::unverified_path(bytes) {
            Some(path) => {
                let hops: Vec<_> = (0..hops)
                    .map_while(|h| {
                        (h < path.length || path.hop_value(h).is_some()).then(|| path.hop_value(h))
                    })
                    .collect();
                let hops: Vec<_> = hops.iter().map(|h| h.map_or("?".into(), |h| h.to_string())).collect();
                format!("path {}", hops.join(" → "))
            }
            None => "damaged row".into(),
        },
        StoreKind::Append { ring, entry_len, .. } => {
            let list = (index / ring) as u32;
            match append::decode_batch(bytes, list, entry_len) {
                append::RingBatch::Empty => "empty".into(),
                append::RingBatch::Valid { sequence, count, .. } => {
                    format!(
                        "list {list} batch {sequence}, {}",
                        format_count(count as u64, "entry", "entries")
                    )
                }
                append::RingBatch::Torn => format!("list {list}, being written or damaged"),
            }
        }
        StoreKind::SketchMerge { rows, columns, .. } => match sketch_merge::decode_column(bytes, rows) {
            Some(column) => format!(
                "column {} epoch {} merged {}/{} cells {:?}",
                index % u64::from(columns),
                column.epoch,
                column.merged,
                column.expected,
                &column.cells[..usize::from(rows)]
            ),
            None => "damaged column".into(),
        },
        // Elements without words of their own.
        _ => {
            let mut rest = bytes;
            let words = element_fields(&spec.kind).into_iter().map(|(name, field)| {
                let (bytes, behind) = rest.split_at(field.size_in_bytes());
                rest = behind;
                format!("{name} {}", number_or_value(field, bytes))
            });
            words.collect::<Vec<_>>().join(", ")
        }
    }
}

fn number_or_value(field: ElementField, bytes: &[u8]) -> String {
    let number = |n: u64, byte: &u8| n << 8 | u64::from(*byte);
    match field {
        ElementField::Be16 | ElementField::Be32 => bytes.iter().fold(0, number).to_string(),
        ElementField::Le16 | ElementField::Le64 => bytes.iter().rev().fold(0, number).to_string(),
        ElementField::Bytes(_) => format_value(bytes),
    }
}
