//! `dta-reporter points` and `dta-reporter trace`.

mod print;
pub(super) mod send;

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::packet_trace::counts::Books;
use crate::packet_trace::digest::Sampling;
use crate::packet_trace::journey::{Journey, Journeys};
use crate::packet_trace::kernel::{self, Tracer, TracerOptions, rights};
use crate::packet_trace::matching;
use crate::packet_trace::point::At;
use crate::packet_trace::record::flags;
use anyhow::{Context, Result};
use clap::Args;
use dta_cli::escape::escape_hidden;
use dta_cli::number::format_count;
use dta_cli::output::OutputFlag;
use dta_cli::table::{Cell, Colour, OutputStyle, TextTable};
use serde::Serialize;

use print::Printer;
use send::{Sender, To};

pub(super) const POINTS_HELP: &str = "\
Tracepoints and functions are tested by attaching briefly, with a filter that matches no packet. A listed \
interface can be traced in both directions (`iface:eth0`) or in one (`iface:eth0/ingress`, \
`iface:eth0/egress`).

Examples:
  dta-reporter points";

pub(super) const TRACE_HELP: &str = "\
A point is an interface (`iface:eth0`, both directions; `iface:eth0/ingress`; `xdp:eth0`), its queue, its \
driver or its receive path (`iface:eth0/queue`, `iface:eth0/driver`, `iface:eth0/receive`), also in \
another network namespace (`netns:pod1/iface:eth0`), a tracepoint (`tp:kfree_skb`), or the entry of a \
kernel function (`fentry:ip_rcv`, `kprobe:ip_rcv`). \
A function of a program or library (`uprobe:/lib/x86_64-linux-gnu/libc.so.6:sendto`) has no packet: each \
call is printed on a line, with process and thread. Filter and sampling do not apply to calls.

Examples:
  Where packets to port 80 spend their time, and where they are dropped:
    dta-reporter trace --at tp:net_dev_queue --at tp:netif_receive_skb \\
        --at tp:kfree_skb --filter 'tcp port 80' --print
  One packet in 64 on its way into a container:
    dta-reporter trace --at iface:eth0 --at netns:pod1/iface:eth0 \\
        --sample 1/64 --print
  The same for a collector, which is asked with dta-collector trace:
    dta-reporter trace --at iface:eth0 --at netns:pod1/iface:eth0 \\
        --sample 1/64 --translator 192.0.2.10:40040 --reporter-id 7
  How long packets wait in the queue of each of two interfaces:
    dta-reporter trace --at iface:eth0/queue --at iface:eth0/driver \\
        --at iface:vxlan0/queue --at iface:vxlan0/driver \\
        --translator 192.0.2.10:40040 --reporter-id 7";

#[derive(Debug, Args)]
pub(super) struct Points {
    #[command(flatten)]
    output: OutputFlag,
}

#[derive(Debug, Args)]
pub(super) struct TracerArgs {
    /// A point at which to trace packets; can be repeated
    #[arg(long = "at", value_name = "POINT", required_unless_present = "program", value_parser = At::parse_points)]
    at: Vec<Vec<At>>,
    /// An object file with your own program that writes records; an additional point after those of --at
    #[arg(long, value_name = "FILE")]
    program: Vec<String>,
    /// Which packets, in tcpdump's syntax: `tcp port 80 and net 10.0.0.0/8`
    #[arg(long, value_name = "FILTER", default_value = "")]
    filter: String,
    /// The share of packets to trace, as 1/64; all points and hosts choose the same packets
    #[arg(long, value_name = "1/N", default_value = "1/1", value_parser = Sampling::read_share)]
    sample: u32,
    /// Print each packet on a line with its segments
    #[arg(long, required_unless_present = "translator")]
    print: bool,
    #[command(flatten)]
    to: To,
    /// Stop after this many packets, or calls of functions
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Print or send a packet once nothing new was seen of it for this long
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 200)]
    settle: u64,
    /// Do not track packets by their buffers: after address translation they count as different packets
    #[arg(long)]
    no_follow: bool,
    /// Attach to interfaces by the clsact qdisc even if the kernel has tcx
    #[arg(long)]
    clsact: bool,
    #[command(flatten)]
    output: OutputFlag,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

