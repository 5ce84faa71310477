//! The page of stores.

use dta_cli::number::{bytes, grouped, percent};
use dta_proto::control::StoreInfo;
use dta_proto::store::StoreSpec;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};

use super::Look;
use super::text::{cut, gauge, short};
use crate::dashboard::app::{App, WRITTEN};
use crate::dashboard::history::RATES;

/// A column of the table.
struct Column {
    title: &'static str,
    width: u16,
    /// The least terminal width at which it is shown.
    from: u16,
    /// Whether a note mentions it when it is hidden; bars only repeat numbers.
    said: bool,
    cell: fn(&App, &StoreInfo, &StoreSpec) -> String,
}

const SPARK: usize = 20;

const COLUMNS: [Column; 9] = [
    Column { title: "store", width: 12, from: 0, said: true, cell: |_, _, spec| cut(&spec.name, 12) },
    Column { title: "kind", width: 13, from: 62, said: true, cell: |_, _, spec| spec.primitive().into() },
    Column { title: "size", width: 8, from: 71, said: true, cell: |_, info, _| bytes(info.length) },
    Column { title: "", width: 8, from: 80, said: false, cell: |_, info, _| gauge(info.load, 8) },
    Column { title: "load", width: 7, from: 0, said: true, cell: |_, info, _| format!("{:.3}", info.load) },
    Column {
        title: "writes/s",
        width: 9,
        from: 0,
        said: true,
        cell: |app, _, spec| app.written(&spec.name).map_or("-".into(), short),
    },
    Column {
        title: "",
        width: SPARK as u16,
        from: 101,
        said: false,
        cell: |app, _, spec| app.history.sparkline(&spec.name, WRITTEN, SPARK),
    },
    Column {
        title: "survive",
        width: 8,
        from: 0,
        said: true,
        cell: |_, info, _| info.survival.map_or("-".into(), percent),
    },
    Column { title: "N", width: 8, from: 49, said: true, cell: |_, info, spec| advice(info, spec) },
];

/// Least lines of the table above the details.
const LEAST_TABLE: u16 = 6;
const DETAILS: u16 = 7;

pub(super) fn draw(frame: &mut Frame, area: Rect, app: &App, look: &Look) -> Option<String> {
    let now = app.now.as_ref()?;
    let (shown, hidden): (Vec<&Column>, Vec<&Column>) = COLUMNS.iter().partition(|c| c.from <= area.width);
    let has_details = area.height >= LEAST_TABLE + DETAILS;
    let details = Constraint::Length(if has_details { DETAILS } else { 0 });
    let [table, detail] = Layout::vertical([Constraint::Min(3), details]).areas(area);

    let rows = now.stores.iter().map(|info| {
        let spec = info.store.as_ref().and_then(|store| StoreSpec::try_from(store).ok());
        let cell = |column: &&Column| {
            let text = spec.as_ref().map_or_else(|| "?".into(), |spec| (column.cell)(app, info, spec));
            // A column without a title is a bar.
            if column.title.is_empty() { Cell::from(text).style(look.theme.bar) } else { Cell::from(text) }
        };
        Row::new(shown.iter().map(cell).collect::<Vec<_>>())
    });
    let widths = shown.iter().map(|column| Constraint::Length(column.width));
    let header = Row::new(shown.iter().map(|column| column.title)).style(look.theme.header);
    let widget = Table::new(rows, widths).header(header).row_highlight_style(look.theme.selected);
    let mut state = TableState::default().with_selected(Some(app.store));
    frame.render_stateful_widget(widget, table, &mut state);
    if has_details {
        draw_details(frame, detail, app, look);
    }

    let mut missing: Vec<&str> =
        hidden.iter().filter(|column| column.said).map(|column| column.title).collect();
    if !has_details {
        missing.push("details of the selected store");
    }
    if !missing.is_empty() {
        return Some(format!("not shown, 80x24 has room: {}", missing.join(", ")));
    }
    let room = usize::from(table.height.saturating_sub(1));
    (now.stores.len() > room).then(|| {
        format!("stores {} to {} of {}: ↑↓", state.offset() + 1, state.offset() + room, now.stores.len())
    })
}

fn draw_details(frame: &mut Frame, area: Rect, app: &App, look: &Look) {
    let Some(info) = app.now.as_ref().and_then(|now| now.stores.get(app.store)) else { return };
    let mut lines = vec![
        Line::from(format!(
            "{} of {} in use, generation {}",
            grouped(info.used),
            grouped(info.capacity),
            info.generation
        )),
        Line::from(format!("memory: {}{}", info.memory, at_file(&info.file))),
    ];
    if let Some(spec) = app.spec() {
        lines.push(Line::from(format!("{} elements: {}", grouped(spec.elements()), spec.kind.shape())));
        match app.written(&spec.name) {
            Some(rate) => {
                lines.push(Line::from(format!("written: {} frames/s, in the last minute:", short(rate))))
            }
            None => lines.push(
                Line::from("written: unknown; no translator has reported lately").style(look.theme.dim),
            ),
        }
        let width = RATES.min(usize::from(area.width.saturating_sub(2)));
        lines.push(Line::from(Span::styled(
            app.history.sparkline(&spec.name, WRITTEN, width),
            look.theme.bar,
        )));
    }
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" selected store ")), area);
}

fn at_file(file: &str) -> String {
    if file.is_empty() { String::new() } else { format!(", {file}") }
}

/// N, and the better one if there is one.
fn advice(info: &StoreInfo, spec: &StoreSpec) -> String {
    let Some(n) = spec.redundancy() else { return "-".into() };
    match info.advised_redundancy {
        Some(advised) if advised != u32::from(n) => format!("{n}, try {advised}"),
        _ => n.to_string(),
    }
}
