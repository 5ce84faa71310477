//! The help, shown over a page.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear};

use super::{Theme, draw_lines, text};

/// What keys do, and what figures mean. A line that does not begin with a blank is a title.
const TEXT: &str = "\
Everywhere
  1-8, Tab, Shift-Tab   pages
  ? or F1               this help
  r                     refresh now; try again now
  [ ]                   Query, Top and flows: an epoch back, forth
  }                     back to now
  Ctrl-L                redraw the screen
  q, Ctrl-C             quit (on Query: Ctrl-C)
  Esc                   back from a flow, and from Query
  Ctrl-Z                to the shell; fg comes back
Waterfall
  ↑↓ PgUp PgDn Home End scroll
  a                     all counters, including zeros
  ✗ ✓                   lost here, and why; written to memory
  share                 of what the same node received
  per second            by the node's own clock, over a second
  last minute           (minute) a bar per second, scaled to the highest
Stores
  ↑↓ or j k             select a store; other pages show it
  Enter                 its memory
  load                  keys per slot; batches or columns in use
  survive               share of keys that still have an answer
  N                     copies of a report, and a better number
  writes/s              frames that translators send to it
Sessions
  ↑↓ PgUp PgDn Home End scroll
Memory
  ↑↓ PgUp PgDn Home End scroll        ←→ other store
  g                     go to an element by its number
  f                     follow writes: show what changed last
  Following compares memory between two looks. It cannot see
  when something was written in between, nor that the same
  bytes were written again.
Lists
  ←→ Home End           other list; the newest entry is first
Query
  Enter                 ask: STORE KEY [EPOCH]; trace FLOW: its path
  ↑                     the last query again
Events
  ↑↓ PgUp PgDn Home End select an event, below in full
                        times are UTC: --at takes them with a Z
  ←→                    only one kind; all kinds
  Enter                 the flow of the event as a path
Top
  ↑↓ PgUp PgDn Home End select a flow
  ←→                    by latency, drops, packets, bytes, reports
  Enter                 the flow as a path; Enter or Esc: back
Old figures are dim; the first line says how old. While the
collector does not answer, the dashboard tries again; the
second line from below says when.";

pub(super) fn draw_help(frame: &mut Frame, area: Rect, top: &mut usize, theme: &Theme) {
    let width = area.width.min(68);
    let height = (TEXT.lines().count() as u16 + 2).min(area.height.saturating_sub(2));
    let over = Rect { x: (area.width - width) / 2, y: 1, width, height };
    let block = Block::bordered().title(" help: ↑↓ scroll, any other key closes ");
    let inner = block.inner(over);
    frame.render_widget(Clear, over);
    frame.render_widget(block, over);
    let lines = TEXT.lines().map(|line| {
        let line_of = Line::from(text::truncate_text(line, usize::from(inner.width)));
        let is_title = !line.starts_with(' ') && line.split(' ').count() == 1;
        if is_title { line_of.style(theme.header) } else { line_of }
    });
    draw_lines(frame, inner, lines.collect(), top);
}
