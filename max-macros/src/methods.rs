//! The language's methods of rows, columns and tiles, which are told by their names: types are rustc's to know.

use std::fmt::Display;

/// What a method does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Writes lanes, all that there are.
    Writes,
    /// Makes a number of lanes.
    Reduces,
    /// Does something else with all lanes together.
    Joins,
    /// Gives lanes other elements than those of their own index.
    Reorders,
}

const METHODS: [(Method, &[&str]); 4] = [
    (Method::Writes, &["write", "write_scan", "write_exclusive_scan", "write_any_scan"]),
    // `max` and `min` of two numbers have an argument.
    (
        Method::Reduces,
        &["sum", "mean", "mean_variance", "max_exp_sum", "argmax", "argmin", "prod", "max", "min", "reduce"],
    ),
    (
        Method::Joins,
        &["fold", "fold_with", "materialize", "shifted_exp", "any", "all", "for_each", "tile", "element", "item"],
    ),
    (
        Method::Reorders,
        &[
            "reverse",
            "slice",
            "shift",
            "block",
            "repeat",
            "repeat_each",
            "two_level",
            "segments",
            "numbers",
            "words",
            "bytes",
            "chunks",
        ],
    ),
];

/// Other methods of the language, which make no tile of what is none.
const OTHERS: [&str; 4] = [
    // Of numbers.
    "abs abs_diff acos atanh cast ceil clamp convert cos div_euclid erf exp exp2 exp2_as floor fract from_f64 from_i64 is_finite \
     is_infinite is_nan ln log log1p max_value min_value mul_add one pow powf powi powi_by recip rem_euclid round round_ties_even rsqrt \
     saturating_add saturating_sub sigmoid sign sin sqrt tanh trunc",
    // Of lanes and columns.
    "behind dot4 enumerate map then zip",
    // Of operands and their parts.
    "at atomic_add atomic_max atomic_min atomic_or column columns dim len pad read row rows scatter select set",
    // Of tiles, which are there already.
    "load map_indexed row_max row_min row_sum t zip_map",
];

impl Method {
    pub fn of(name: &impl Display) -> Option<Method> {
        let name = name.to_string();
        METHODS.iter().find(|(_, names)| names.contains(&&*name)).map(|(method, _)| *method)
    }

    /// Whether it may be that a method of this name makes a tile: of an operand, or as one of the author's own.
    pub fn may_make_tiles(name: &impl Display) -> bool {
        let name = name.to_string();
        name == "tile"
            || Method::of(&name).is_none() && !OTHERS.iter().any(|names| names.split(' ').any(|other| other == name))
    }
}
