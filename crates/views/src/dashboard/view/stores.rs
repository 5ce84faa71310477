//! The page of stores.

use dta_cli::number::{format_bytes, format_grouped, format_percent};
use dta_proto::control::StoreInfo;
use dta_proto::store::StoreSpec;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};

use super::DrawContext;
use super::text::{gauge_bar, short_rate, truncate_text};
use crate::dashboard::app::{App, WRITTEN};
use crate::dashboard::history::RATES;

/// A column of the table.
struct StoreColumn {
    title: &'static str,
    width: u16,
    /// The least terminal width at which it is shown.
    from: u16,
    /// Whether a note mentions it when it is hidden; bars only repeat numbers.
    said: bool,
    cell: fn(&App, &StoreInfo, &StoreSpec) -> String,
}

const SPARK: usize = 20;

const COLUMNS: [StoreColumn; 9] = [
    StoreColumn {
        title: "store",
        width: 12,
        from: 0,
        said: true,
        cell: |_, _, spec| truncate_text(&spec.name, 12),
    },
    StoreColumn {
        title: "kind",
        width: 13,
        from: 62,
        said: true,
        cell: |_, _, spec| spec.primitive().into(),
    },
    StoreColumn {
        title: "size",
        width: 8,
        from: 71,
        said: true,
        cell: |_, info, _| format_bytes(info.length),
    },
    StoreColumn { title: "", width: 8, from: 80, said: false, cell: |_, info, _| gauge_bar(info.load, 8) },
    StoreColumn {
        title: "load",
        width: 7,
        from: 0,
        said: true,
        cell: |_, info, _| format!("{:.3}", info.load),
    },
    StoreColumn {
        title: "writes/s",
        width: 9,
        from: 0,
        said: true,
        cell: |app, _, spec| app.write_rate(&spec.name).map_or("-".into(), short_rate),
    },
    StoreColumn {
        title: "",
        width: SPARK as u16,
        from: 101,
        said: false,
        cell: |app, _, spec| app.history.sparkline(&spec.name, WRITTEN, SPARK),
    },
    StoreColumn {
        title: "survive",
        width: 8,
        from: 0,
        said: true,
        cell: |_, info, _| info.survival.map_or("-".into(), format_percent),
    },
    StoreColumn {
        title: "copies",
        width: 8,
        from: 49,
        said: true,
        cell: |_, info, spec| format_copies(info, spec, ""),
    },
];

/// Least lines of the table above the details.
const LEAST_TABLE: u16 = 6;
const DETAILS: u16 = 7;

pub(super) fn draw_stores(frame: &mut Frame, area: Rect, app: &App, look: &DrawContext) -> Option<String> {
    let now = app.now.as_ref()?;
    let (shown, hidden): (Vec<&StoreColumn>, Vec<&StoreColumn>) =
        COLUMNS.iter().partition(|c| c.from <= area.width);
    let has_details = area.height >= LEAST_TABLE + DETAILS;
    let details = Constraint::Length(if has_details { DETAILS } else { 0 });
    let [table, detail] = Layout::vertical([Constraint::Min(3), details]).areas(area);

    let rows = now.stores.iter().map(|info| {
        let spec = info.store.as_ref().and_then(|store| StoreSpec::try_from(store).ok());
        let cell = |column: &&StoreColumn| {
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

fn draw_details(frame: &mut Frame, area: Rect, app: &App, look: &DrawContext) {
    let Some(info) = app.now.as_ref().and_then(|now| now.stores.get(app.store)) else { return };
    let mut lines = vec![
        Line::from(format!(
            "{} of {} in use, generation {}",
            format_grouped(info.used),
            format_grouped(info.capacity),
            info.generation
        )),
        Line::from(format!("memory: {}{}", info.memory, file_suffix(&info.file))),
    ];
    if let Some(spec) = app.selected_store() {
        let copies = match spec.redundancy() {
            Some(_) => format!(", copies {}", format_copies(info, &spec, " suggested")),
            None => String::new(),
        };
        lines.push(Line::from(format!(
            "{} elements: {}{copies}",
            format_grouped(spec.element_count()),
            spec.kind.describe_layout()
        )));
        match app.write_rate(&spec.name) {
            Some(rate) => {
                lines.push(Line::from(format!("written: {} frames/s, in the last minute:", short_rate(rate))))
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

fn file_suffix(file: &str) -> String {
    if file.is_empty() { String::new() } else { format!(", {file}") }
}

/// Copies of a key, followed by `word`, and a better number if there is one.
fn format_copies(info: &StoreInfo, spec: &StoreSpec, word: &str) -> String {
    let Some(copies) = spec.redundancy() else { return "-".into() };
    match info.advised_redundancy {
        Some(advised) if advised != u32::from(copies) => format!("{copies} ({advised}{word})"),
        _ => copies.to_string(),
    }
}
