//! `dta-collector stores`

use dta_cli::Status;
use dta_client::Ask;
use dta_proto::control::StoreInfo;
use dta_proto::store::StoreSpec;
use serde::Serialize;

use super::client_flags::ClientFlags;
use super::output::{self, Output};

#[derive(clap::Args)]
#[command(after_help = "\
Load is keys per slot (batches or columns in use, for lists and sketches). Survival is the share of keys that are still
there (of counters, whose count is exact); more copies help only while load times copies is below 0.69, so
\"advised N\" says how many would serve best at this load.")]
pub(super) struct Args {
    #[command(flatten)]
    client: ClientFlags,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    spec: StoreSpec,
    generation: u64,
    bytes: u64,
    memory: String,
    file: Option<String>,
    used: u64,
    capacity: u64,
    load: f64,
    survival: Option<f64>,
    advised_redundancy: Option<u32>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Status> {
    let stores = super::block_on(async { Ok(args.client.connect().await?.stores().await?) })?;
    let stores = stores.into_iter().map(shown).collect::<anyhow::Result<Vec<_>>>()?;
    if args.client.output == Output::Json {
        output::json(&stores)?;
        return Ok(Status::Done);
    }
    let mut table = output::table(
        &["id", "store", "kind", "layout", "size", "used", "load", "survival", "N", "advised N", "memory"],
        &[0, 4, 5, 6, 7, 8, 9],
    );
    for s in &stores {
        let dash = || "-".to_owned();
        table.add_row([
            s.spec.id.to_string(),
            s.spec.name.clone(),
            s.spec.primitive().to_owned(),
            s.spec.kind.shape(),
            output::bytes(s.bytes),
            format!("{} of {}", output::count(s.used), output::count(s.capacity)),
            output::percent(s.load),
            s.survival.map_or_else(dash, output::percent),
            s.spec.redundancy().map_or_else(dash, |n| n.to_string()),
            s.advised_redundancy.map_or_else(dash, |n| n.to_string()),
            s.memory.clone(),
        ]);
    }
    output::line(table)?;
    Ok(Status::Done)
}

fn shown(info: StoreInfo) -> anyhow::Result<Shown> {
    let spec = info.store.as_ref().map(StoreSpec::try_from).transpose()?;
    Ok(Shown {
        spec: spec.ok_or_else(|| anyhow::anyhow!("the collector described a store without saying which"))?,
        generation: info.generation,
        bytes: info.length,
        memory: info.memory,
        file: (!info.file.is_empty()).then_some(info.file),
        used: info.used,
        capacity: info.capacity,
        load: info.load,
        survival: info.survival,
        advised_redundancy: info.advised_redundancy,
    })
}
