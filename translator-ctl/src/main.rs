//! `dta-translator`: see [`dta_translator::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    dta_cli::choose_name_sources();
    dta_translator::cli::main()
}
