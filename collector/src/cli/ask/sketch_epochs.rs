//! The epochs in a sketch-merge store, found by reading all of its columns.

use std::collections::BTreeMap;

use dta_cli::number::{format_count, format_grouped};
use dta_cli::table::TextTable;
use dta_proto::control::{MAX_READ, ReadMemoryRequest};
use dta_proto::layout::sketch_merge::{ColumnContents, column_len, decode_column};
use dta_proto::store::{StoreKind, StoreSpec, find_store};
use dta_proto::telemetry;
use dta_proto::wire::dta::Primitive;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, Spread};
use serde::Serialize;

/// How much of an epoch has been merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct SketchEpoch {
    pub(super) epoch: u32,
    /// Whether every column has been merged from all reporters.
    complete: bool,
    /// Columns in use, columns merged from all reporters, and columns in the store.
    columns: u64,
    complete_columns: u64,
    of: u64,
}

/// The epochs of a store, newest first, and the store's name. An empty name stands for the only sketch-merge store.
pub(super) async fn query_epochs(
    ask: &Spread,
    members: &[RemoteCollector],
    name: &str,
) -> anyhow::Result<(String, Vec<SketchEpoch>)> {
    let spec = sketch_store(ask, name).await?;
    let StoreKind::SketchMerge { columns, rows, epochs, .. } = spec.kind else {
        unreachable!("checked above")
    };
    let len = column_len(rows);
    let total = u64::from(epochs) * u64::from(columns) * len;
    let mut found = ColumnsByEpoch::default();
    // If several collectors share the store, each column is on one of them.
    for member in members {
        let mut offset = 0;
        while offset < total {
            let length = (total - offset).min(MAX_READ.into()) as u32;
            let request = ReadMemoryRequest { store: spec.name.clone(), offset, length };
            let data = member.read_memory(request).await?.data;
            anyhow::ensure!(
                data.len() == length as usize,
                "the collector sent less memory than was asked for"
            );
            found.read(&data, rows);
            offset += u64::from(length);
        }
    }
    Ok((spec.name, found.into_epochs(columns.into())))
}

/// A sketch-merge store; an empty name stands for the only one.
pub(super) async fn sketch_store(ask: &Spread, name: &str) -> anyhow::Result<StoreSpec> {
    let specs = super::store_specs(ask).await?;
    let is_sketch = |spec: &&StoreSpec| spec.kind.primitive() == Primitive::SketchMerge;
    if !name.is_empty() {
        let spec = find_store(specs.iter(), |spec| spec, name);
        let spec =
            spec.ok_or_else(|| dta_cli::misuse_error(anyhow::anyhow!("there is no store {name:?}")))?;
        anyhow::ensure!(
            is_sketch(&spec),
            "store `{}` is a {} store, and has no epochs",
            spec.name,
            spec.primitive()
        );
        return Ok(spec.clone());
    }
    let of_people: Vec<&StoreSpec> =
        specs.iter().filter(is_sketch).filter(|spec| !telemetry::is_telemetry_store(&spec.name)).collect();
    match &of_people[..] {
        [only] => Ok((*only).clone()),
        [] => anyhow::bail!("there is no sketch-merge store"),
        several => {
            let names: Vec<&str> = several.iter().map(|spec| spec.name.as_str()).collect();
            Err(dta_cli::misuse_error(anyhow::anyhow!(
                "there are several sketch-merge stores: name one of {} with --store",
                names.join(", ")
            )))
        }
    }
}

/// Columns by epoch: how many are in use, and how many are complete.
#[derive(Default)]
struct ColumnsByEpoch(BTreeMap<u32, (u64, u64)>);

impl ColumnsByEpoch {
    fn read(&mut self, bytes: &[u8], rows: u8) {
        for column in
            bytes.chunks_exact(column_len(rows) as usize).filter_map(|bytes| decode_column(bytes, rows))
        {
            let held = column.contents_for(column.epoch);
            if held != ColumnContents::Unknown {
                let (there, complete) = self.0.entry(column.epoch).or_default();
                *there += 1;
                *complete += u64::from(held == ColumnContents::Complete);
            }
        }
    }

    fn into_epochs(self, of: u64) -> Vec<SketchEpoch> {
        let epoch = |(epoch, (columns, complete_columns))| SketchEpoch {
            epoch,
            complete: complete_columns == of,
            columns,
            complete_columns,
            of,
        };
        self.0.into_iter().rev().map(epoch).collect()
    }
}

pub(super) fn newest_complete(store: &str, epochs: &[SketchEpoch]) -> anyhow::Result<u32> {
    if let Some(epoch) = epochs.iter().find(|epoch| epoch.complete) {
        return Ok(epoch.epoch);
    }
    match epochs.first() {
        None => anyhow::bail!("store `{store}` holds no epoch: nothing has been merged into it"),
        Some(newest) => anyhow::bail!(
            "store `{store}` holds no complete epoch; its newest one, {}, has {} complete of {}: ask for it with --epoch {}",
            newest.epoch,
            format_grouped(newest.complete_columns),
            format_count(newest.of, "column", "columns"),
            newest.epoch
        ),
    }
}

pub(super) fn render_table(epochs: &[SketchEpoch]) -> String {
    let mut table = TextTable::new(&["epoch", "state", "columns", "complete", "of"], &[0, 2, 3, 4]);
    for epoch in epochs {
        table.add_row([
            epoch.epoch.to_string(),
            if epoch.complete { "complete" } else { "partial" }.to_owned(),
            format_grouped(epoch.columns),
            format_grouped(epoch.complete_columns),
            format_grouped(epoch.of),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use dta_proto::layout::sketch_merge::{SketchColumn, encode_column};

    use super::*;

    /// A store with two columns of one row and four epochs: what was merged into each.
    fn epochs(places: [[(u32, u16); 2]; 4]) -> Vec<SketchEpoch> {
        let mut found = ColumnsByEpoch::default();
        for place in places {
            let mut bytes = [0; 32];
            for ((epoch, merged), bytes) in place.into_iter().zip(bytes.chunks_exact_mut(16)) {
                encode_column(bytes, 1, &SketchColumn { epoch, merged, expected: 2, cells: [7, 0, 0, 0] });
            }
            found.read(&bytes, 1);
        }
        found.into_epochs(2)
    }

    #[test]
    fn the_newest_complete_epoch_is_taken_and_others_are_named() {
        // Epoch 6 has begun to replace epoch 2; in 5 a reporter is missing from one column.
        let all = epochs([[(4, 2), (4, 2)], [(5, 2), (5, 1)], [(6, 1), (2, 2)], [(3, 2), (3, 2)]]);
        let fields =
            |epoch: &SketchEpoch| (epoch.epoch, epoch.complete, epoch.columns, epoch.complete_columns);
        assert_eq!(
            all.iter().map(fields).collect::<Vec<_>>(),
            [(6, false, 1, 0), (5, false, 2, 1), (4, true, 2, 2), (3, true, 2, 2), (2, false, 1, 1)]
        );
        assert_eq!(newest_complete("s", &all).unwrap(), 4);
        let none = newest_complete("s", &all[..2]).unwrap_err().to_string();
        assert!(none.contains("6, has 0 complete of 2 columns") && none.contains("--epoch 6"), "{none}");
        assert!(newest_complete("s", &[]).unwrap_err().to_string().contains("holds no epoch"));
    }
}
