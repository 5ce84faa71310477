//! The JSON of `run-testbed`, compared with the table of its fields in `docs/accounting.md`.

use serde_json::Value;

/// The document with the table.
const DOCUMENT: &str = include_str!("../../../docs/accounting.md");

/// A row of the table.
pub struct Field {
    /// Where the field is: `run.seed`, `links[].sent`.
    pub path: String,
    kind: String,
    meaning: String,
}

impl Field {
    /// The words in code style among what the row says of the field.
    pub fn names(&self) -> Vec<&str> {
        self.meaning.split('`').skip(1).step_by(2).collect()
    }

    fn allows(&self, value: &Value) -> bool {
        self.kind.split(" or ").any(|kind| match kind {
            "count" => value.is_u64(),
            "number" => value.is_number(),
            "text" => value.is_string(),
            "null" => value.is_null(),
            "object" => value.is_object(),
            "list" => value.is_array(),
            "true" | "false" => value.is_boolean(),
            "list of text" => value.as_array().is_some_and(|list| list.iter().all(Value::is_string)),
            "counts by name" => are_counts(value),
            "counts by node and name" => {
                value.as_object().is_some_and(|nodes| nodes.values().all(are_counts))
            }
            other => panic!("{}: the document has a type {other:?} that this test does not know", self.path),
        })
    }
}

/// The fields that the document lists.
pub fn documented_fields() -> Vec<Field> {
    let (_, section) = DOCUMENT.split_once("\n## The outcome as JSON\n").expect("the section is there");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let fields: Vec<Field> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [path, kind, meaning] = cells[..] else { panic!("not three cells: {row}") };
            Field { path: path.trim_matches('`').into(), kind: kind.into(), meaning: meaning.into() }
        })
        .collect();
    assert!(fields.len() > 40, "only {} fields: the table is read wrongly", fields.len());
    fields
}

fn are_counts(value: &Value) -> bool {
    value.as_object().is_some_and(|counts| counts.values().all(Value::is_u64))
}

/// What the document and an outcome disagree about: a field that only one of them has, or a value of
/// another type.
pub fn contradictions(documented: &[Field], outcome: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(documented, "", outcome, &mut found);
    found
}

/// Compares an object and everything in it. `above` is the path that its fields begin with.
fn compare(documented: &[Field], above: &str, object: &Value, found: &mut Vec<String>) {
    let object = object.as_object().unwrap_or_else(|| panic!("{above} is no object: {object}"));
    for (name, value) in object {
        let path = format!("{above}{name}");
        let exact = documented.iter().find(|field| field.path == path);
        let inner = |separator: &str| {
            let start = format!("{path}{separator}");
            documented.iter().any(|field| field.path.starts_with(&start)).then_some(start)
        };
        if let Some(field) = exact
            && !field.allows(value)
        {
            found.push(format!("{path} is documented as {} and is {value}", field.kind));
        } else if let (Some(start), Some(list)) = (inner("[]."), value.as_array()) {
            assert!(!list.is_empty(), "{path} is empty, so nothing is known of its fields");
            list.iter().for_each(|element| compare(documented, &start, element, found));
        } else if let (Some(start), true) = (inner("."), value.is_object()) {
            compare(documented, &start, value, found);
        } else if exact.is_none() {
            found.push(format!("{path} is not documented"));
        }
    }
    let here = documented.iter().filter_map(|field| field.path.strip_prefix(above));
    for name in here.map(|rest| rest.split(['.', '[']).next().unwrap_or(rest)) {
        let line = format!("{above}{name} is documented and missing");
        if !object.contains_key(name) && !found.contains(&line) {
            found.push(line);
        }
    }
}
