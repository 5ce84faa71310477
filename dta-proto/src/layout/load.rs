//! How full a hash store is, and what that does to answers.
//!
//! The formulas assume independent and uniform slots, which `tests/slot_statistics.rs` verifies. The load `a`
//! is always in keys per slot. Survival is that of Key-Write in "Direct Telemetry Access" (SIGCOMM 2023),
//! which bounds the chance of an empty answer in the same way; the estimate of keys from used slots is linear
//! counting: Whang, Vander-Zanden and Taylor, "A linear-time probabilistic counting algorithm for database
//! applications" (1990).

use core::ops::RangeInclusive;

use crate::store::{MAX_REDUNDANCY, MAX_SLOTS};

/// Probability that a key is still in the store after `a` later keys per slot, with `n` copies:
/// `1 - (1 - e^(-a n))^n`. Each copy is overwritten with probability `1 - e^(-a n)`; the key is gone when all
/// are.
pub fn survival_probability(a: f64, n: u8) -> f64 {
    1.0 - used_slot_share(a, n).powi(i32::from(n))
}

/// Share of the slots that are in use after `a` keys per slot were written, in `n` copies each.
pub fn used_slot_share(a: f64, n: u8) -> f64 {
    -(-a.max(0.0) * f64::from(n)).exp_m1()
}

/// Share of all keys that are still in the store after `a` distinct keys per slot were written once
/// each: the mean of [`survival_probability`] over keys from the newest (load 0) to the oldest (load `a`).
///
/// With `k = a n`: `1 - (1/k) ∫ (1 - e^-x)^n dx` from 0 to k, and the integral of `(1 - e^-x)^n` is
/// that of `(1 - e^-x)^(n-1)` less `(1 - e^-k)^n / n`.
pub fn mean_survival(a: f64, n: u8) -> f64 {
    let k = a * f64::from(n);
    if k <= 0.0 || n == 0 {
        return survival_probability(a, n);
    }
    let integral = (1..=n).fold(k, |sum, i| sum - used_slot_share(a, n).powi(i32::from(i)) / f64::from(i));
    // Below this the integral is k^(n+1) / (n+1) and smaller than the rounding of the sum above.
    if k < 1e-4 { survival_probability(a, n) } else { (1.0 - integral / k).clamp(0.0, 1.0) }
}

/// Keys per slot: the load `a`.
pub fn load(keys: f64, slots: u64) -> f64 {
    keys / slots as f64
}

/// Bound on the probability that a query for an absent key finds a value: `1 - (1 - 2^-bits)^n` with all of its `n`
/// slots in use and `bits` of checksum compared (32 in a store).
pub fn false_match_bound(n: u8, bits: u32) -> f64 {
    -(f64::from(n) * (-(-f64::from(bits)).exp2()).ln_1p()).exp_m1()
}

/// The N in 1..=4 with the best [`survival_probability`] at load `a`; the least on a tie. Another copy helps only while
/// `a N` is below about ln 2.
pub fn advised_redundancy(a: f64) -> u8 {
    (1..=MAX_REDUNDANCY)
        .fold(1, |best, n| if survival_probability(a, n) > survival_probability(a, best) { n } else { best })
}

/// The least power of two of slots at which a key is found with probability `wanted` after `keys` later ones, if the
/// number of copies is in `copies`; and the least such number. `None` if a store cannot have so many slots.
pub fn slots_for(keys: f64, wanted: f64, copies: RangeInclusive<u8>) -> Option<(u64, u8)> {
    (0..=MAX_SLOTS.ilog2()).map(|bits| 1 << bits).find_map(|slots| {
        let n = copies.clone().find(|n| survival_probability(load(keys, slots), *n) >= wanted)?;
        Some((slots, n))
    })
}

