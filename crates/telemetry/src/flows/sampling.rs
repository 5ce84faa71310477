//! Sampling rates: one packet in how many was counted, as options data say.

use crate::flows::record::FlowRecordFields;

/// Most samplers of one source.
const SAMPLERS: usize = 32;

/// The samplers of one source, by id.
#[derive(Default)]
pub(crate) struct Samplers(Vec<(u64, u32)>);

impl Samplers {
    /// Takes a record of options data; `false` if it says nothing about sampling. Beyond [`SAMPLERS`], new ones are left
    /// out.
    pub(crate) fn learn_sampler(&mut self, options: &FlowRecordFields) -> bool {
        let Some(rate) = options.sampling_rate() else { return false };
        let id = options.sampler.unwrap_or(0);
        let known = self.0.iter().position(|(known, _)| *known == id);
        match known {
            Some(at) => self.0[at].1 = rate,
            None if self.0.len() < SAMPLERS => self.0.push((id, rate)),
            None => return false,
        }
        true
    }

    /// The rate of a record: its own, that of the sampler it names, or that of the only sampler.
    pub(crate) fn sampling_rate_of(&self, record: &FlowRecordFields) -> u32 {
        let known = || match (record.sampler, self.0.as_slice()) {
            (Some(id), all) => all.iter().find(|(known, _)| *known == id).map(|(_, rate)| *rate),
            (None, [(_, rate)]) => Some(*rate),
            (None, _) => None,
        };
        record.sampling_rate().or_else(known).unwrap_or(1)
    }
}
