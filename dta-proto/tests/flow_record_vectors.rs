//! The columns of a flow record are those of `vectors/flow_record.json`, which the Python package is held to, too.

use dta_proto::flow_record::{COLUMNS, ColumnType, ENTRY_LEN};
use serde_json::Value;

#[test]
fn columns_lie_where_the_vectors_say() {
    let vectors: Value = serde_json::from_str(include_str!("../vectors/flow_record.json")).unwrap();
    assert_eq!(vectors["entry_len"], ENTRY_LEN);
    let columns = vectors["columns"].as_array().unwrap();
    assert_eq!(columns.len(), COLUMNS.len());
    let hex = vectors["entry"].as_str().unwrap();
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    let entry: [u8; ENTRY_LEN] = std::array::from_fn(byte);
    for (column, vector) in COLUMNS.iter().zip(columns) {
        let kind = match column.kind {
            ColumnType::Address => "address",
            ColumnType::Time => "time",
            ColumnType::Count => "count",
            ColumnType::Number { .. } => "number",
        };
        let expected = (vector["name"].as_str(), vector["kind"].as_str());
        assert_eq!((Some(column.name), Some(kind)), expected);
        assert_eq!((vector["offset"].as_u64(), vector["width"].as_u64()), {
            (Some(column.offset as u64), Some(column.kind.width() as u64))
        });
        let value = column.read_value(&entry).to_string();
        assert_eq!(vectors["values"][column.name], value, "{}", column.name);
    }
}
