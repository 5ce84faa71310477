//! `dta-translator`: see [`dta_translator::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    dta_translator::cli::main()
}
