//! Holds a document against a JSON schema. It knows the words that `docs/schemas` uses, and refuses a
//! schema with others: a library that knows all of them is several dozen crates.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

/// Asserts that a document is as the schema of this name in `docs/schemas` says.
pub(crate) fn hold(name: &str, document: &Value) {
    let faults = faults(&read(&format!("{name}.json")), document);
    assert!(faults.is_empty(), "{name}: {faults:#?} in {document:#}");
}

/// A schema file.
pub(crate) fn read(file: &str) -> Value {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // Those of commands, and those that the page's interface alone has.
    let folders = ["docs/schemas", "crates/web/schemas"];
    let paths = folders.map(|folder| project.join(folder).join(file));
    let path = paths.iter().find(|path| path.exists()).unwrap_or(&paths[0]);
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What in the document is not as the schema says, each with its place.
fn faults(schema: &Value, document: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    look(schema, schema, document, "", &mut faults);
    faults
}

fn look(root: &Value, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    let words = schema.as_object().expect("a schema is an object");
    let mut fault = |text: String| faults.push(format!("{at}: {text}"));
    for (word, says) in words {
        match word.as_str() {
            "$schema"
            | "$defs"
            | "title"
            | "description"
            | "required"
            | "additionalProperties"
            | "unevaluatedProperties" => {}
            "type" if !types(says).any(|name| is(value, name)) => fault(format!("{value} is no {says}")),
            "const" if value != says => fault(format!("{value} is not {says}")),
            "enum" if !says.as_array().unwrap().contains(value) => fault(format!("{value} is not in {says}")),
            "minimum" if value.as_i64().is_some_and(|n| n < says.as_i64().unwrap()) => {
                fault(format!("{value} is below {says}"));
            }
            "pattern" => {
                assert_eq!(says, "^([0-9a-f]{2})*$", "the only pattern that is known: whole bytes in hex");
                let is_hex = |text: &str| {
                    text.len().is_multiple_of(2) && text.bytes().all(|c| b"0123456789abcdef".contains(&c))
                };
                if value.as_str().is_some_and(|text| !is_hex(text)) {
                    fault(format!("{value} is not in hex"));
                }
            }
            "minItems" if value.as_array().is_some_and(|all| (all.len() as u64) < says.as_u64().unwrap()) => {
                fault(format!("{value} has less than {says}"));
            }
            "maxItems" if value.as_array().is_some_and(|all| all.len() as u64 > says.as_u64().unwrap()) => {
                fault(format!("{value} has more than {says}"));
            }
            "type" | "const" | "enum" | "minimum" | "minItems" | "maxItems" | "items" | "properties"
            | "oneOf" | "anyOf" | "$ref" => {}
            other => panic!("{at}: the schema has {other}, which is not known here"),
        }
    }
    if let (Some(items), Some(all)) = (words.get("items"), value.as_array()) {
        for (index, item) in all.iter().enumerate() {
            look(root, items, item, &format!("{at}/{index}"), faults);
        }
    }
    if let Some(fields) = value.as_object() {
        properties(root, words, fields, at, faults);
    }
    for (word, most) in [("oneOf", 1), ("anyOf", usize::MAX)] {
        let Some(choices) = words.get(word).and_then(Value::as_array) else { continue };
        let tried: Vec<Vec<String>> = choices
            .iter()
            .map(|choice| {
                let mut faults = Vec::new();
                look(root, choice, value, at, &mut faults);
                faults
            })
            .collect();
        let good = tried.iter().filter(|faults| faults.is_empty()).count();
        if good == 0 || good > most {
            // What is nearest to the document says most about what is wrong with it.
            let nearest = tried.into_iter().min_by_key(Vec::len).unwrap_or_default();
            faults.push(format!("{at}: {good} of {word} fit; the nearest: {nearest:?}"));
        }
    }
    if let Some(name) = words.get("$ref") {
        let (root, schema) = referred(root, name.as_str().unwrap());
        look(&root, &schema, value, at, faults);
    }
    if let (Some(Value::Bool(false)), Some(fields)) = (words.get("unevaluatedProperties"), value.as_object())
    {
        let known = known(root, schema, value);
        for name in fields.keys().filter(|name| !known.contains(*name)) {
            faults.push(format!("{at}/{name} is in no schema"));
        }
    }
}

/// What is referred to: a definition of the same file, another file of the folder, or a definition of that; and the
/// file that it is in.
fn referred(root: &Value, name: &str) -> (Value, Value) {
    let (file, definition) = name.split_once("#/$defs/").map_or((name, None), |(f, d)| (f, Some(d)));
    let root = if file.is_empty() { root.clone() } else { read(file) };
    let schema = definition.map_or_else(|| root.clone(), |definition| root["$defs"][definition].clone());
    (root, schema)
}

/// The names of fields that a schema, what it refers to, and those of its choices that fit have.
fn known(root: &Value, schema: &Value, value: &Value) -> BTreeSet<String> {
    let mut names: BTreeSet<String> =
        schema["properties"].as_object().into_iter().flat_map(Map::keys).cloned().collect();
    if let Some(name) = schema["$ref"].as_str() {
        let (root, schema) = referred(root, name);
        names.extend(known(&root, &schema, value));
    }
    for choice in ["oneOf", "anyOf"].iter().filter_map(|word| schema[word].as_array()).flatten() {
        let mut faults = Vec::new();
        look(root, choice, value, "", &mut faults);
        if faults.is_empty() {
            names.extend(known(root, choice, value));
        }
    }
    names
}

fn properties(
    root: &Value,
    words: &Map<String, Value>,
    fields: &Map<String, Value>,
    at: &str,
    faults: &mut Vec<String>,
) {
    for name in words.get("required").and_then(Value::as_array).into_iter().flatten() {
        if !fields.contains_key(name.as_str().unwrap()) {
            faults.push(format!("{at}: {name} is missing"));
        }
    }
    let known = words.get("properties").and_then(Value::as_object);
    for (name, value) in fields {
        let place = format!("{at}/{name}");
        match (known.and_then(|known| known.get(name)), words.get("additionalProperties")) {
            (Some(schema), _) => look(root, schema, value, &place, faults),
            (None, Some(Value::Bool(false))) => faults.push(format!("{place} is in no schema")),
            (None, Some(schema @ Value::Object(_))) => look(root, schema, value, &place, faults),
            (None, _) => {}
        }
    }
}

fn types(says: &Value) -> impl Iterator<Item = &str> {
    let one = says.as_str();
    let several = says.as_array().into_iter().flatten().filter_map(Value::as_str);
    one.into_iter().chain(several)
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("there is no type {other}"),
    }
}

