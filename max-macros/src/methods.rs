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
    (Method::Writes, &["write", "write_scan", "write_exclusive_scan"]),
    // `max` and `min` of two numbers have an argument.
    (Method::Reduces, &["sum", "mean", "prod", "max", "min", "reduce"]),
    (Method::Joins, &["fold", "fold_with", "keep", "any", "all", "for_each", "tile"]),
    (Method::Reorders, &["reverse", "slice", "block", "repeat", "chunks"]),
];

impl Method {
    pub fn of(name: &impl Display) -> Option<Method> {
        let name = name.to_string();
        METHODS.iter().find(|(_, names)| names.contains(&&*name)).map(|(method, _)| *method)
    }
}
