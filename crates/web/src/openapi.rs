//! The interface's description, built from its table of routes and the schemas of its answers.

use serde_json::{Map, Value, json};

use crate::api::{AnswerSchema, REFERRED_SCHEMAS, ROUTES, Route, SchemaFile};
use crate::parameters::{Parameter, ParameterKind};
use crate::port::UNREACHABLE;

/// An OpenAPI document.
pub(crate) fn describe_interface(version: &str) -> Value {
    let paths: Map<String, Value> =
        ROUTES.iter().map(|route| (route.path.to_owned(), json!({ "get": describe_route(route) }))).collect();
    let mut schemas = Map::new();
    for file in ROUTES.iter().flat_map(|route| route.schema.files()).chain(REFERRED_SCHEMAS) {
        schemas.entry(file.name).or_insert_with(|| component_schema(file));
    }
    let text = json!({ "type": "string" });
    schemas.insert(
        "problem".into(),
        json!({
            "description": "why there is no answer (RFC 9457)",
            "type": "object",
            "required": ["type", "title", "status", "detail"],
            "properties": { "type": text, "title": text, "status": { "type": "integer" }, "detail": text },
        }),
    );
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Direct Telemetry Access",
            "version": version,
            "description": "What a collector has, read-only. docs/web.md has an example of each request.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

fn describe_route(route: &Route) -> Value {
    let reference = |file: SchemaFile| json!({ "$ref": component_reference(file.name) });
    let (content_type, schema) = match route.schema {
        AnswerSchema::Document(file) => ("application/json", reference(file)),
        AnswerSchema::NowOrThen(now, then) => {
            ("application/json", json!({ "oneOf": [reference(now), reference(then)] }))
        }
        AnswerSchema::List(file) => {
            ("application/json", json!({ "type": "array", "items": reference(file) }))
        }
        AnswerSchema::Events(file) => ("text/event-stream", reference(file)),
    };
    let problem = json!({
        "description": "why there is no answer",
        "content": { "application/problem+json": { "schema": { "$ref": component_reference("problem") } } },
    });
    let mut content = json!({ content_type: { "schema": schema } });
    for format in route.downloads() {
        let media_type = format.content_type.split(';').next().unwrap_or_default();
        content[media_type] = match format.is_text {
            true => json!({ "schema": { "type": "string" } }),
            false => json!({}),
        };
    }
    json!({
        "summary": route.summary,
        "operationId": route.operation_name(),
        "parameters": route.parameters.iter().map(describe_parameter).collect::<Vec<_>>(),
        "responses": {
            "200": {
                "description": route.summary,
                "headers": { UNREACHABLE: {
                    "description": "addresses of collectors that do not answer, separated by commas: what they have is missing",
                    "schema": { "type": "string" },
                } },
                "content": content,
            },
            "default": problem,
        },
    })
}

fn describe_parameter(parameter: &Parameter) -> Value {
    let schema = match parameter.kind {
        ParameterKind::Text => json!({ "type": "string" }),
        ParameterKind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        ParameterKind::Number => json!({ "type": "integer", "minimum": 0 }),
        ParameterKind::Moment => json!({ "type": "string", "examples": ["-1h", "2026-11-24T14:00"] }),
    };
    json!({
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "required": parameter.required,
        "schema": schema,
    })
}

fn component_reference(name: &str) -> String {
    format!("#/components/schemas/{name}")
}

/// A schema file as a component. Whatever it refers to is also a component, or is inside it.
fn component_schema(file: SchemaFile) -> Value {
    let mut schema: Value = serde_json::from_str(file.text).unwrap_or_default();
    redirect_references(&mut schema, file.name);
    schema
}

fn redirect_references(value: &mut Value, name: &str) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(target)) = fields.get_mut("$ref") {
                *target = match (target.split_once(".json"), target.strip_prefix('#')) {
                    (Some((other, inside)), _) => {
                        format!("{}{}", component_reference(other), inside.trim_start_matches('#'))
                    }
                    (None, Some(inside)) => format!("{}{inside}", component_reference(name)),
                    (None, None) => std::mem::take(target),
                };
            }
            fields.values_mut().for_each(|field| redirect_references(field, name));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redirect_references(item, name)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, all: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(target)) = fields.get("$ref") {
                    all.push(target.clone());
                }
                fields.values().for_each(|field| references(field, all));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, all)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = describe_interface("1.2.3");
        let mut all = Vec::new();
        references(&document, &mut all);
        assert!(all.len() > ROUTES.len());
        for target in all {
            let pointer = target.strip_prefix('#').unwrap_or_else(|| panic!("{target} leads outside"));
            assert!(document.pointer(pointer).is_some(), "{target} leads nowhere");
        }
    }
}
