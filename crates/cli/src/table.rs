//! Tables. On a terminal they fit its width without breaking words; in a file or pipe each row is one line,
//! however long, with two spaces between columns and no rules.

use std::fmt;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, TableComponent, Width, presets};

use crate::escape::escape_hidden;
use crate::terminal;

const SPACE: usize = 2;

/// Colour of a cell, if the output has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Green,
    Yellow,
    Red,
}

/// Text of a cell, possibly several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    colour: Option<Colour>,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell { text: escape_cell(text), colour: None }
    }
}

/// Names from elsewhere must neither change the direction of a row nor colour it.
fn escape_cell(text: impl Into<String>) -> String {
    let text = text.into();
    match escape_hidden(&text) {
        std::borrow::Cow::Borrowed(_) => text,
        std::borrow::Cow::Owned(escaped) => escaped,
    }
}

impl Cell {
    pub fn with_colour(text: impl Into<String>, colour: Colour) -> Self {
        Cell { text: escape_cell(text), colour: Some(colour) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputStyle {
    /// Width of the terminal; `None` if there is none.
    pub columns: Option<u16>,
    pub colours: bool,
}

impl OutputStyle {
    pub fn for_stdout() -> Self {
        OutputStyle {
            columns: terminal::stdout_columns(),
            colours: terminal::has_colours(&std::io::stdout()),
        }
    }

    pub fn for_terminal(columns: u16) -> Self {
        OutputStyle { columns: Some(columns), colours: false }
    }

    /// A file or a pipe.
    pub const PIPE: OutputStyle = OutputStyle { columns: None, colours: false };
}

#[derive(Clone, Debug)]
pub struct TextTable {
    header: Vec<String>,
    right: Vec<bool>,
    rows: Vec<Vec<Cell>>,
}

impl TextTable {
    /// A table without rows. `right` lists the columns of numbers, which are right-aligned and never wrapped.
    pub fn new(header: &[&str], right: &[usize]) -> Self {
        let header: Vec<_> = header.iter().map(ToString::to_string).collect();
        let right = (0..header.len()).map(|column| right.contains(&column)).collect();
        TextTable { header, right, rows: Vec::new() }
    }

    /// Adds a row with a cell for each column of the header.
    pub fn add_row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        row.resize_with(self.header.len(), || Cell::from(""));
        self.rows.push(row);
    }

    pub fn render_for(&self, look: OutputStyle) -> String {
        let Some(columns) = look.columns.map(usize::from) else {
            return self.render_plain();
        };
        let sum = |widths: &[usize]| widths.iter().map(|width| width + SPACE).sum::<usize>();
        let least: Vec<usize> = (0..self.header.len()).map(|column| self.minimum_width(column)).collect();
        if sum(&least) <= columns {
            self.render_framed(&least, columns, look)
        } else {
            self.render_blocks(columns)
        }
    }

    /// A column's texts including the header.
    fn column_texts(&self, column: usize) -> impl Iterator<Item = &str> {
        let cells = self.rows.iter().map(move |row| row[column].text.as_str());
        std::iter::once(self.header[column].as_str()).chain(cells)
    }

    fn minimum_width(&self, column: usize) -> usize {
        let width = |text: &str| match self.right[column] {
            true => text.lines().map(display_width).max().unwrap_or(0),
            false => text.split_whitespace().map(display_width).max().unwrap_or(0),
        };
        self.column_texts(column).map(width).max().unwrap_or(0)
    }

    /// For a terminal: rules above, below, and under the header; words wrapped.
    fn render_framed(&self, least: &[usize], columns: usize, look: OutputStyle) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(columns.try_into().unwrap_or(u16::MAX));
        if look.colours {
            table.enforce_styling()
        } else {
            table.force_no_tty()
        };
        // Rules between rows would double the height of every table.
        table.remove_style(TableComponent::HorizontalLines).remove_style(TableComponent::MiddleIntersections);
        table.set_header(&self.header);
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| {
                let text = comfy_table::Cell::new(&cell.text);
                match cell.colour {
                    None => text,
                    Some(Colour::Green) => text.fg(comfy_table::Color::Green),
                    Some(Colour::Yellow) => text.fg(comfy_table::Color::Yellow),
                    Some(Colour::Red) => text.fg(comfy_table::Color::Red),
                }
            }));
        }
        for (number, least) in least.iter().enumerate() {
            if let Some(column) = table.column_mut(number) {
                // One of the two spaces between columns belongs to the column, the other replaces a rule.
                let width = u16::try_from(least + SPACE - 1).unwrap_or(u16::MAX);
                column
                    .set_padding((0, 1))
                    .set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
                if self.right[number] {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        table.to_string()
    }

    /// For programs such as grep and awk: one line per row.
    fn render_plain(&self) -> String {
        let one_line = |text: &str| text.lines().collect::<Vec<_>>().join(" ");
        let rows: Vec<Vec<String>> = std::iter::once(self.header.clone())
            .chain(self.rows.iter().map(|row| row.iter().map(|cell| one_line(&cell.text)).collect()))
            .collect();
        let width = |column: usize| rows.iter().map(|row| display_width(&row[column])).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().enumerate().map(|(column, text)| {
                let space = " ".repeat(widths[column] - display_width(text));
                if self.right[column] { space + text } else { text.clone() + &space }
            });
            cells.collect::<Vec<_>>().join(&" ".repeat(SPACE)).trim_end().to_owned()
        };
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// For a terminal that is too narrow: each row as a block, with one line per cell, or several for long
    /// cells.
    fn render_blocks(&self, columns: usize) -> String {
        let names = self.header.iter().map(|name| display_width(name)).max().unwrap_or(0);
        let line = |(name, cell): (&String, &Cell)| {
            let begin = names + SPACE;
            let lines = words_in_lines(&cell.text, columns.saturating_sub(begin));
            let space = " ".repeat(begin - display_width(name));
            let text = lines.join(&format!("\n{}", " ".repeat(begin)));
            (!text.is_empty()).then(|| format!("{name}{space}{text}"))
        };
        let block =
            |row: &Vec<Cell>| self.header.iter().zip(row).filter_map(line).collect::<Vec<_>>().join("\n");
        self.rows.iter().map(block).collect::<Vec<_>>().join("\n\n")
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render_for(OutputStyle::for_stdout()))
    }
}

