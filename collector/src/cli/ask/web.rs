//! `dta-collector web` and `dta-collector mcp`: the page and the tools for agents, for any collectors.

use std::net::SocketAddr;
use std::sync::Arc;

use dta_cli::CommandStatus;
use dta_export::metrics::Address;
use dta_web::{Access, WebOptions, WebPort};

use super::client_flags::ClientFlags;
use crate::cli::names_flag::NamesFlag;

#[derive(clap::Args)]
#[command(after_help = "\
A collector has a page of its own (`serve --web`). This one shows several collectors as one, or one that is elsewhere: it listens on loopback of this machine. docs/web.md describes it.

Examples:
  dta-collector web --collector 10.0.0.5:40050,10.0.0.7:40050
  dta-collector web --cluster etcd://10.0.0.1:2379 --listen 127.0.0.1:8080")]
pub(in crate::cli) struct WebArgs {
    /// Loopback address of the page; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value_t = dta_web::DEFAULT_ADDRESS, value_parser = dta_files::host::resolve_socket)]
    listen: SocketAddr,
    #[command(flatten)]
    asked: AskedFlags,
}

#[derive(clap::Args)]
#[command(after_help = "\
Tools for agents over the Model Context Protocol, on standard input and output: read-only questions about flows, paths, drops, events, counters and health. The same is at /mcp of a collector's page.

Examples:
  dta-collector mcp
  dta-collector mcp --collector 10.0.0.5:40050")]
pub(in crate::cli) struct AgentArgs {
    #[command(flatten)]
    asked: AskedFlags,
}

#[derive(clap::Args)]
struct AskedFlags {
    #[command(flatten)]
    names: NamesFlag,
    #[command(flatten)]
    client: ClientFlags,
}

impl AskedFlags {
    async fn web_options(&self) -> anyhow::Result<WebOptions> {
        let ask = self.client.connect_all().await?;
        let only = ask.members().first().map(|member| member.address.clone()).unwrap_or_default();
        Ok(WebOptions {
            ask,
            names: Arc::new(self.names.read()?),
            title: self.client.collectors_title().unwrap_or(only),
            version: env!("CARGO_PKG_VERSION"),
            access: Access::default(),
            counters: Arc::default(),
            // Only the collector itself knows its notices: they are not sent over gRPC.
            own_notices: Arc::new(Vec::new),
        })
    }
}

fn build_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

pub(super) fn run_page(args: WebArgs) -> anyhow::Result<CommandStatus> {
    if !args.listen.ip().is_loopback() {
        let advice = "this page has neither TLS nor a token: listen on loopback, or use `serve --web` of the collector";
        return Err(dta_cli::misuse_error(anyhow::anyhow!("{} is not loopback; {advice}", args.listen)));
    }
    build_runtime()?.block_on(async {
        let options = args.asked.web_options().await?;
        let Some(port) = WebPort::open(&Address::At(args.listen)).await? else { return Ok(()) };
        let served = port.serve(options, None);
        dta_cli::print_line(served.page_url())?;
        tokio::signal::ctrl_c().await?;
        anyhow::Ok(())
    })?;
    Ok(CommandStatus::Done)
}

pub(super) fn run_agent(args: AgentArgs) -> anyhow::Result<CommandStatus> {
    let runtime = build_runtime()?;
    runtime.block_on(async { anyhow::Ok(dta_web::serve_agent(args.asked.web_options().await?).await?) })?;
    // A thread may still be reading standard input.
    runtime.shutdown_background();
    Ok(CommandStatus::Done)
}
