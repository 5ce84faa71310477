//! Compiles `proto/dta/v1/*.proto` with protox, so that building needs no `protoc`.

#[cfg(not(feature = "control"))]
fn main() {}

#[cfg(feature = "control")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["dta/v1/collector.proto", "dta/v1/translator.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