/// A point, or a kind of points, for programs.
#[derive(Serialize)]
struct TracePointRow {
    /// As written on the command line.
    at: String,
    sees: String,
    /// Whether it can be attached.
    can: bool,
    why_not: Option<String>,
}

/// Prints the points that the kernel lets us attach to.
pub(super) fn print_points(args: &Points) -> Result<()> {
    let offers = kernel::probe_points()?.into_iter();
    let offers: Vec<TracePointRow> = offers
        .map(|offer| TracePointRow {
            at: offer.point,
            sees: offer.what,
            can: offer.refused.is_none(),
            why_not: offer.refused,
        })
        .collect();
    args.output.print_document(&offers, |offers| {
        let mut table = TextTable::new(&["POINT", "SEES", "CAN BE ATTACHED"], &[]);
        for offer in offers {
            let state = match &offer.why_not {
                None => Cell::with_colour("yes", Colour::Green),
                Some(why) => Cell::with_colour(format!("no: {why}"), Colour::Yellow),
            };
            table.add_row([offer.at.clone().into(), offer.sees.clone().into(), state]);
        }
        table.render_for(OutputStyle::for_stdout())
    })
}

pub(super) fn run(args: &TracerArgs) -> Result<()> {
    let table = compile_filter(&args.filter)?;
    let programs: Vec<At> = args.program.iter().cloned().map(At::Program).collect();
    let points: Vec<&At> = args.at.iter().flatten().chain(&programs).collect();
    if let (Some(at), true) = (points.iter().find(|at| !at.sees_packets()), args.to.translator.is_some()) {
        let why = format!("{at} sees calls rather than packets: use --print, without --translator");
        return Err(dta_cli::misuse_error(anyhow::anyhow!(why)));
    }
    let other_namespaces = points.iter().any(|at| at.is_in_other_namespace());
    let missing = rights::missing_capabilities(other_namespaces).context("cannot read capabilities")?;
    if !missing.is_empty() {
        return Err(kernel::Error::Rights(missing).into());
    }
    let ended = watch_signals()?;
    let options = TracerOptions {
        table,
        sampling: Sampling::one_in(args.sample),
        follow: !args.no_follow,
        clsact: args.clsact,
        translator: args.to.translator,
        ..TracerOptions::default()
    };
    let mut tracer = Tracer::start(&options)?;
    for at in points {
        tracer.attach(at)?;
    }
    let mut printer = Printer::new(&tracer);
    let config = args.to.sender_config(args.settle)?;
    let mut sender = config.map(|config| Sender::open(config, &tracer)).transpose()?;
    // From here on, a bug in this program can do less harm.
    rights::drop_others(other_namespaces).context("cannot drop capabilities")?;
    eprintln!(
        "dta-reporter: {} attached",
        format_count(tracer.points().len() as u64, "point is", "points are")
    );
    let stopped = follow_records(&mut tracer, &mut printer, sender.as_mut(), args, &ended);
    let sent = sender.as_mut().map_or(Ok(()), |sender| sender.finish(&mut tracer));
    print_point_counts(&tracer, (args.print || args.count.is_some()).then_some(&printer))?;
    if let Some(sender) = &sender {
        sender.print_counters();
    }
    stopped.and(sent)
}

fn compile_filter(text: &str) -> Result<matching::FilterTable> {
    crate::packet_trace::filter::compile_filter(text).with_context(|| format!("{text:?} is not a filter"))
}

/// Becomes true on SIGINT or SIGTERM.
fn watch_signals() -> Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupt, mut terminate) = {
        use tokio::signal::unix::{SignalKind, signal};
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        // It needs none. If it kept them, the others' dropping would be in vain.
        if let Err(error) = rights::drop_all_capabilities() {
            eprintln!("dta-reporter: a thread keeps its capabilities: {error}");
        }
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        });
        flag.store(true, Ordering::Relaxed);
    })?;
    Ok(ended)
}