/// Wraps the words of a text at a width. A longer word gets its own line.
pub fn words_in_lines(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if display_width(line) + 1 + display_width(word) <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn display_width(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(&["key", "found, and what to do", "count"], &[2]);
        table.add_row([
            "10.0.0.1:5000->10.0.0.2:5000/udp",
            "one two three four five six seven eight",
            "1,234",
        ]);
        table.add_row(["abcd", "nothing", "5"]);
        table
    }

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn no_word_is_broken_at_any_width() {
        let whole = words(&table().render_for(OutputStyle::PIPE));
        for columns in 1..=120 {
            let text = table().render_for(OutputStyle::for_terminal(columns));
            let drawn = words(&text);
            for word in &whole {
                assert!(drawn.contains(word), "{word} is broken at {columns}:\n{text}");
            }
            // 32 for a key, 7 for a word, 5 for a number, and the space after each.
            if columns >= 50 {
                let widest = text.lines().map(display_width).max().unwrap();
                assert!(widest <= usize::from(columns), "{widest} at {columns}:\n{text}");
            }
        }
    }

    #[test]
    fn a_name_cannot_turn_the_direction_of_a_row() {
        let mut table = TextTable::new(&["name", "count"], &[1]);
        table.add_row(["leaf\u{202e}1", "5"]);
        for look in [
            OutputStyle::PIPE,
            OutputStyle { columns: Some(80), colours: true },
            OutputStyle::for_terminal(9),
        ] {
            let text = table.render_for(look);
            assert!(text.contains("leaf\\u202e1") && !text.contains('\u{202e}'), "{text}");
        }
    }

    #[test]
    fn in_a_pipe_a_row_is_a_line() {
        let text = table().render_for(OutputStyle::PIPE);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(
            lines[2],
            "abcd                              nothing                                      5"
        );
        assert!(text.is_ascii(), "no lines are drawn: {text}");
    }

    #[test]
    fn what_does_not_fit_is_shown_as_blocks() {
        let text = table().render_for(OutputStyle::for_terminal(40));
        assert!(text.starts_with("key                    10.0.0.1:5000->10.0.0.2:5000/udp\n"), "{text}");
        assert!(text.contains("\n\nkey                    abcd\n"), "{text}");
        let wrapped = "found, and what to do  one two three\n                       four five six\n";
        assert!(text.contains(wrapped), "{text}");
    }

    #[test]
    fn colours_are_there_only_where_they_are_wanted() {
        let mut table = TextTable::new(&["a"], &[]);
        table.add_row([Cell::with_colour("wrong", Colour::Red)]);
        let escapes = |colours| table.render_for(OutputStyle { columns: Some(80), colours }).contains('\x1b');
        assert!(escapes(true) && !escapes(false));
        assert!(!table.render_for(OutputStyle { columns: None, colours: true }).contains('\x1b'));
    }
}
