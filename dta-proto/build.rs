//! Compiles `proto/dta/v1/*.proto` with protox, so that building needs no `protoc`.

#[cfg(not(feature = "control"))]
fn main() {}

#[cfg(feature = "control")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(
        ["dta/v1/agent.proto", "dta/v1/collector.proto", "dta/v1/translator.proto"],
        ["proto"],
    )?;
    // For gRPC reflection.
    let descriptors = std::path::Path::new(&std::env::var("OUT_DIR")?).join("dta_v1.bin");
    std::fs::write(descriptors, prost::Message::encode_to_vec(&files))?;
    let mut config = tonic_prost_build::Config::new();
    // The codec names the message type in its errors.
    config.enable_type_names();
    // A testbed takes counters from machine to machine as JSON; alerts are kept and sent as JSON.
    for message in ["Counter", "NodeStatistics", "Alert", "AlertTransition"] {
        // What was written before a field was added is read all the same, as in the messages themselves.
        let derive = "#[derive(serde::Serialize, serde::Deserialize)] #[serde(default)]";
        config.type_attribute(format!(".dta.v1.{message}"), derive);
    }
    config.btree_map([".dta.v1.Alert"]);
    tonic_prost_build::configure()
        .codec_path("crate::codec::BoundedCodec")
        .compile_fds_with_config(files, config)?;
    Ok(())
}
