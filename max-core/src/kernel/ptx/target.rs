//! Targets: what passes have to know of a GPU, as one table, and which target PTX is written for.
//!
//! Which target has an instruction stands in the table of instructions ([`isa`](super::machine::isa)).

use super::Target;

/// What passes have to know of a target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    target: Target,
    /// The lowest PTX version that knows it, 78 for 7.8.
    ptx_version: u32,
    /// The most shared memory that a block can have, in bytes.
    pub shared_bytes: u32,
    /// Whether tensor cores multiply 8-bit floats.
    pub float8_mma: bool,
    /// Whether warpgroups multiply what lies in shared memory (`wgmma`), which the asynchronous proxy reads.
    pub wgmma: bool,
    /// Whether TMA copies tiles to shared memory, for which a producer warpgroup can ask.
    pub tma: bool,
}

const fn plain(sm: u32, ptx_version: u32, shared_kib: u32) -> Features {
    let target = Target { sm, arch_specific: false };
    Features { target, ptx_version, shared_bytes: shared_kib << 10, float8_mma: sm >= 89, wgmma: false, tma: false }
}

const SM_90A: Features =
    Features { target: Target { sm: 90, arch_specific: true }, wgmma: true, tma: true, ..plain(90, 80, 227) };

/// The targets that PTX is written for, best first.
const TARGETS: [Features; 10] = [
    plain(121, 88, 99),
    plain(120, 87, 99),
    plain(103, 87, 227),
    plain(100, 86, 227),
    SM_90A,
    plain(90, 78, 227),
    plain(89, 78, 99),
    plain(87, 74, 163),
    plain(86, 71, 99),
    plain(80, 70, 163),
];

impl Target {
    /// Its row; of a target that has none, that of the best older one.
    pub(super) const fn features(self) -> Features {
        let mut i = 0;
        while i + 1 < TARGETS.len() {
            let Target { sm, arch_specific } = TARGETS[i].target;
            if sm <= self.sm && (!arch_specific || self.arch_specific && sm == self.sm) {
                break;
            }
            i += 1;
        }
        TARGETS[i]
    }

    /// The lowest PTX version that knows the target, 78 for 7.8.
    pub(crate) fn ptx_version(self) -> u32 {
        self.features().ptx_version
    }

    /// The best target for a GPU of compute capability `sm` whose driver knows PTX up to `ptx_version` (78 for 7.8). PTX for an
    /// older GPU runs on a newer one, but not PTX that uses what is special to it. `None` for a GPU that is too old.
    pub(crate) fn best(sm: u32, ptx_version: u32) -> Option<Target> {
        let runs = |target: Target| if target.arch_specific { target.sm == sm } else { target.sm <= sm };
        let mut fitting = TARGETS.iter().filter(|row| runs(row.target) && row.ptx_version <= ptx_version);
        fitting.next().map(|row| row.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_the_driver_knows() {
        // PTX 7.4 came with CUDA 11.4, 7.8 with 11.8, 8.0 with 12.0, 8.5 with 12.6, 8.7 with 12.8, 9.0 with 13.0.
        let sm = |sm, version| Target::best(sm, version).map(|target| target.sm);
        assert_eq!((sm(75, 90), sm(80, 74), sm(86, 74)), (None, Some(80), Some(86)));
        // A driver that is older than the GPU gets what it knows.
        assert_eq!((sm(90, 74), sm(90, 80), sm(100, 85), sm(100, 87)), (Some(87), Some(90), Some(90), Some(100)));
        // What only this GPU has is used on it, if the driver knows that.
        let special = |sm, version| Target::best(sm, version).map(|target| target.arch_specific);
        assert_eq!((special(90, 78), special(90, 80)), (Some(false), Some(true)));
        assert_eq!((special(89, 80), special(100, 85), special(100, 90)), (Some(false), Some(false), Some(false)));
    }
}
