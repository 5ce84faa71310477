//! How far one host's clock is ahead of another's, from packets that both saw.
//!
//! A packet that leaves host A at `a` by A's clock and is seen by host B at `b` by B's clock gives
//! `b - a = ahead(a) + delay`, and one the other way `b - a = ahead(a) - delay`. No delay is negative, so
//! every packet is a bound: packets from A to B bound B's lead from above, packets from B to A from below.
//!
//! Most packets wait in queues, and those that did not are the best bounds. So time is divided into windows,
//! and each contributes the minimum of the upper bounds and the maximum of the lower ones. A line is fitted
//! through their midpoints, where a window weighs more the closer its two bounds are. Two unadjusted clocks
//! run at nearly constant rates, so their difference is a line ([`WINDOW`] and the line after Moon, Skelly
//! and Towsley, "Estimation and removal of clock skew from network delay measurements", 1999, in both
//! directions).
//!
//! The midpoint is right if the fastest packets of both directions take equally long. The largest possible
//! error otherwise is known: [`Fit::bound`] is the most that any line between all bounds differs from this
//! one.

/// One window: 100 ms, in nanoseconds. Windows are longer if none of this length has packets in both directions.
pub const WINDOW: u64 = 100_000_000;

/// Largest rate difference of two unadjusted clocks. Linux adjusts by at most 500 ppm, and crystals are some
/// 100 ppm off.
pub const MOST_DRIFT: f64 = 1e-3;

/// How often windows are recomputed with the rate of the previous line: the clocks drift apart within a
/// window, too.
const ROUNDS: usize = 4;
/// Steps of one-dimensional searches: each shortens the interval to two thirds.
const STEPS: usize = 120;
/// Minimum gap between a window's bounds in nanoseconds: the clocks' resolution.
const GRAIN: f64 = 50.0;

/// When a packet was at each of two hosts, by the host's own clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// At the first host of the pair, whichever direction the packet took.
    pub first: u64,
    /// At the second one.
    pub second: u64,
}

/// How far the second host's clock is ahead of the first one's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The time by the first clock at which they differ by `ahead`: the earliest packet's.
    pub origin: u64,
    /// The second clock's lead at `origin` in nanoseconds, rounded down.
    pub ahead: i64,
    /// Nanoseconds from the earliest to the latest packet.
    span: u64,
    /// The rounding remainder: 0 to 1 ns.
    rest: f64,
    /// The second clock's gain, in nanoseconds per nanosecond of the first.
    pub drift: f64,
    /// Largest error of the line in nanoseconds between the earliest and the latest packet, if both clocks
    /// run at constant rates: usually half of the fastest round trip.
    pub bound: f64,
    /// Windows with packets in both directions.
    pub windows: usize,
}

/// Why two hosts' clocks cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFit {
    /// No packet went from the first host to the second, or none back.
    #[error("packets went one way only")]
    OneWay,
    /// No line fits between the bounds.
    #[error("a clock was set or changed its rate meanwhile")]
    NotALine,
}

impl Fit {
    /// Converts a time of the second host to the first host's clock, in nanoseconds.
    pub fn to_first(&self, second: u64) -> u64 {
        let since = i128::from(second) - i128::from(self.ahead) - i128::from(self.origin);
        // The time since the origin is short, so the product is exact to far below a nanosecond.
        let since = (since as f64 - self.rest) / (1.0 + self.drift);
        (i128::from(self.origin) + since.round() as i128).clamp(0, u64::MAX.into()) as u64
    }

    /// Largest lead or lag of the second clock in nanoseconds between the earliest and the latest packet.
    pub fn most_ahead(&self) -> f64 {
        let ahead = self.ahead as f64 + self.rest;
        ahead.abs().max((ahead + self.drift * self.span as f64).abs())
    }

    /// Converts a time of the first host to the second host's clock, in nanoseconds.
    pub fn to_second(&self, first: u64) -> u64 {
        let since = i128::from(first) - i128::from(self.origin);
        let more = (self.drift * since as f64 + self.rest).round() as i128;
        (i128::from(first) + i128::from(self.ahead) + more).clamp(0, u64::MAX.into()) as u64
    }
}

