//! The CPU levels that kernels are compiled for, and which of them a build asks for.

/// A CPU level that an instance is compiled for, with the features that its code may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Whatever the compiler assumes: the one level off x86-64.
    Portable,
    /// x86-64-v2.
    V2,
    /// x86-64-v3.
    V3,
    /// x86-64-v4.
    V4,
}

/// Features, as `#[target_feature]` takes them, and whether the machine that compiles has them all.
macro_rules! features {
    ($first:tt $($other:tt)*) => {
        (concat!($first $(, ",", $other)*), || {
            #[cfg(target_arch = "x86_64")]
            return std::arch::is_x86_feature_detected!($first) $(&& std::arch::is_x86_feature_detected!($other))*;
            #[cfg(not(target_arch = "x86_64"))]
            false
        })
    };
}

impl Level {
    /// The x86-64 levels, in ascending order.
    pub const X86: [Level; 3] = [Level::V2, Level::V3, Level::V4];

    /// Its type and table variant.
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "Portable",
            Level::V2 => "V2",
            Level::V3 => "V3",
            Level::V4 => "V4",
        }
    }

    /// Its name in `tile(...)` and in `MAX_BUILD_LEVELS`.
    pub fn attr_name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::V2 => "v2",
            Level::V3 => "v3",
            Level::V4 => "v4",
        }
    }

    /// The target features of an x86-64 level.
    pub fn features(self) -> &'static str {
        self.declared().0
    }

    fn declared(self) -> (&'static str, fn() -> bool) {
        match self {
            Level::Portable => ("", || true),
            Level::V2 => features!("sse3" "ssse3" "sse4.1" "sse4.2" "popcnt"),
            Level::V3 => features!("avx2" "fma" "bmi1" "bmi2" "f16c" "lzcnt" "movbe" "popcnt"),
            Level::V4 => features!(
                "avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl" "avx2" "fma" "bmi1" "bmi2" "f16c" "lzcnt" "movbe" "popcnt"
            ),
        }
    }
}

/// The environment variable that names them.
pub const VARIABLE: &str = "MAX_BUILD_LEVELS";

/// The levels that a build asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildLevels {
    /// `all`, or the variable is not set: a program that runs on other machines than this one.
    All,
    /// `native`: of each instance, the form that this machine runs.
    Native(Level),
    /// `v3,v4` and the like.
    Listed(Vec<Level>),
}

impl BuildLevels {
    /// What the environment says.
    ///
    /// # Errors
    /// A text that says what is allowed.
    pub fn requested() -> Result<BuildLevels, String> {
        std::env::var(VARIABLE).map_or(Ok(BuildLevels::All), |value| BuildLevels::parse(&value))
    }

    fn parse(value: &str) -> Result<BuildLevels, String> {
        let known = |name: &str| Level::X86.into_iter().find(|level| level.attr_name() == name.trim());
        match value {
            "" | "all" => Ok(BuildLevels::All),
            "native" => Ok(native()),
            list => list.split(',').map(known).collect::<Option<_>>().map(BuildLevels::Listed).ok_or_else(|| {
                format!("{VARIABLE}={list} names no levels: it is `all`, `native`, or some of `v2,v3,v4`")
            }),
        }
    }

    /// Of the levels that an instance has, in ascending order, those to compile.
    pub fn of(&self, mut levels: Vec<Level>) -> Vec<Level> {
        match self {
            BuildLevels::All => {}
            BuildLevels::Native(highest) => {
                levels.retain(|level| level <= highest);
                levels.drain(..levels.len().saturating_sub(1));
            }
            BuildLevels::Listed(listed) => levels.retain(|level| listed.contains(level)),
        }
        levels
    }
}

/// The highest level that this machine has; all of them where it is none of x86-64, and compiles for another.
fn native() -> BuildLevels {
    if cfg!(not(target_arch = "x86_64")) {
        return BuildLevels::All;
    }
    let has = |level: &Level| Level::X86.iter().filter(|lower| *lower <= level).all(|lower| lower.declared().1());
    BuildLevels::Native(Level::X86.into_iter().rev().find(has).unwrap_or(Level::Portable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_native_build_compiles_the_form_that_this_machine_runs() {
        let [v2, v3, v4] = Level::X86;
        let native = BuildLevels::Native(v3);
        assert_eq!(native.of(vec![v2, v3, v4]), [v3]);
        assert_eq!(native.of(vec![v2]), [v2], "the best lower one");
        assert_eq!(native.of(vec![v4]), []);
        assert_eq!(BuildLevels::Native(v4).of(vec![v3]), [v3]);
        assert_eq!(BuildLevels::All.of(vec![v2, v3, v4]), [v2, v3, v4]);
        assert_eq!(BuildLevels::parse("v4, v2").map(|levels| levels.of(vec![v2, v3, v4])), Ok(vec![v2, v4]));
        let error = "MAX_BUILD_LEVELS=v3,avx names no levels: it is `all`, `native`, or some of `v2,v3,v4`";
        assert_eq!(BuildLevels::parse("v3,avx"), Err(error.to_owned()));
    }
}
