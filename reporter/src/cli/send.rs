//! `dta-reporter send`.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dta_cli::number::{format_count, format_grouped, format_short};
use dta_cli::output::{self, OutputFormat};
use dta_proto::counter::{Stage, reporter as names};
use dta_proto::wire::dta::Version;

use super::args::{Send, Vary};
use super::check::{self, CollectorStores};
use super::lines::ReportLine;
use super::report::ReportArgs;
use crate::pace::Pacer;
use crate::{Config, ReportOptions, Reporter};

/// Invalid lines that are reported individually.
const MOST_REPORTED: u64 = 10;

/// Longest line of a file, so that a file without line ends does not fill memory.
const LINE_MAX: u64 = 64 << 10;

/// Sends the reports; `true` if everything was sent.
pub(super) fn run(args: &Send) -> Result<bool> {
    if args.dta_version == Version::V0 && (args.store.is_some() || args.reporter_id != 0) {
        bail!(
            "version 0 carries neither a store nor a reporter id: leave out --store and --reporter-id, or use --dta-version 1"
        );
    }
    if args.report.is_some() && args.file.is_some() {
        bail!("give either a primitive or --file, not both");
    }
    let stores = if args.unchecked {
        CollectorStores::Unknown
    } else {
        check::somebody_listens(args.to)?;
        CollectorStores::query_collector(args.collector.as_deref())?
    };
    let usual = ReportOptions { retransmittable: args.retransmittable, immediate: args.immediate };
    let mut config = Config::new(args.to);
    config.bind = args.from.unwrap_or(config.bind);
    config.version = args.dta_version;
    config.reporter = args.reporter_id;
    config.options = usual;
    // Version 0 uses a well-known port for NACKs, so open it only if needed.
    let wants_nacks = args.retransmittable || args.file.is_some() && args.dta_version == Version::V1;
    config.backup = if wants_nacks { args.backup as usize } else { 0 };
    config.faults = args.faults;
    config.seed = args.seed;
    let reporter = Reporter::open(config)?;
    let mut run = SendRun {
        reporter,
        stores,
        version: args.dta_version,
        pacer: Pacer::new(args.rate, Instant::now()),
        kept: false,
        started: Instant::now(),
    };
    let bad = match &args.report {
        Some(report) => {
            run.send_repeated(args, report, usual)?;
            0
        }
        None => run.send_file(args.file.as_deref().unwrap_or(Path::new("-")), args, usual)?,
    };
    run.reporter.flush()?;
    let took = run.started.elapsed();
    let linger = args.linger.unwrap_or(if run.kept { 1000 } else { 0 });
    run.reporter.answer_nacks_for(Duration::from_millis(linger))?;
    let counters = run.reporter.close()?;
    if !args.quiet {
        print_summary(args, counters.named_counters(), took)?;
    }
    if bad > 0 {
        eprintln!("dta-reporter: {} not sent", format_count(bad as u64, "line was", "lines were"));
    }
    let unsent = counters.link.unsent_packets();
    if unsent > 0 {
        let reasons =
            counters.link.losses_by_reason().into_iter().filter(|(loss, n)| *n > 0 && loss.is_unsent());
        let reasons: Vec<_> = reasons.map(|(loss, n)| format!("{} {n}", loss.name())).collect();
        let what = format_count(unsent, "report", "reports");
        eprintln!("dta-reporter: {what} not sent: {}", reasons.join(", "));
    }
    Ok(bad == 0 && unsent == 0 && counters.refused == 0)
}

struct SendRun {
    reporter: Reporter,
    stores: CollectorStores,
    version: Version,
    pacer: Pacer,
    /// Whether a report was retransmittable.
    kept: bool,
    started: Instant,
}

impl SendRun {
    /// Waits until the rate allows another report, answering NACKs meanwhile.
    fn wait_for_rate(&mut self) -> Result<()> {
        while self.pacer.grant_reports(1, Instant::now()) == 0 {
            self.reporter.answer_nacks_for(self.pacer.time_until_next(Instant::now()))?;
        }
        Ok(())
    }

    fn send_repeated(&mut self, args: &Send, report: &ReportArgs, options: ReportOptions) -> Result<()> {
        self.kept = options.retransmittable;
        let mut place = None;
        for n in 0..args.count {
            self.wait_for_rate()?;
            let mut report = report.clone();
            let by = n as u32;
            match (args.vary, report.key_and_value_mut()) {
                (None, _) => {}
                (Some(Vary::Key), (Some(key), _)) => increment_prefix(&mut key.0, by),
                (Some(Vary::Value), (_, Some(value))) => increment_prefix(value.bytes_mut(), by),
                (Some(Vary::Key), (None, _)) => bail!("--vary key: this primitive has no key"),
                (Some(Vary::Value), (_, None)) => bail!("--vary value: this primitive has no value"),
            }
            let body = report.to_body().map_err(anyhow::Error::msg)?;
            let store = match place {
                Some(store) => store,
                // Further reports differ only in a key or a value.
                None => *place.insert(
                    self.stores
                        .choose_store(self.version, args.store.as_ref(), &body)
                        .map_err(|misfit| anyhow::anyhow!("this cannot land: {misfit}"))?,
                ),
            };
            self.reporter.report(store, body).context("this cannot be reported")?;
        }
        Ok(())
    }