/// A bound: nanoseconds since the origin, and the maximum (or minimum) lead of the second clock there.
#[derive(Clone, Copy)]
struct LeadBound {
    at: f64,
    ahead: f64,
}

/// Compares two clocks by the packets from the first host to the second, and those back, in any order.
///
/// # Errors
/// One direction has no packets, or no line fits.
pub fn fit_clocks(forth: &[Crossing], back: &[Crossing]) -> Result<Fit, NoFit> {
    let [Some(any), Some(_)] = [forth.first(), back.first()] else { return Err(NoFit::OneWay) };
    let all = || forth.iter().chain(back);
    let origin = all().map(|crossing| crossing.first).min().unwrap_or(any.first);
    let span = all().map(|crossing| crossing.first - origin).max().unwrap_or(0);
    // Offsets from a common difference are small numbers, which a float represents exactly.
    let base = difference(any);
    let point = |crossing: &Crossing| LeadBound {
        at: (crossing.first - origin) as f64,
        ahead: (difference(crossing) - base) as f64,
    };
    let most: Vec<LeadBound> = forth.iter().map(point).collect();
    let least: Vec<LeadBound> = back.iter().map(point).collect();

    let (mut drift, mut ahead, mut windows) = (0.0, 0.0, Vec::new());
    for _ in 0..ROUNDS {
        windows = cut_windows(&most, &least, span, drift);
        let (at_0, more) = fit_line(&windows, span);
        drift = (drift + more).clamp(-MOST_DRIFT, MOST_DRIFT);
        ahead = at_0;
    }
    let bound = error_bound(&most, &least, span, ahead, drift).ok_or(NoFit::NotALine)?;
    let whole = ahead.floor();
    let ahead_i64 = i64::try_from(base + whole as i128).map_err(|_| NoFit::NotALine)?;
    Ok(Fit { origin, span, ahead: ahead_i64, rest: ahead - whole, drift, bound, windows: windows.len() })
}

fn difference(crossing: &Crossing) -> i128 {
    i128::from(crossing.second) - i128::from(crossing.first)
}

/// A window: its midpoint in time, and its two bounds, corrected for the clocks' drift.
struct ClockWindow {
    at: f64,
    most: f64,
    least: f64,
}

/// The windows with bounds of both kinds. There is at least one, as a window can span all of the time.
fn cut_windows(most: &[LeadBound], least: &[LeadBound], span: u64, drift: f64) -> Vec<ClockWindow> {
    let mut length = WINDOW;
    loop {
        let count = (span / length + 1) as usize;
        // A long time with few packets: no more windows than can have packets.
        if count <= 4 * (most.len() + least.len()) || count <= 1 {
            let mut windows = vec![(f64::INFINITY, f64::NEG_INFINITY); count];
            // Converting a large number to a float may round it up.
            let of = |point: &LeadBound| ((point.at as u64 / length) as usize).min(count - 1);
            for point in most {
                let window = &mut windows[of(point)];
                window.0 = window.0.min(point.ahead - drift * point.at);
            }
            for point in least {
                let window = &mut windows[of(point)];
                window.1 = window.1.max(point.ahead - drift * point.at);
            }
            let both: Vec<ClockWindow> = (0u32..)
                .zip(windows)
                .filter(|(_, (most, least))| most.is_finite() && least.is_finite())
                .map(|(n, (most, least))| ClockWindow {
                    at: (f64::from(n) + 0.5) * length as f64,
                    most,
                    least,
                })
                .collect();
            if !both.is_empty() {
                return both;
            }
        }
        length = length.saturating_mul(2);
    }
}

