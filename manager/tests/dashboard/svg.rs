//! A terminal's screen as a picture (SVG): text with the colours of its codes.

use std::fmt::Write;

/// Pixels of a character, and around the screen.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 17.0;
const EDGE: f64 = 10.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Style {
    /// One of the 16 colours of terminals.
    colour: Option<u8>,
    bold: bool,
    faint: bool,
    reversed: bool,
}

/// The screen as tmux captures it (`capture-pane -p -e`), `columns` wide.
pub(crate) fn picture(title: &str, screen: &str, columns: usize) -> String {
    let lines: Vec<&str> = screen.lines().collect();
    let (width, height) = (columns as f64 * WIDTH + 2.0 * EDGE, lines.len() as f64 * HEIGHT + 2.0 * EDGE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.1} {height:.1}\" role=\"img\">\n\
         <title>{}</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n\
         <g font-family=\"'DejaVu Sans Mono','Liberation Mono',Menlo,Consolas,monospace\" font-size=\"14\" \
         fill=\"{TEXT}\" xml:space=\"preserve\">\n",
        escaped(title)
    );
    let mut style = Style::default();
    for (row, line) in lines.iter().enumerate() {
        let mut column = 0;
        for (run_style, text) in runs(line, &mut style) {
            draw(&mut svg, row, column, run_style, &text);
            column += text.chars().count();
        }
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

const BACKGROUND: &str = "#15181e";
const TEXT: &str = "#d7dae0";

fn colour(of: u8) -> &'static str {
    match of {
        1 => "#f2777a",
        2 => "#8fd18f",
        3 => "#e6c35c",
        4 => "#7aa6da",
        5 => "#c397d8",
        6 => "#66c2cd",
        8 => "#7d8590",
        _ => TEXT,
    }
}

fn draw(svg: &mut String, row: usize, column: usize, style: Style, text: &str) {
    if text.trim().is_empty() && !style.reversed {
        return;
    }
    let (x, top) = (EDGE + column as f64 * WIDTH, EDGE + row as f64 * HEIGHT);
    let length = text.chars().count() as f64 * WIDTH;
    let ink = style.colour.map_or(TEXT, colour);
    let (ink, paper) = if style.reversed { (BACKGROUND, Some(ink)) } else { (ink, None) };
    if let Some(paper) = paper {
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"{HEIGHT}\" fill=\"{paper}\"/>"
        );
    }
    // Blanks at the ends move the place, and are not drawn.
    let first = text.chars().take_while(|c| *c == ' ').count();
    let shown = text.trim_matches(' ');
    if shown.is_empty() {
        return;
    }
    let (x, y) = (x + first as f64 * WIDTH, top + 0.76 * HEIGHT);
    let length = shown.chars().count() as f64 * WIDTH;
    let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\"");
    if ink != TEXT {
        let _ = write!(svg, " fill=\"{ink}\"");
    }
    if style.bold {
        svg.push_str(" font-weight=\"bold\"");
    }
    if style.faint {
        svg.push_str(" opacity=\"0.6\"");
    }
    let _ = writeln!(svg, ">{}</text>", escaped(shown));
}

/// Whether a screen has colours.
pub(crate) fn has_colours(screen: &str) -> bool {
    let mut style = Style::default();
    screen.lines().any(|line| runs(line, &mut style).iter().any(|(style, _)| style.colour.is_some()))
}

/// The colours of a text wherever it is on a screen.
pub(crate) fn colours(screen: &str, text: &str) -> Vec<Option<u8>> {
    let mut style = Style::default();
    let all = screen.lines().flat_map(|line| runs(line, &mut style)).collect::<Vec<_>>();
    all.into_iter().filter(|(_, run)| run.contains(text)).map(|(style, _)| style.colour).collect()
}

/// Text of one style after the other. The style goes on in the next line.
fn runs(line: &str, style: &mut Style) -> Vec<(Style, String)> {
    let mut runs: Vec<(Style, String)> = Vec::new();
    let mut rest = line;
    while let Some(start) = rest.find("\x1b[") {
        add(&mut runs, *style, &rest[..start]);
        let code = &rest[start + 2..];
        let end = code.find(|c: char| c.is_ascii_alphabetic()).expect("a code ends");
        assert_eq!(&code[end..=end], "m", "only styles are captured: {line:?}");
        apply(style, &code[..end]);
        rest = &code[end + 1..];
    }
    add(&mut runs, *style, rest);
    runs
}

fn add(runs: &mut Vec<(Style, String)>, style: Style, text: &str) {
    match runs.last_mut() {
        Some((last, so_far)) if *last == style => so_far.push_str(text),
        _ if !text.is_empty() => runs.push((style, text.to_owned())),
        _ => {}
    }
}

fn apply(style: &mut Style, codes: &str) {
    let mut codes = codes.split([';', ':']).map(|code| code.parse::<u8>().unwrap_or(0));
    while let Some(code) = codes.next() {
        match code {
            0 => *style = Style::default(),
            1 => style.bold = true,
            2 => style.faint = true,
            7 => style.reversed = true,
            22 => (style.bold, style.faint) = (false, false),
            27 => style.reversed = false,
            30..=37 => style.colour = Some(code - 30),
            38 | 48 => {
                // 5 and the number of a colour.
                let is_palette = codes.next() == Some(5);
                let number = codes.next();
                if code == 38 && is_palette {
                    style.colour = number;
                }
            }
            39 => style.colour = None,
            90..=97 => style.colour = Some(code - 90 + 8),
            _ => {}
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[test]
fn styles_become_shapes() {
    let screen = "plain \x1b[1mbold\x1b[0m <&>\n\x1b[7m 1 Stores \x1b[27m\x1b[38;5;8mdim\x1b[39m\n";
    let svg = picture("a title", screen, 20);
    for expected in [
        ">plain</text>",
        "font-weight=\"bold\">bold</text>",
        "&lt;&amp;&gt;</text>",
        "fill=\"#15181e\">1 Stores</text>",
        "fill=\"#7d8590\">dim</text>",
        "<title>a title</title>",
    ] {
        assert!(svg.contains(expected), "{expected} in {svg}");
    }
    assert_eq!(svg.matches("<rect").count(), 2);
}
