//! Sampling rates: one packet in how many was counted, as options data say.

use super::fields::Fields;

/// Maximum number of rates of one source: a chassis has hundreds of interfaces.
const RATES: usize = 1024;

/// What a rate applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SamplingScope {
    /// Everything without a rate of its own.
    Domain,
    Interface(u32),
    /// A sampler or selector by its id.
    Sampler(u64),
}

/// The rates of one source, in the order of their scopes.
#[derive(Default)]
pub(crate) struct Samplers(Vec<(SamplingScope, u32)>);

impl Samplers {
    /// Returns `false` if the rate was left out because there are [`RATES`] already.
    pub(crate) fn learn_rate(&mut self, scope: SamplingScope, rate: u32) -> bool {
        match self.0.binary_search_by_key(&scope, |(known, _)| *known) {
            Ok(at) => self.0[at].1 = rate,
            Err(at) if self.0.len() < RATES => self.0.insert(at, (scope, rate)),
            Err(_) => return false,
        }
        true
    }

    /// The rate of a record: its own; else that of the sampler that it names, of its interface, of its
    /// domain, or of the only sampler; else `otherwise`.
    #[inline]
    pub(crate) fn sampling_rate_of(&self, record: &Fields<'_>, otherwise: u32) -> u32 {
        record.sampling_rate().unwrap_or_else(|| {
            if self.0.is_empty() { otherwise } else { self.find_rate(record).unwrap_or(otherwise) }
        })
    }

    fn rate_of(&self, scope: SamplingScope) -> Option<u32> {
        let at = self.0.binary_search_by_key(&scope, |(known, _)| *known).ok()?;
        Some(self.0[at].1)
    }

    fn find_rate(&self, record: &Fields<'_>) -> Option<u32> {
        let sampler = record.sampler();
        // Samplers are the last in order. A record that names none, or 0, can only mean the only one.
        let only = || match self.0.as_slice() {
            [.., (SamplingScope::Sampler(_), _), (SamplingScope::Sampler(_), _)] => None,
            [.., (SamplingScope::Sampler(_), rate)] if sampler == 0 => Some(*rate),
            _ => None,
        };
        self.rate_of(SamplingScope::Sampler(sampler))
            .or_else(|| {
                record
                    .interfaces()
                    .into_iter()
                    .find_map(|number| self.rate_of(SamplingScope::Interface(number)))
            })
            .or_else(|| self.rate_of(SamplingScope::Domain))
            .or_else(only)
    }
}
