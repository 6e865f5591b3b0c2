//! Collects the errors of one kernel, so that they are all reported at once.

use std::cell::RefCell;
use std::fmt::Display;

use proc_macro2::Span;
use syn::spanned::Spanned;

/// The errors found so far. Must be consumed with [`Ctxt::finish`].
#[derive(Default)]
pub struct Ctxt {
    errors: RefCell<Vec<syn::Error>>,
}

impl Ctxt {
    /// Records an error on the tokens of `node`.
    pub fn error(&self, node: impl Spanned + quote::ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(node, message));
    }

    /// Records an error at `span`.
    pub fn error_at(&self, span: Span, message: impl Display) {
        self.push(syn::Error::new(span, message));
    }

    /// Records an error that `syn` found.
    pub fn push(&self, error: syn::Error) {
        self.errors.borrow_mut().push(error);
    }

    /// The value of `result`, or `None` after recording its error.
    pub fn ok<T>(&self, result: syn::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.push(error);
                None
            }
        }
    }

    /// Whether an error was recorded.
    pub fn failed(&self) -> bool {
        !self.errors.borrow().is_empty()
    }

    /// All errors joined into one, or `None` if there were none.
    pub fn finish(self) -> Option<syn::Error> {
        self.errors.into_inner().into_iter().reduce(|mut all, next| {
            all.combine(next);
            all
        })
    }
}

/// The entry of `names` nearest to `word`, if it is near enough to be what the author meant.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    names
        .into_iter()
        .map(|name| (distance(word, name), name))
        .min_by_key(|(d, _)| *d)
        .filter(|(d, name)| *d <= name.len().max(word.len()) / 2)
        .map(|(_, name)| name)
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row.first().copied().unwrap_or(0);
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, y) in row.iter_mut().skip(1).zip(&b) {
            let cost = diagonal + usize::from(x != *y);
            diagonal = *cell;
            left = cost.min(left + 1).min(*cell + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_typos_only() {
        assert_eq!(nearest("tiel", ["op", "tile", "grid"]), Some("tile"));
        assert_eq!(nearest("gird", ["op", "tile", "grid"]), Some("grid"));
        assert_eq!(nearest("grd", ["op", "tile", "grid"]), Some("grid"));
        assert_eq!(nearest("colour", ["op", "tile", "grid"]), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn errors_are_joined() {
        let cx = Ctxt::default();
        assert!(!cx.failed());
        cx.error_at(Span::call_site(), "one");
        cx.error_at(Span::call_site(), "two");
        assert!(cx.failed());
        let all: Vec<String> = cx.finish().into_iter().flatten().map(|e| e.to_string()).collect();
        assert_eq!(all, ["one", "two"]);
    }
}
