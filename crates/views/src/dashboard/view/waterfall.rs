//! The page that answers "where did my reports go?".

use dta_cli::number::{format_grouped, format_percent};
use dta_cli::table::words_in_lines;
use dta_proto::counter::{self, CounterStep};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::DrawContext;
use super::text::{gauge_bar, per_second, truncate_text};
use crate::dashboard::app::{App, Snapshot};
use crate::stores::StoreRow;
use crate::waterfall::{self, LinkLoss, WaterfallRow};
use dta_cli::number::format_duration;

/// From this width on, rates and bars are shown.
const WIDE: usize = 72;
const VALUE: usize = 13;
const SHARE: usize = 9;
const RATE: usize = 11;
const BAR: usize = 6;

/// Translators report their counters every second. From this age on, in seconds, a node counts as silent.
const SILENT: f64 = 10.0;

pub(super) fn draw_waterfall(
    frame: &mut Frame,
    area: Rect,
    app: &mut App,
    look: &DrawContext,
) -> Option<String> {
    let now = app.now.as_ref()?;
    let columns = Columns::for_width(usize::from(area.width));
    let mut lines = Vec::new();
    if !now.live {
        let text = "Memory alone has no counters: attach to the collector's address.";
        lines.push(Line::from(text).style(look.theme.dim));
    } else {
        lines.push(columns.header_line(look));
    }
    let shown_for = look.now.saturating_duration_since(now.taken);
    for row in waterfall::waterfall_rows(&now.nodes, &app.rates, app.all) {
        match row {
            WaterfallRow::Node { name, age } => {
                lines.push(node_line(name, age.map(|age| age + shown_for.as_secs_f64()), look));
            }
            WaterfallRow::Counter { node, name, value, share, rate } => {
                let spark = app.history.sparkline(&node, &name, columns.spark);
                lines.extend(
                    columns.counter_lines(&CounterLine { node, name, value, share, rate, spark }, look),
                );
            }
            WaterfallRow::Link(loss) => lines.extend(columns.link_lines(&loss, look)),
        }
    }
    lines.extend(columns.memory_lines(now, look));
    let note = super::draw_lines(frame, area, lines, &mut app.scroll[0]);
    let narrow = (columns.spark == 0).then(|| format!("not shown below {WIDE} columns: rates and bars"));
    match (narrow, note) {
        (Some(narrow), Some(note)) => Some(format!("{note}  {narrow}")),
        (narrow, note) => narrow.or(note),
    }
}

fn node_line<'a>(name: String, age: Option<f64>, look: &DrawContext) -> Line<'a> {
    let mut spans = vec![Span::styled(name, look.theme.header)];
    if let Some(age) = age {
        let text =
            format!("  seen {} ago", format_duration(std::time::Duration::from_secs_f64(age.max(0.0))));
        spans.push(Span::styled(text, look.theme.dim));
        if age >= SILENT {
            spans.push(Span::styled("  silent: it stopped, or its session ended", look.theme.lost));
        }
    }
    Line::from(spans)
}

struct CounterLine {
    node: String,
    name: String,
    value: u64,
    share: Option<f64>,
    rate: Option<f64>,
    spark: String,
}

struct Columns {
    width: usize,
    label: usize,
    /// 0 if there is no room for rates and bars.
    spark: usize,
}

impl Columns {
    fn for_width(width: usize) -> Self {
        if width < WIDE {
            return Self { width, label: width.saturating_sub(VALUE + SHARE), spark: 0 };
        }
        let rest = width - VALUE - SHARE - RATE - BAR - 2;
        // The longest names have 40 characters.
        let label = (rest * 3 / 4).min(44);
        Self { width, label, spark: (rest - label).min(crate::dashboard::history::RATES) }
    }

    fn header_line<'a>(&self, look: &DrawContext) -> Line<'a> {
        let (label, spark) = (self.label, self.spark);
        let mut text = format!("{:<label$}{:>VALUE$}{:>SHARE$}", "", "in all", "share");
        if spark > 0 {
            text += &format!("{:>RATE$}  {:>BAR$}", "per second", "");
            text += &format!("{:>spark$}", if spark < 11 { "minute" } else { "last minute" });
        }
        Line::from(text).style(look.theme.dim)
    }

