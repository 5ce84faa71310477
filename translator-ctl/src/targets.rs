//! The targets of configured switches.

use dta_files::lock::Lock;
use dta_switch::pipeline::{REPORTER, TRANSLATOR};
use dta_switch::reporter::ReporterSwitch;
use dta_switch::state::StateFile;
use dta_switch::{P4Switch, Target, TargetError, runtime};

use crate::config::{Config, P4, TranslatorConfig};
use crate::software::Remote;

/// A configured switch of any type.
pub type AnySwitch = Box<dyn Target>;

/// The switch of this name. Nothing is requested yet.
pub fn any_switch(config: &Config, switch: &str) -> anyhow::Result<AnySwitch> {
    Ok(match p4_switch(config, switch)? {
        Some(p4) => Box::new(p4),
        None => Box::new(Remote::new(
            &config.translator_of(switch)?,
            config.find_switch(switch)?.control_address(),
        )?),
    })
}

/// The P4 switch of this name; `None` for a software translator. Nothing is requested yet.
pub fn p4_switch(config: &Config, switch: &str) -> anyhow::Result<Option<P4Switch>> {
    let translator = config.translator_of(switch)?;
    let Some((platform, p4)) = config.find_switch(switch)?.p4_config() else { return Ok(None) };
    may_have_keys(p4, &translator)?;
    let options = p4.translator_options(switch, &translator);
    let runtime = runtime::open(platform, &options.switch, &TRANSLATOR)?;
    Ok(Some(P4Switch::new(runtime, options)))
}

/// Keeps other processes from the state of a P4 switch while it is watched.
///
/// # Errors
/// An invalid configuration, or a state file that another process watches or another translator owns.
pub fn lock_state(config: &Config, switch: &str) -> anyhow::Result<Option<Lock>> {
    let Some((_, p4)) = config.find_switch(switch)?.p4_config() else { return Ok(None) };
    let session = config.translator_of(switch)?.name;
    Ok(Some(StateFile::new(p4.state.as_deref(), switch, &session).lock_state_file()?))
}

/// The reporter switch of this name; `None` if it is not a reporter. Nothing is requested yet, but this needs
/// a runtime.
pub fn reporter_switch(config: &Config, switch: &str) -> anyhow::Result<Option<ReporterSwitch>> {
    let (Some((platform, _)), Some((p4, settings))) =
        (config.find_switch(switch)?.p4_config(), config.reporter_of(switch)?)
    else {
        return Ok(None);
    };
    let options = p4.switch_options();
    let runtime = runtime::open(platform, &options, &REPORTER)?;
    Ok(Some(ReporterSwitch::new(runtime, switch, &options, &settings)))
}

/// Whether rkeys may be sent to the switch, which has no TLS.
fn may_have_keys(p4: &P4, translator: &TranslatorConfig) -> Result<(), TargetError> {
    if translator.tls.is_some() && !p4.insecure && !is_local_address(&p4.control) {
        return Err(TargetError::Refused(format!(
            "the rkeys for the collector's memory came over TLS and would go to {} without it: set \
            `insecure = true` if nobody else is on that network",
            p4.control
        )));
    }
    Ok(())
}

/// Whether an address is on this host.
fn is_local_address(control: &str) -> bool {
    let host = control.trim_start_matches("http://").rsplit_once(':').map_or(control, |(host, _)| host);
    host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}
