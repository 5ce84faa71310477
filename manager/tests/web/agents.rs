//! The tools of agents at `/mcp`.

use std::sync::Arc;

use dta_rpc::collector::RemoteCollector;
use dta_rpc::{ClientOptions, Spread, SpreadMember};
use dta_web::{Access, WebOptions, WebPort};
use serde_json::{Value, json};

use crate::{WebBed, http, schema};

fn call(bed: &WebBed, method: &str, parameters: Value) -> Value {
    call_at(&bed.page, method, parameters)
}

/// The result of a method, or its error.
fn call_at(page: &str, method: &str, parameters: Value) -> Value {
    let message = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": parameters }).to_string();
    let headers = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];
    let answer = http::request(page, "POST", "/mcp", &headers, &message).unwrap();
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    let answer = answer.json();
    assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)));
    if answer["error"].is_null() { answer["result"].clone() } else { answer["error"].clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_finds_the_flow_and_its_path() {
    let Some(bed) = WebBed::start().await else { return };
    let server = call(&bed, "initialize", json!({ "protocolVersion": "2025-03-26", "capabilities": {} }));
    assert_eq!(server["protocolVersion"], "2025-03-26");
    assert_eq!(
        call(&bed, "initialize", json!({ "protocolVersion": "1999" }))["protocolVersion"],
        "2025-06-18"
    );
    let tools = call(&bed, "tools/list", json!({}));
    let names: Vec<&str> =
        tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(
        ["health", "waterfall", "top", "flow", "flows", "flows_columns", "events", "drops"]
            .iter()
            .all(|name| names.contains(name))
    );
    assert!(!names.iter().any(|name| name.contains("live")), "{names:?}");

    let answer = |name: &str, arguments: Value| -> Value {
        let result = call(&bed, "tools/call", json!({ "name": name, "arguments": arguments }));
        assert_eq!(result["isError"], false, "{result}");
        serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
    };
    let top = answer("top", json!({ "by": "latency", "number": 1 }));
    assert_eq!(top["as_of"], "now");
    let flow = top["answer"]["flows"][0]["flow"].clone();
    let known = answer("flow", json!({ "flow": [flow] }));
    let hops: Vec<_> =
        known["answer"][0]["hops"].as_array().unwrap().iter().map(|hop| &hop["switch"]).collect();
    assert_eq!(hops, [6, 5, 4]);

    let failed = call(&bed, "tools/call", json!({ "name": "flow", "arguments": { "flow": "nonsense" } }));
    assert_eq!(failed["isError"], true);
    assert_eq!(call(&bed, "tools/call", json!({ "name": "shutdown" }))["code"], -32602);
    assert_eq!(call(&bed, "resources/list", json!({}))["code"], -32601);

    let post = |text: &str| http::request(&bed.page, "POST", "/mcp", &[], text);
    assert_eq!(post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).unwrap().status, 202);
    assert_eq!(post("{").unwrap().json()["error"]["code"], -32700);
    assert_eq!(post("[]").unwrap().json()["error"]["code"], -32600);
    assert!(post(&"x".repeat(1 << 20)).is_none_or(|answer| answer.status == 413));
    let foreign = [("Origin", "http://attacker.example")];
    assert_eq!(http::request(&bed.page, "POST", "/mcp", &foreign, "{}").unwrap().status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_several_collectors_name_the_one_that_is_away() {
    let Some(bed) = WebBed::start().await else { return };
    // Nothing listens at port 1.
    let away = "127.0.0.1:1";
    let member = |address: &str| {
        let ask = RemoteCollector::connect_lazy(&ClientOptions::without_tls(address)).unwrap();
        SpreadMember { address: address.to_owned(), ask: Arc::new(ask) }
    };
    let options = WebOptions {
        ask: Spread::new([bed.int.address(), away].map(member).to_vec()),
        names: Arc::default(),
        title: "both".into(),
        version: "0",
        access: Access::default(),
        counters: Arc::default(),
        own_notices: Arc::new(Vec::new),
    };
    let port = WebPort::open(&"127.0.0.1:0".parse().unwrap()).await.unwrap().unwrap();
    let served = port.serve(options, None);
    let page = served.address.to_string();
    for path in ["waterfall", "stats", "stores", "health"] {
        let answer = http::get(&page, &format!("/api/v1/{path}"));
        assert_eq!((answer.status, answer.header("dta-unreachable")), (200, away), "{path}: {}", answer.body);
    }
    let members = http::get(&page, "/api/v1/members").json();
    let members = members.as_array().unwrap();
    members.iter().for_each(|member| schema::hold("member", member));
    let addresses: Vec<_> = members.iter().map(|member| member["address"].as_str().unwrap()).collect();
    assert_eq!(addresses, [bed.int.address(), away]);
    assert_eq!((&members[0]["unreachable"], &members[0]["sessions"]), (&Value::Null, &json!(1)));
    assert!(members[1]["unreachable"].is_string() && members[1]["stores"] == json!([]), "{members:#?}");
    // What may be at the other one is refused, with its address.
    let refused = http::get(&page, "/api/v1/sources");
    assert_eq!(refused.status, 503);
    assert!(refused.json()["detail"].as_str().unwrap().contains(away), "{}", refused.body);
    let result = call_at(&page, "tools/call", json!({ "name": "waterfall", "arguments": {} }));
    let answer: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(answer["unreachable"], json!([away]), "{answer}");
    assert_eq!(http::get(&bed.page, "/api/v1/stats").header("dta-unreachable"), "");
}
