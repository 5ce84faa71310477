//! A local port that leads through ssh to a service on another machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use anyhow::Context;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinHandle;

use super::ssh::SshConnection;

/// A loopback port; closed when this is dropped.
#[derive(Debug)]
pub struct Tunnel {
    pub address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Tunnel {
    /// Leads to `target`, an address as seen from the machine at the other end of `connection`.
    pub async fn open(connection: SshConnection, target: String) -> anyhow::Result<Tunnel> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot open a port of loopback")?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(forward_connection(stream, Command::from(connection.forward_stdio(&target))));
            }
        });
        Ok(Tunnel { address, serving })
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Carries one connection until one of its ends closes it. The other end sees the connection end.
async fn forward_connection(mut stream: TcpStream, mut ssh: Command) {
    let ssh = ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let Ok(mut child) = ssh.kill_on_drop(true).spawn() else { return };
    let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else { return };
    let (mut from, mut to) = stream.split();
    let there = async {
        let _ = tokio::io::copy(&mut from, &mut input).await;
        // ssh sees the end of its input only when this is dropped.
        drop(input);
    };
    let back = async {
        let _ = tokio::io::copy(&mut output, &mut to).await;
        let _ = to.shutdown().await;
    };
    tokio::join!(there, back);
}
