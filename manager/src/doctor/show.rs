//! Prints findings for people.

use dta_cli::table::{Cell, Colour, OutputStyle, TextTable};

use super::{Finding, Level};

/// A table with the advice below each finding, and the conclusion below the table.
pub fn findings_table(findings: &[Finding], verdict: &str, look: OutputStyle) -> String {
    let mut table = TextTable::new(&["", "check", "found, and what to do"], &[]);
    for finding in findings {
        let (mark, color) = match finding.level {
            Level::Ok => ("ok", Colour::Green),
            Level::Note => ("note", Colour::Yellow),
            Level::Problem => ("FAIL", Colour::Red),
        };
        let text = match &finding.advice {
            Some(advice) => format!("{}\n→ {advice}", finding.found),
            None => finding.found.clone(),
        };
        table.add_row([Cell::with_colour(mark, color), Cell::from(finding.check), Cell::from(text)]);
    }
    format!("{}\n{verdict}", table.render_for(look))
}

pub fn machine_verdict(findings: &[Finding]) -> String {
    match count_problems(findings) {
        0 => "The embedded testbed runs here: dta-manager run-testbed".to_owned(),
        n => format!("{n} of the above keep the testbed from running."),
    }
}

pub fn session_verdict(findings: &[Finding]) -> String {
    let notes = findings.iter().filter(|f| f.level == Level::Note).count();
    match count_problems(findings) {
        0 if notes == 1 => {
            "No cause found that would stop every report; the note above may be about some of them."
                .to_owned()
        }
        0 if notes > 1 => {
            format!(
                "No cause found that would stop every report; the {notes} notes above may be about some of them."
            )
        }
        0 => {
            "No cause found that would stop reports; `dta-collector stats` shows how far they get.".to_owned()
        }
        1 => "The first line is the likely cause.".to_owned(),
        n => format!("{n} likely causes. Begin with the first: it may explain those below it."),
    }
}

fn count_problems(findings: &[Finding]) -> usize {
    findings.iter().filter(|f| f.level == Level::Problem).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_80_columns_and_json_has_every_field() {
        let findings = [
            Finding::new_ok("cpu", "CRC in hardware"),
            Finding::new_note("hugepages", "none reserved", "to do ".repeat(20)),
            Finding::new_problem("loopback", "down", "ip link set lo up"),
        ];
        let text = findings_table(&findings, &machine_verdict(&findings), OutputStyle::for_terminal(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("1 of the above"));
        assert_eq!(session_verdict(&findings), "The first line is the likely cause.");
        assert!(session_verdict(&findings[..2]).contains("the note above"));
        assert!(session_verdict(&findings[..1]).contains("dta-collector stats"));
        let json = serde_json::to_value(&findings).unwrap();
        assert_eq!(json[1]["level"], "note");
        assert_eq!(json[0]["advice"], serde_json::Value::Null);
    }
}
