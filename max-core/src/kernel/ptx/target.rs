//! Which target PTX is written for, given a GPU and what its driver accepts.

use super::Target;

/// The plain targets that PTX is written for, best first.
const TARGETS: [u32; 9] = [121, 120, 103, 100, 90, 89, 87, 86, 80];

impl Target {
    /// The best target for a GPU of compute capability `sm` whose driver knows PTX up to `ptx_version` (78 for 7.8). PTX for an
    /// older GPU runs on a newer one, but not PTX that uses what is special to it. `None` for a GPU that is too old.
    pub(crate) fn best(sm: u32, ptx_version: u32) -> Option<Target> {
        let warpgroups = Target { sm: 90, arch_specific: true };
        if sm == warpgroups.sm && warpgroups.ptx_version() <= ptx_version {
            return Some(warpgroups);
        }
        let fitting = TARGETS.into_iter().filter(|target| *target <= sm);
        let mut targets = fitting.map(|sm| Target { sm, arch_specific: false });
        targets.find(|target| target.ptx_version() <= ptx_version)
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