fn follow_records(
    tracer: &mut Tracer,
    printer: &mut Printer,
    mut sender: Option<&mut Sender>,
    args: &TracerArgs,
    ended: &AtomicBool,
) -> Result<()> {
    let started = Instant::now();
    let settle = Duration::from_millis(args.settle);
    let mut journeys = Journeys::default();
    let mut out = io::stdout().lock();
    let clock = |moment: Instant| (moment - started).as_nanos() as u64;
    loop {
        let now = Instant::now();
        let last = ended.load(Ordering::Relaxed)
            || args.seconds.is_some_and(|most| now - started >= most)
            || args.count.is_some_and(|most| printer.packets >= most);
        let mut failed = Ok(());
        let mut calls = Vec::new();
        printer.leap = tracer.tai_offset();
        if let Some(sender) = &mut sender {
            sender.follow_clock(tracer);
        }
        tracer.read(|record| {
            if record.calling_thread().is_some() {
                calls.push(Journey { records: vec![record] });
                return;
            }
            printer.several += u64::from(record.flags & flags::SEGMENTS != 0);
            if let Some(sender) = &mut sender {
                let taken = sender.process_record(&record);
                failed = std::mem::replace(&mut failed, Ok(())).and(taken);
            }
            // Packets are assembled here for printing and counting.
            if args.print || args.count.is_some() {
                journeys.add_record(record, clock(now));
            }
        });
        failed?;
        if let Some(sender) = &mut sender {
            sender.send_due(tracer)?;
        }
        let before = if last { u64::MAX } else { clock(now).saturating_sub(settle.as_nanos() as u64) };
        for journey in calls.into_iter().chain(journeys.take_settled(before)) {
            if args.count.is_none_or(|most| printer.packets < most) {
                printer.packets += 1;
                if args.print {
                    let line = match args.output.is_json() {
                        true => serde_json::to_string(&printer.build_document(&journey))?,
                        false => printer.format_journey(&journey),
                    };
                    writeln!(out, "{}", escape_hidden(&line))?;
                }
            }
        }
        out.flush()?;
        printer.shared = journeys.shared_digests();
        if last {
            return Ok(());
        }
        tracer.wait_for_records(Duration::from_millis(10))?;
    }
}

/// Prints what became of the packets at each point.
fn print_point_counts(tracer: &Tracer, printer: Option<&Printer>) -> Result<()> {
    let header =
        ["POINT", "SEEN", "REPORTED", "FILTERED", "SAMPLED OUT", "OWN", "RING FULL", "REFUSED", "MISSED"];
    let mut table = TextTable::new(&header, &[1, 2, 3, 4, 5, 6, 7, 8]);
    for (point, books) in tracer.points().iter().zip(tracer.read_books()?) {
        let of = books.total;
        let counts = [
            of.seen,
            of.reported,
            of.filtered,
            of.sampled_out,
            of.own,
            of.ring_full,
            of.unparsed_packets(),
            of.missed,
        ];
        let mut row = vec![Cell::from(point.at.to_string())];
        row.extend(counts.map(|count| Cell::from(count.to_string())));
        table.add_row(row);
    }
    eprintln!("{}", table.render_for(OutputStyle::PIPE));
    for (point, books) in tracer.points().iter().zip(tracer.read_books()?) {
        ring_losses(&point.at, &books.cpus).iter().for_each(|line| eprintln!("{line}"));
    }
    if let Some(printer) = printer {
        eprintln!(
            "{}; {} shared their digest with another packet in flight; {} records of several packets in one buffer",
            format_count(printer.packets, "packet", "packets"),
            printer.shared,
            printer.several
        );
    }
    Ok(())
}

/// A line for each processor whose ring was full.
fn ring_losses(at: &At, processors: &[Books]) -> Vec<String> {
    let lost = processors.iter().enumerate().filter(|(_, books)| books.ring_full > 0);
    lost.map(|(number, books)| {
        let of = books.reported + books.ring_full;
        format!(
            "{at}: {} records of {of} were lost on processor {number} because the ring was full",
            books.ring_full
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_that_lost_records_are_named() {
        let at: At = "tp:kfree_skb".parse().unwrap();
        let books = |reported, ring_full| Books { reported, ring_full, ..Books::default() };
        let losses = ring_losses(&at, &[books(10, 0), books(7, 3)]);
        assert_eq!(
            losses,
            ["tp:kfree_skb: 3 records of 10 were lost on processor 1 because the ring was full"]
        );
    }
}
