//! The `dta-manager` program; everything is in the library.

fn main() -> std::process::ExitCode {
    dta_cli::choose_name_sources();
    dta_manager::cli::main()
}
