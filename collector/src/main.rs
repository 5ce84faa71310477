//! The program `dta-collector`. Everything is in the library, so that the manager can run it, too.

fn main() -> std::process::ExitCode {
    dta_cli::choose_name_sources();
    dta_collector::cli::main()
}
