//! Compiles the descriptions in `proto` with protox, so that building needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(
        ["p4/v1/p4runtime.proto", "p4/config/v1/p4info.proto", "bfruntime.proto"],
        ["proto"],
    )?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
