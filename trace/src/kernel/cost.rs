//! What a packet costs at an interface, by the kernel's own test runs (BPF_PROG_TEST_RUN).

use aya::programs::{SchedClassifier, TestRun, TestRunOptions};

use super::{Error, Options, Tracer, chain};
use crate::digest::Sampling;
use crate::matching::Table;
use crate::point::{At, Side};

/// One way through the program.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Which way.
    pub path: &'static str,
    /// Nanoseconds of one run, the fastest of several turns.
    pub nanoseconds: f64,
    /// The same beside a program that does nothing.
    pub ratio: f64,
}

/// A frame of 100 bytes: IPv4, UDP.
fn frame() -> [u8; 100] {
    let mut frame = [0x5a; 100];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 86, 0, 7, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..42].copy_from_slice(&[0, 80, 0, 90, 0, 66, 0, 0]);
    frame
}

/// Runs each way `turns` times, with `runs` runs each (at most 10,000, which the ring holds).
pub fn costs(turns: u32, runs: u32) -> Result<Vec<Cost>, Error> {
    let runs = runs.clamp(1, 10_000);
    let mut tracer = Tracer::start(&Options::default())?;
    tracer.attach(&At::Interface { namespace: None, name: "lo".into(), side: Side::Ingress })?;
    let none = Table::new(vec![], vec![]).unwrap_or_default();
    let never = Sampling { threshold: 0 };
    // Program, filter, share, whether buffers are followed, whether flows are counted.
    type Way<'a> = (&'static str, &'static str, Option<&'a Table>, Sampling, bool, bool);
    let ways: [Way; 6] = [
        ("empty program", "dta_empty", None, Sampling::ALL, false, false),
        ("report", "dta_ingress", None, Sampling::ALL, false, false),
        ("filtered out", "dta_ingress", Some(&none), Sampling::ALL, false, false),
        ("sampled out", "dta_ingress", None, never, false, false),
        ("sampled out, flow counted", "dta_ingress", None, never, false, true),
        ("report, flow counted, buffer followed", "dta_ingress", None, Sampling::ALL, true, true),
    ];
    let mut best = [f64::INFINITY; 6];
    for _ in 0..turns.max(1) {
        for ((_, program, table, sampling, follow, count), best) in ways.iter().zip(&mut best) {
            tracer.settings.follow = *follow;
            tracer.settings.count_flows = *count;
            tracer.settings.sampling = *sampling;
            tracer.set_filter(table.unwrap_or(&Table::all()))?;
            *best = best.min(tracer.run_program(program, runs)?);
            tracer.read(|_| {});
        }
    }
    let floor = best[0].max(1.0);
    Ok(ways
        .iter()
        .zip(best)
        .map(|(way, nanoseconds)| Cost { path: way.0, nanoseconds, ratio: nanoseconds / floor })
        .collect())
}

impl Tracer {
    /// Nanoseconds of one run of a classifier on a packet of the loopback.
    fn run_program(&mut self, name: &str, runs: u32) -> Result<f64, Error> {
        let load = |error: &dyn std::error::Error| Error::Load(chain(error));
        let program = self
            .ebpf
            .program_mut(name)
            .ok_or_else(|| Error::Load(format!("the object has no program {name}")))?;
        let program: &mut SchedClassifier = program.try_into().map_err(|error| load(&error))?;
        if program.fd().is_err() {
            program.load().map_err(|error| load(&error))?;
        }
        let frame = frame();
        let mut options = TestRunOptions::new();
        options.data_in = Some(&frame);
        options.repeat = runs;
        let result = program.test_run(options).map_err(|error| load(&error))?;
        // The kernel tells the mean in whole nanoseconds.
        Ok(result.duration.as_nanos() as f64)
    }
}
