//! The Model Context Protocol, for agents: each route that answers with a document is a tool, over HTTP at `/mcp` and over
//! standard input and output. The messages are JSON-RPC 2.0, one at a time; there is nothing to subscribe to.

use std::io::{BufRead, Write};
use std::sync::Arc;

use dta_files::moment;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::api::{AnswerSchema, Download, ROUTES, Route, WebAnswer, WebServer};
use crate::parameters::{Parameter, ParameterKind};
use crate::problem::Problem;

/// Protocol versions that have everything used here, newest first.
const VERSIONS: [&str; 3] = ["2025-06-18", "2025-03-26", "2024-11-05"];
/// Longest message, in bytes.
pub(crate) const LONGEST_MESSAGE: usize = 64 << 10;

const INSTRUCTIONS: &str = "Read-only access to a telemetry collector. Begin with health and waterfall: they say whether anything is wrong, and where \
reports were lost. Find flows with top, or with flows where routers export records (flows_columns lists what they have), then ask flow for the path, latencies and drops of one. Latencies are nanoseconds, ages seconds, and moments \
UTC; null is not known, and sentences in `unknown` say why. Answers are without what collectors in `unreachable` have. Counts may be too low by what was lost on the way and too high where keys share counters.";

// Error codes of JSON-RPC.
const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;

/// The answer to a message; `None` for messages that expect none.
pub(crate) async fn answer_message(server: &Arc<WebServer>, text: &[u8]) -> Option<Value> {
    let Ok(message) = serde_json::from_slice::<Value>(text) else {
        return Some(error_message(&Value::Null, PARSE_ERROR, "this is not JSON"));
    };
    let (Some(method), id) = (message["method"].as_str(), message.get("id")) else {
        return Some(error_message(&Value::Null, INVALID_REQUEST, "a message is an object with a method"));
    };
    let id = id?;
    let result = match method {
        "initialize" => Ok(describe_server(server, &message["params"])),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(json!({ "tools": tool_routes().map(describe_tool).collect::<Vec<_>>() })),
        "tools/call" => call_tool(server, &message["params"]).await,
        _ => Err((METHOD_NOT_FOUND, format!("there is no method {method:?} here"))),
    };
    Some(match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err((code, text)) => error_message(id, code, &text),
    })
}

/// Answers messages, one per line, on standard input and output, until the input is closed.
pub(crate) async fn serve_standard_streams(server: &Arc<WebServer>) -> std::io::Result<()> {
    let (sender, mut lines) = mpsc::channel(1);
    // Only a thread can wait for standard input; it ends with the process.
    std::thread::Builder::new().name("dta-agent".into()).spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    })?;
    while let Some(line) = lines.recv().await {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        if let Some(answer) = answer_message(server, line.as_bytes()).await {
            let mut output = std::io::stdout().lock();
            writeln!(output, "{answer}")?;
            output.flush()?;
        }
    }
    Ok(())
}

fn error_message(id: &Value, code: i32, text: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } })
}

fn describe_server(server: &WebServer, parameters: &Value) -> Value {
    let wanted = parameters["protocolVersion"].as_str().filter(|wanted| VERSIONS.contains(wanted));
    json!({
        "protocolVersion": wanted.unwrap_or(VERSIONS[0]),
        "capabilities": { "tools": {} },
        "serverInfo": { "name": format!("dta-collector {}", server.title), "version": server.version },
        "instructions": INSTRUCTIONS,
    })
}

/// The routes offered as tools: those whose answer ends.
fn tool_routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(|route| !matches!(route.schema, AnswerSchema::Events(_)))
}

fn describe_tool(route: &Route) -> Value {
    let property = |parameter: &Parameter| {
        let mut schema = match parameter.kind {
            ParameterKind::Text | ParameterKind::Moment => json!({ "type": "string" }),
            ParameterKind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            ParameterKind::Number => json!({ "type": "integer", "minimum": 0 }),
        };
        schema["description"] = parameter.description.into();
        (parameter.name.to_owned(), schema)
    };
    let properties: Map<String, Value> = route.parameters.iter().map(property).collect();
    let required: Vec<&str> = route
        .parameters
        .iter()
        .filter(|parameter| parameter.required)
        .map(|parameter| parameter.name)
        .collect();
    json!({
        "name": route.operation_name(),
        "description": route.summary,
        "inputSchema": { "type": "object", "properties": properties, "required": required, "additionalProperties": false },
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

async fn call_tool(server: &Arc<WebServer>, parameters: &Value) -> Result<Value, (i32, String)> {
    let name = parameters["name"].as_str().unwrap_or_default();
    let Some(route) = tool_routes().find(|route| route.operation_name() == name) else {
        return Err((INVALID_PARAMS, format!("there is no tool {name:?}: tools/list has them")));
    };
    let query = query_of_arguments(&parameters["arguments"]);
    let at = parameters["arguments"]["at"].as_str().map_or("now", |at| at);
    Ok(match server.answer(route.path, &query).await {
        Ok(WebAnswer::Json(document)) => {
            let document: Value = serde_json::from_slice(&document).unwrap_or_default();
            let answer = json!({
                "about": route.summary,
                "as_of": at,
                "asked": moment::format_utc(moment::now()),
                "unreachable": server.spread.unreachable_addresses(),
                "answer": document,
            });
            tool_result(&answer.to_string(), false)
        }
        Ok(WebAnswer::Download(Download { format, content })) if format.is_text => {
            tool_result(&String::from_utf8_lossy(&content), false)
        }
        Ok(WebAnswer::Download(_)) => tool_result("this is a file for programs: ask for json or csv", true),
        Ok(WebAnswer::Events(_)) => {
            tool_result("this answer does not end: it is not available as a tool", true)
        }
        Err(Problem { detail, .. }) => tool_result(&detail, true),
    })
}

fn tool_result(text: &str, is_error: bool) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": is_error })
}

fn query_of_arguments(arguments: &Value) -> String {
    let text_of = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut pairs = Vec::new();
    for (name, value) in arguments.as_object().into_iter().flatten() {
        let values = value.as_array().map_or_else(|| vec![value], |values| values.iter().collect());
        for value in values.into_iter().filter(|value| !value.is_null()) {
            let encoded =
                percent_encoding::utf8_percent_encode(&text_of(value), percent_encoding::NON_ALPHANUMERIC)
                    .to_string();
            let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
            pairs.push(format!("{name}={encoded}"));
        }
    }
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;

    #[test]
    fn arguments_become_the_parameters_of_the_route() {
        let arguments = json!({ "flow": ["a>b&c", "d e"], "at": "-1h" });
        let route = ROUTES.iter().find(|route| route.path == "/api/v1/flow").unwrap();
        let parameters = Parameters::parse(&query_of_arguments(&arguments), route.parameters).unwrap();
        assert_eq!(parameters.get_all("flow").collect::<Vec<_>>(), ["a>b&c", "d e"]);
        assert_eq!(parameters.get("at"), Some("-1h"));
        let unknown = query_of_arguments(&json!({ "x": 1 }));
        assert!(Parameters::parse(&unknown, route.parameters).is_err());
    }
}
