//! Sums of flow records as a Parquet file: the grouping columns with the names and types they have in a table of
//! `flow-records`, and the sums as longs.

use std::collections::BTreeMap;
use std::sync::Arc;

use dta_proto::flow_query::{FlowAnswer, FlowSums};
use parquet::errors::Result;

use crate::data::{DataWriter, RowMoments};
use crate::layout::Layout;

/// The key in the file's metadata that says what the sums are of; history files have their store there.
const ABOUT: &str = "dta.flows";

/// The groups of an answer as a Parquet file, largest first: a row for each group or, if `has_buckets`, for each of its
/// time buckets, with the bucket's start in nanoseconds since 1970.
///
/// # Errors
/// Parquet refuses a column, which no column of flow records gives it reason to.
pub fn write_flow_groups(answer: &FlowAnswer, has_buckets: bool) -> Result<Vec<u8>> {
    let layout = Arc::new(Layout::of_flow_groups(&answer.group, has_buckets));
    let columns: Vec<&str> = answer.group.iter().map(|column| column.name).collect();
    let mut file = Vec::new();
    let moments = RowMoments::Known(BTreeMap::new());
    let mut writer = DataWriter::new(layout.clone(), &mut file, (ABOUT, columns.join(",")), moments)?;
    let mut element = Vec::with_capacity(layout.element_len);
    for row in &answer.rows {
        let mut append_sums = |start: Option<u64>, sums: FlowSums| {
            element.clear();
            for (column, value) in answer.group.iter().zip(&row.values) {
                let bytes = value.to_be_bytes();
                element.extend_from_slice(&bytes[bytes.len() - column.kind.width()..]);
            }
            let numbers = start.into_iter().chain([sums.bytes, sums.packets, sums.flows]);
            element.extend(numbers.flat_map(u64::to_be_bytes));
            writer.append_row(0, 0, &element)
        };
        match has_buckets {
            false => append_sums(None, row.sums)?,
            true => row.series.iter().try_for_each(|(start, sums)| append_sums(Some(*start), *sums))?,
        }
    }
    writer.finish()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use bytes::Bytes;
    use dta_proto::flow_query::{FlowQuestion, FlowRow, address_value};
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::Field;

    use super::*;

    fn answer(group: &str, rows: Vec<FlowRow>) -> FlowAnswer {
        FlowAnswer {
            group: FlowQuestion::parse_group(group).unwrap(),
            rows,
            total: FlowSums::default(),
            groups: 0,
            beyond: FlowSums::default(),
            unreachable: Vec::new(),
        }
    }

    fn row(values: Vec<u128>, bytes: u64, series: &[(u64, u64)]) -> FlowRow {
        let sums = |bytes| FlowSums { bytes, packets: bytes / 100, flows: 1 };
        let series = series.iter().map(|(start, bytes)| (*start, sums(*bytes))).collect();
        FlowRow { values, sums: sums(bytes), series }
    }

    /// The rows of a file by column, as another reader sees them.
    fn read_back(file: Vec<u8>) -> Vec<Vec<(String, Field)>> {
        let reader = SerializedFileReader::new(Bytes::from(file)).unwrap();
        let rows = reader.get_row_iter(None).unwrap();
        rows.map(|row| row.unwrap().into_columns()).collect()
    }

    fn named(columns: &[(&str, Field)]) -> Vec<(String, Field)> {
        columns.iter().map(|(name, field)| ((*name).to_owned(), field.clone())).collect()
    }

    #[test]
    fn groups_are_read_back_as_they_were_summed() {
        let address = |text: &str| address_value(text.parse::<IpAddr>().unwrap());
        let rows = vec![
            row(vec![address("192.0.2.1"), 6, 65535, 4_200_000_000], u64::MAX / 4, &[]),
            row(vec![address("2001:db8::7"), 253, 0, 0], 700, &[]),
        ];
        let file = write_flow_groups(&answer("src,protocol,dst-port,dst-as", rows), false).unwrap();
        let group = |src: &str, protocol, port, network, bytes: i64| {
            named(&[
                ("src", Field::Str(src.into())),
                ("protocol", Field::Int(protocol)),
                ("dst_port", Field::Int(port)),
                ("dst_as", Field::Long(network)),
                ("bytes", Field::Long(bytes)),
                ("packets", Field::Long(bytes / 100)),
                ("flows", Field::Long(1)),
            ])
        };
        let expected =
            [group("192.0.2.1", 6, 65535, 4_200_000_000, i64::MAX / 2), group("2001:db8::7", 253, 0, 0, 700)];
        assert_eq!(read_back(file), expected);
    }

    #[test]
    fn each_time_bucket_is_a_row() {
        let start = 1_700_000_000_000_000_000;
        let rows = vec![row(vec![443], 300, &[(start, 100), (start + 1, 200)])];
        let read = read_back(write_flow_groups(&answer("dst-port", rows), true).unwrap());
        let bucket = |start: u64, bytes: i64| {
            named(&[
                ("dst_port", Field::Int(443)),
                ("bucket_start", Field::Long(start.cast_signed())),
                ("bytes", Field::Long(bytes)),
                ("packets", Field::Long(bytes / 100)),
                ("flows", Field::Long(1)),
            ])
        };
        assert_eq!(read, [bucket(start, 100), bucket(start + 1, 200)]);
    }

    #[test]
    fn an_answer_without_groups_is_a_file_with_its_columns() {
        for (group, names) in [
            ("src", ["src", "bytes", "packets", "flows"]),
            // No two columns may have the same name.
            ("bytes", ["bytes", "sum_bytes", "packets", "flows"]),
        ] {
            let file = write_flow_groups(&answer(group, Vec::new()), false).unwrap();
            let reader = SerializedFileReader::new(Bytes::from(file)).unwrap();
            let fields = reader.metadata().file_metadata().schema().get_fields();
            assert_eq!(fields.iter().map(|field| field.name()).collect::<Vec<_>>(), names);
            assert_eq!(reader.metadata().num_row_groups(), 0);
        }
    }
}