/// Distinct keys written, estimated from the number of slots in use when each key is written to `n` slots:
/// linear counting, `-(slots / n) ln(1 - used / slots)`. `None` when every slot is in use (the number is
/// not known then), or `n` or `slots` is 0.
///
/// The standard error is about `sqrt(slots (e^t - t - 1)) / n` keys at `t = n keys / slots`.
pub fn estimate_keys(used: u64, slots: u64, n: u8) -> Option<f64> {
    if used >= slots || n == 0 {
        return None;
    }
    Some(-(slots as f64 / f64::from(n)) * (-(used as f64 / slots as f64)).ln_1p())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::layout::hash;
    use proptest::prelude::*;

    #[test]
    fn survival_by_hand() {
        // 1 - (1 - e^-0.4)^4 and 1 - (1 - e^-1)^1
        assert!((survival_probability(0.1, 4) - 0.988_187).abs() < 1e-6, "{}", survival_probability(0.1, 4));
        assert!((survival_probability(1.0, 1) - 0.367_879).abs() < 1e-6);
        assert_eq!(survival_probability(0.0, 2), 1.0);
    }

    #[test]
    fn mean_survival_is_the_mean_of_survival() {
        for n in 1..=4 {
            for a in [1e-6, 1e-3, 0.05, 0.3, 1.0, 4.0] {
                let steps = 10_000;
                let sum: f64 = (0..steps)
                    .map(|i| survival_probability(a * (f64::from(i) + 0.5) / f64::from(steps), n))
                    .sum();
                let mean = sum / f64::from(steps);
                assert!(
                    (mean_survival(a, n) - mean).abs() < 1e-6,
                    "a {a} n {n}: {} {mean}",
                    mean_survival(a, n)
                );
            }
        }
        assert_eq!(mean_survival(0.0, 4), 1.0);
    }

    #[test]
    fn advice_follows_the_load() {
        assert_eq!(advised_redundancy(0.01), 4);
        assert_eq!(advised_redundancy(0.1), 4);
        assert_eq!(advised_redundancy(0.3), 2);
        assert_eq!(advised_redundancy(1.0), 1);
        assert_eq!(advised_redundancy(100.0), 1);
        assert_eq!(advised_redundancy(0.0), 1, "where all survive, more copies are for nothing");
    }

    #[test]
    fn slots_are_as_few_as_will_do() {
        for keys in [1.0, 1000.0, 1e6, 3e7] {
            for wanted in [0.5, 0.9, 0.99, 0.999] {
                let best =
                    |slots| (1..=4).map(|n| survival_probability(keys / slots as f64, n)).fold(0.0, f64::max);
                let (slots, n) = slots_for(keys, wanted, 1..=4).unwrap();
                assert!(slots.is_power_of_two() && best(slots) >= wanted, "{keys} {wanted}: {slots}");
                assert!(slots == 1 || best(slots / 2) < wanted, "{keys} {wanted}: {slots}");
                assert!(survival_probability(keys / slots as f64, n) >= wanted);
                assert!(
                    n == 1 || survival_probability(keys / slots as f64, n - 1) < wanted,
                    "{keys} {wanted}: {n}"
                );
                let (more, three) = slots_for(keys, wanted, 3..=3).unwrap();
                assert!(more >= slots && three == 3);
            }
        }
        // 1 - (1 - e^-(N / 16))^N with a sixteenth of a key per slot: 93.9, 98.6 and 99.5 %.
        assert_eq!(slots_for(65_536.0, 0.99, 1..=4), Some((1 << 20, 3)));
        assert_eq!(slots_for(65_536.0, 0.98, 1..=2), Some((1 << 20, 2)));
        assert_eq!(slots_for(1e12, 0.99, 1..=4), None);
        assert_eq!(slots_for(1.0, 1.1, 1..=4), None);
    }

    #[test]
    fn keys_are_found_in_as_many_slots() {
        let key = |number: u32| {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b1).to_be_bytes());
            Key(bytes)
        };
        let (first, later) = (0..5000, 5000..25_000);
        for wanted in [0.6, 0.9, 0.99] {
            let (slots, n) = slots_for(later.len() as f64, wanted, 1..=4).unwrap();
            let mut overwritten = vec![false; slots as usize];
            let of = |number| hash::key_slots(&key(number), n, slots);
            later.clone().for_each(|number| of(number).iter().for_each(|s| overwritten[*s as usize] = true));
            let is_used = overwritten.iter().filter(|slot| **slot).count() as f64 / slots as f64;
            assert!(
                (is_used - used_slot_share(load(later.len() as f64, slots), n)).abs() < 0.01,
                "{wanted}: {is_used}"
            );
            let found = first.clone().filter(|i| of(*i).iter().any(|s| !overwritten[*s as usize])).count();
            let found = found as f64 / first.len() as f64;
            assert!(found > wanted - 0.01, "{wanted}: {found} with {slots} slots, N = {n}");
        }
    }

    #[test]
    fn false_match_bound_is_about_n_in_two_to_the_bits() {
        for n in 1..=4 {
            let about = f64::from(n) / 2f64.powi(32);
            assert!((false_match_bound(n, 32) / about - 1.0).abs() < 1e-6);
        }
        assert!((false_match_bound(1, 8) - 1.0 / 256.0).abs() < 1e-12);
    }

    #[test]
    fn keys_are_estimated_from_used_slots() {
        let slots = 1 << 16;
        for n in 1..=4u8 {
            for keys in [100u32, 10_000, 60_000] {
                let mut used = vec![false; slots as usize];
                for key in 0..keys {
                    let mut bytes = [0; 16];
                    bytes[..4].copy_from_slice(&key.wrapping_mul(0x9e37_79b1).to_be_bytes());
                    hash::key_slots(&Key(bytes), n, slots).iter().for_each(|s| used[*s as usize] = true);
                }
                let used = used.iter().filter(|u| **u).count() as u64;
                let estimate = estimate_keys(used, slots, n).unwrap();
                let t = f64::from(n) * f64::from(keys) / slots as f64;
                let error = (slots as f64 * (t.exp() - t - 1.0)).sqrt() / f64::from(n);
                assert!(
                    (estimate - f64::from(keys)).abs() < 4.0 * error + 1.0,
                    "n {n}: {estimate} of {keys}"
                );
            }
        }
        assert_eq!(estimate_keys(slots, slots, 1), None);
        assert_eq!(estimate_keys(0, 0, 1), None);
        assert_eq!(estimate_keys(0, slots, 1), Some(0.0));
    }

    proptest! {
        #[test]
        fn shares_are_shares(a in 0.0f64..1e9, n in 1u8..=4, bits in 0u32..64) {
            prop_assert!((0.0..=1.0).contains(&survival_probability(a, n)));
            prop_assert!((0.0..=1.0).contains(&mean_survival(a, n)));
            prop_assert!(mean_survival(a, n) >= survival_probability(a, n) - 1e-9);
            prop_assert!((0.0..=1.0).contains(&false_match_bound(n, bits)));
            prop_assert!((1..=4).contains(&advised_redundancy(a)));
        }
    }
}
