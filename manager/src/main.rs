//! The `dta-manager` program; everything is in the library.

fn main() -> std::process::ExitCode {
    dta_manager::cli::main()
}