/// The line through the windows' midpoints: its height at 0, and its slope. Least squares, weighted by how
/// close a window's bounds are.
fn fit_line(windows: &[ClockWindow], span: u64) -> (f64, f64) {
    let gap = |window: &ClockWindow| window.most - window.least;
    let mut gaps: Vec<f64> = windows.iter().map(gap).collect();
    gaps.sort_by(f64::total_cmp);
    let (closest, usual) = (gaps[0], gaps[gaps.len() / 2]);
    let grain = GRAIN + (usual - closest) / 8.0;
    let (mut weights, mut at, mut ahead) = (0.0, 0.0, 0.0);
    let weight = |window: &ClockWindow| (grain / (grain + gap(window) - closest)).powi(2);
    let middle = |window: &ClockWindow| (window.most + window.least) / 2.0;
    for window in windows {
        weights += weight(window);
        at += weight(window) * window.at;
        ahead += weight(window) * middle(window);
    }
    let (at, ahead) = (at / weights, ahead / weights);
    let (mut up, mut along) = (0.0, 0.0);
    for window in windows {
        up += weight(window) * (window.at - at) * (middle(window) - ahead);
        along += weight(window) * (window.at - at).powi(2);
    }
    // One window, or windows at one time, give no slope.
    let slope = if windows.len() < 3 || along <= (span as f64 / 1e3).powi(2) { 0.0 } else { up / along };
    (ahead - slope * at, slope)
}

/// The most that a line between all bounds differs from this one within the span; `None` if there is no such
/// line.
///
/// Lines are `a + b t` relative to the fitted one. For each `b` there is an interval of `a`, whose ends are a
/// convex and a concave function of `b`, so one-dimensional searches suffice.
fn error_bound(most: &[LeadBound], least: &[LeadBound], span: u64, ahead: f64, drift: f64) -> Option<f64> {
    let more = |point: &LeadBound| LeadBound { at: point.at, ahead: point.ahead - ahead - drift * point.at };
    let most = bounding_hull(most.iter().map(more).collect(), 1.0);
    let least = bounding_hull(least.iter().map(more).collect(), -1.0);
    let highest = |b: f64| most.iter().map(|p| p.ahead - b * p.at).fold(f64::INFINITY, f64::min);
    let lowest = |b: f64| least.iter().map(|p| p.ahead - b * p.at).fold(f64::NEG_INFINITY, f64::max);
    let room = |b: f64| highest(b) - lowest(b);
    let (from, to) = (-MOST_DRIFT - drift, MOST_DRIFT - drift);
    let best = concave_maximum(from, to, room);
    // Times are whole nanoseconds: each of two is rounded by up to one.
    if room(best) < -2.0 {
        return None;
    }
    let from = bisect_edge(best, from, |b| room(b) >= -2.0);
    let to = bisect_edge(best, to, |b| room(b) >= -2.0);
    let mut most_off: f64 = 0.0;
    for at in [0.0, span as f64] {
        let up = |b: f64| highest(b) + b * at;
        let down = |b: f64| -(lowest(b) + b * at);
        most_off = most_off.max(up(concave_maximum(from, to, up))).max(down(concave_maximum(from, to, down)));
    }
    Some(most_off.max(0.0) + 1.0)
}

/// The points that a line from below (`side` 1) or from above (-1) can touch: no others bound a line.
fn bounding_hull(mut points: Vec<LeadBound>, side: f64) -> Vec<LeadBound> {
    points.sort_by(|a, b| a.at.total_cmp(&b.at).then((side * a.ahead).total_cmp(&(side * b.ahead))));
    points.dedup_by(|later, earlier| later.at == earlier.at);
    let mut hull: Vec<LeadBound> = Vec::new();
    for point in points {
        while let [.., a, b] = hull[..] {
            let turn = (b.at - a.at) * side * (point.ahead - a.ahead)
                - (point.at - a.at) * side * (b.ahead - a.ahead);
            if turn > 0.0 {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// The maximum of a concave function.
fn concave_maximum(mut from: f64, mut to: f64, of: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..STEPS {
        let (a, b) = (from + (to - from) / 3.0, to - (to - from) / 3.0);
        if of(a) < of(b) { from = a } else { to = b }
    }
    (from + to) / 2.0
}

/// The last valid place on the way from a valid one to `end`.
fn bisect_edge(mut good: f64, end: f64, is_good: impl Fn(f64) -> bool) -> f64 {
    if is_good(end) {
        return end;
    }
    let mut bad = end;
    for _ in 0..STEPS {
        let middle = (good + bad) / 2.0;
        if is_good(middle) { good = middle } else { bad = middle }
    }
    good
}