    /// Sends the lines of a file; returns how many were not reports.
    fn send_file(&mut self, path: &Path, args: &Send, usual: ReportOptions) -> Result<u64> {
        let input: Box<dyn BufRead> = if path == Path::new("-") {
            if std::io::stdin().is_terminal() {
                eprintln!(
                    "dta-reporter: reading reports from the terminal, one JSON object per line; end with Ctrl-D"
                );
            }
            Box::new(std::io::stdin().lock())
        } else {
            Box::new(BufReader::new(
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?,
            ))
        };
        let mut lines = BoundedLines { input, line: Vec::new() };
        let (mut number, mut bad) = (0u64, 0u64);
        while let Some(text) = lines.next().with_context(|| format!("cannot read {}", path.display()))? {
            number += 1;
            if text.trim_ascii().is_empty() {
                continue;
            }
            let sent = match serde_json::from_slice::<ReportLine>(text) {
                Ok(line) => self.send_line(&line, args, usual)?,
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = sent {
                bad += 1;
                if bad <= MOST_REPORTED {
                    let text = format!("dta-reporter: line {number}: {error}");
                    eprintln!("{}", dta_cli::terminal::for_stderr(&text));
                }
            }
        }
        Ok(bad)
    }

    /// Sends one report; the inner error is an error of the line.
    fn send_line(
        &mut self,
        line: &ReportLine,
        args: &Send,
        usual: ReportOptions,
    ) -> Result<Result<(), String>> {
        let (store, body, options) = match line.to_report(usual) {
            Ok(report) => report,
            Err(error) => return Ok(Err(error)),
        };
        let store = match self.stores.choose_store(self.version, store.or(args.store.as_ref()), &body) {
            Ok(store) => store,
            Err(misfit) => return Ok(Err(format!("it cannot land: {misfit}"))),
        };
        self.wait_for_rate()?;
        let sent = self.reporter.report_with(store, body, options);
        self.kept |= options.retransmittable;
        Ok(sent.map(drop).map_err(|error| error.to_string()))
    }
}

/// Lines of bounded length; a longer one is skipped to its end and returned truncated, which no JSON parser
/// accepts.
struct BoundedLines<R> {
    input: R,
    line: Vec<u8>,
}

impl<R: BufRead> BoundedLines<R> {
    fn next(&mut self) -> std::io::Result<Option<&[u8]>> {
        use std::io::Read;
        self.line.clear();
        if (&mut self.input).take(LINE_MAX).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        let whole = self.line.ends_with(b"\n") || (self.line.len() as u64) < LINE_MAX;
        if !whole {
            self.input.skip_until(b'\n')?;
        }
        Ok(Some(&self.line))
    }
}

/// Adds `by` to the first 4 bytes, as a big-endian number modulo 2^32.
fn increment_prefix(bytes: &mut [u8], by: u32) {
    if let Some(first) = bytes.first_chunk_mut::<4>() {
        *first = u32::from_be_bytes(*first).wrapping_add(by).to_be_bytes();
    }
}

#[derive(serde::Serialize)]
struct SendSummary {
    seconds: f64,
    nodes: [dta_cli::counters::NodeCountersDocument; 1],
}

fn print_summary(args: &Send, counters: Vec<(String, u64)>, took: Duration) -> Result<()> {
    if args.output == OutputFormat::Json {
        let name = Stage::Reporter.node_name(&args.reporter_id.to_string());
        let node = dta_cli::counters::NodeCountersDocument::now(name, Stage::Reporter.name(), counters);
        return output::print_json(&SendSummary { seconds: took.as_secs_f64(), nodes: [node] });
    }
    let mut reports = 0;
    for (name, count) in counters {
        if name == names::REPORTS.name {
            reports = count;
        }
        if count > 0 || [names::REPORTS.name, names::SENT.name].contains(&name.as_str()) {
            dta_cli::print_line(format_args!("{name:<40} {:>12}", format_grouped(count)))?;
        }
    }
    if reports > 1 {
        let rate = format_short(reports as f64 / took.as_secs_f64().max(1e-9));
        dta_cli::print_line(format_args!("{:<40} {rate:>12}", "reports per second"))?;
    }
    Ok(())
}