    /// The line of a counter; for lost reports with the reason.
    fn counter_lines<'a>(&self, c: &CounterLine, look: &DrawContext) -> Vec<Line<'a>> {
        let found = counter::find_counter(&c.node, &c.name);
        let step = found.map(|found| found.definition.step);
        let lost = matches!(step, Some(CounterStep::Dropped | CounterStep::Lost | CounterStep::Discarded))
            && c.value > 0;
        let mark = match step {
            _ if lost => '✗',
            Some(CounterStep::Executed) if c.value > 0 => '✓',
            _ => ' ',
        };
        let style = if lost { look.theme.lost } else { ratatui::style::Style::new() };
        let name = truncate_text(&format!("  {mark} {}", c.name), self.label);
        let text = format!(
            "{name:<label$}{:>VALUE$}{:>SHARE$}",
            format_grouped(c.value),
            c.share.map(format_percent).unwrap_or_default(),
            label = self.label,
        );
        let mut spans = vec![Span::styled(text, style)];
        if self.spark > 0 {
            spans.push(Span::styled(format!("{:>RATE$}", per_second(c.rate)), style));
            let bar = c.share.map_or_else(|| " ".repeat(BAR), |share| gauge_bar(share, BAR));
            spans.push(Span::styled(format!("  {bar}"), if lost { style } else { look.theme.bar }));
            spans.push(Span::styled(format!("{:>1$}", c.spark, self.spark), look.theme.bar));
        }
        let mut lines = vec![Line::from(spans)];
        if lost && let Some(found) = found {
            lines.extend(self.reason_lines(found.specific_meaning(), look));
        }
        lines
    }

    /// Losses on the link to the next stage.
    fn link_lines<'a>(&self, loss: &LinkLoss, look: &DrawContext) -> Vec<Line<'a>> {
        let name = truncate_text(&format!("↓ {}", loss.name), self.label);
        let text = format!("{name:<label$}{:>VALUE$}", format_grouped(loss.lost), label = self.label);
        let mut lines =
            vec![Line::from(text).style(if loss.lost > 0 { look.theme.lost } else { look.theme.dim })];
        lines.extend(self.reason_lines(&loss.how, look));
        lines
    }

    /// What memory holds out of everything written into it.
    fn memory_lines<'a>(&self, now: &Snapshot, look: &DrawContext) -> Vec<Line<'a>> {
        let stores: Vec<StoreRow> =
            now.stores.iter().filter_map(|info| StoreRow::try_from(info.clone()).ok()).collect();
        let stages = waterfall::stored::stored_stages(&stores);
        let mut lines = Vec::new();
        if !stages.is_empty() {
            lines.push(node_line("memory".to_owned(), None, look));
        }
        for stage in stages {
            let mark = if stage.losses.is_empty() { '✓' } else { ' ' };
            lines.push(self.estimate_line(&format!("  {mark} {}", stage.name), stage.count));
            lines.extend(stage.estimated_by.iter().flat_map(|how| self.reason_lines(how, look)));
            for loss in stage.losses {
                lines.push(self.estimate_line(&format!("    {}", loss.name), loss.count));
                lines.extend(self.reason_lines(&loss.meaning, look));
            }
        }
        lines
    }

    fn estimate_line<'a>(&self, name: &str, count: u64) -> Line<'a> {
        let label = self.label;
        let count = format!("about {}", format_grouped(count));
        Line::from(format!("{:<label$}{count:>VALUE$}", truncate_text(name, label)))
    }

    fn reason_lines<'a>(&self, words: &str, look: &DrawContext) -> Vec<Line<'a>> {
        let lines = words_in_lines(words, self.width.saturating_sub(8)).into_iter();
        lines.map(|line| Line::from(format!("      {line}")).style(look.theme.dim)).collect()
    }
}
