//! The cost of a packet at an interface, measured by the kernel's own test runs (BPF_PROG_TEST_RUN).

use aya::programs::{SchedClassifier, TestRun, TestRunOptions};

use super::{Error, Tracer, TracerOptions, error_chain};
use crate::packet_trace::digest::Sampling;
use crate::packet_trace::matching::FilterTable;
use crate::packet_trace::point::{At, InterfaceSide};

/// One path through the program.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    pub path: &'static str,
    /// Nanoseconds per run, the fastest of several turns.
    pub nanoseconds: f64,
    /// The cost relative to a program that does nothing.
    pub ratio: f64,
    /// The upper limit of the ratio, if there is one.
    pub most: Option<f64>,
}

/// A frame of 100 bytes: IPv4, UDP.
fn plain_frame() -> Vec<u8> {
    let mut frame = vec![0x5a; 100];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 86, 0, 7, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..42].copy_from_slice(&[0, 80, 0, 90, 0, 66, 0, 0]);
    frame
}

/// The same frame in VXLAN, 150 bytes.
fn in_tunnel() -> Vec<u8> {
    let mut frame = plain_frame();
    frame.truncate(42);
    frame[16..18].copy_from_slice(&136u16.to_be_bytes());
    frame[36..40].copy_from_slice(&[0x12, 0xb5, 0, 116]);
    frame.extend([8, 0, 0, 0, 0, 0, 7, 0]);
    frame.extend(plain_frame());
    frame
}

/// The settings for a path, and the limit of its ratio.
struct CostCase {
    path: &'static str,
    frame: fn() -> Vec<u8>,
    program: &'static str,
    filter: Option<FilterTable>,
    sampling: Sampling,
    follow: bool,
    count: bool,
    most: Option<f64>,
}

fn cost_cases() -> Vec<CostCase> {
    let none = || FilterTable::new(vec![], vec![]).ok();
    let never = Sampling { threshold: 0 };
    let case = |path, most| CostCase {
        path,
        frame: plain_frame,
        program: "dta_ingress",
        filter: None,
        sampling: Sampling::ALL,
        follow: false,
        count: false,
        most,
    };
    vec![
        CostCase { program: "dta_empty", ..case("empty program", None) },
        case("report", Some(4.0)),
        CostCase { filter: none(), ..case("filtered out", None) },
        CostCase { sampling: never, ..case("sampled out", Some(2.0)) },
        CostCase { frame: in_tunnel, ..case("report, in VXLAN", None) },
        CostCase { frame: in_tunnel, sampling: never, ..case("sampled out, in VXLAN", None) },
        CostCase { sampling: never, count: true, ..case("sampled out, flow counted", None) },
        CostCase { count: true, follow: true, ..case("report, flow counted, buffer followed", None) },
    ]
}

/// Measures each path `turns` times, with `runs` runs (at most 10,000, which fit into the ring): a 100-byte
/// UDP packet at an interface by tcx. Flows are not counted and buffers not tracked unless the name says so.
pub fn measure_costs(options: &TracerOptions, turns: u32, runs: u32) -> Result<Vec<Cost>, Error> {
    let runs = runs.clamp(1, 10_000);
    let mut tracer = Tracer::start(options)?;
    tracer.attach(&At::Interface { namespace: None, name: "lo".into(), side: InterfaceSide::Ingress })?;
    let cases = cost_cases();
    let mut best = vec![f64::INFINITY; cases.len()];
    for _ in 0..turns.max(1) {
        for (case, best) in cases.iter().zip(&mut best) {
            tracer.settings.follow = case.follow;
            tracer.settings.count_flows = case.count;
            tracer.settings.sampling = case.sampling;
            tracer.set_filter(case.filter.as_ref().unwrap_or(&FilterTable::match_all()))?;
            *best = best.min(tracer.run_program(case.program, &(case.frame)(), runs)?);
            tracer.read(|_| {});
        }
    }
    let floor = best[0].max(1.0);
    let cost = |(case, nanoseconds): (&CostCase, f64)| Cost {
        path: case.path,
        nanoseconds,
        ratio: nanoseconds / floor,
        most: case.most,
    };
    Ok(cases.iter().zip(best).map(cost).collect())
}

impl Tracer {
    /// Nanoseconds per run of a classifier on a loopback packet.
    fn run_program(&mut self, name: &str, frame: &[u8], runs: u32) -> Result<f64, Error> {
        let load = |error: &dyn std::error::Error| Error::Load(error_chain(error));
        let program = self
            .ebpf
            .program_mut(name)
            .ok_or_else(|| Error::Load(format!("the object has no program {name}")))?;
        let program: &mut SchedClassifier = program.try_into().map_err(|error| load(&error))?;
        if program.fd().is_err() {
            program.load().map_err(|error| load(&error))?;
        }
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        options.repeat = runs;
        let result = program.test_run(options).map_err(|error| load(&error))?;
        // The kernel reports the mean in whole nanoseconds.
        Ok(result.duration.as_nanos() as f64)
    }
}