#[test]
fn what_another_file_says_holds_too() {
    use serde_json::json;
    let schema = json!({"$ref": "store.json", "unevaluatedProperties": false, "properties": {"load": {"type": "number"}}});
    let good =
        json!({"id": 1, "name": "s", "kind": "key-increment", "slots": 8, "redundancy": 1, "load": 0.5});
    assert_eq!(faults(&schema, &good), [""; 0]);
    for (field, value, expected) in [
        ("kind", json!("none"), "0 of oneOf fit"),
        ("slots", json!(-1), "below 0"),
        ("load", json!("much"), "/load: \"much\" is no"),
        ("hops", json!(6), "/hops is in no schema"),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        let faults = faults(&schema, &bad);
        assert!(faults.iter().any(|fault| fault.contains(expected)), "{bad}: {faults:?}");
    }
    let primitive = json!({"$ref": "store.json#/$defs/primitive"});
    assert_eq!(faults(&primitive, &json!("append")), [""; 0]);
    assert!(!faults(&primitive, &json!("apend")).is_empty());
}

#[test]
fn it_finds_what_is_wrong() {
    use serde_json::json;
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["n"],
        "properties": {
            "n": {"type": "integer", "minimum": 0}, "s": {"type": ["string", "null"]}, "e": {"$ref": "#/$defs/e"},
            "o": {"oneOf": [{"const": 1}, {"enum": [2, 3]}]},
        },
        "$defs": {"e": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1}},
    });
    assert_eq!(faults(&schema, &json!({"n": 1, "s": null, "e": [true], "o": 3})), [""; 0]);
    for (bad, expected) in [
        (json!({}), "\"n\" is missing"),
        (json!({"n": -1}), "below 0"),
        (json!({"n": 1.5}), "is no"),
        (json!({"n": 1, "x": 1}), "/x is in no schema"),
        (json!({"n": 1, "s": 2}), "/s: 2 is no"),
        (json!({"n": 1, "e": [1]}), "/e/0: 1 is no"),
        (json!({"n": 1, "e": [true, true]}), "more than 1"),
        (json!({"n": 1, "o": 4}), "0 of oneOf fit"),
        (json!([]), "is no"),
    ] {
        let faults = faults(&schema, &bad);
        assert!(faults.iter().any(|fault| fault.contains(expected)), "{bad}: {faults:?}");
    }
}
