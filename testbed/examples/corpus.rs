//! Writes the seeds of all targets into folders named for them, where libFuzzer looks: `corpus FOLDER`.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("usage: corpus FOLDER"));
    for target in dta_testbed::fuzz::TARGETS {
        let folder = folder.join(target.name);
        std::fs::create_dir_all(&folder)?;
        let seeds = (target.seeds)();
        for (number, bytes) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("vector-{number}")), bytes)?;
        }
        println!("{} seeds in {}", seeds.len(), folder.display());
    }
    Ok(())
}
