//! The programs do what the documents say of all programs.

use std::path::Path;

#[test]
fn the_page_of_exit_statuses_has_the_programs_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/exit-status.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows: Vec<&str> =
        page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| status")).collect();
    let should: Vec<String> = dta_cli::status::STATUSES
        .iter()
        .map(|(status, meaning)| format!("| {status} | {meaning} |"))
        .collect();
    assert_eq!(rows, should);
}
