//! The normal form behind [`Dim`](super::super::Dim): a polynomial with integer coefficients over symbols and floor divisions.
//!
//! Terms are kept sorted by the graded lexicographic order, leading term first, without zero coefficients, so two
//! expressions that are equal as polynomials are equal as values. A floor division is an atom, reduced first: whole
//! multiples of the divisor leave it (`(n * 4 + 6) / 4` is `n + 1`), and common factors of both sides are cancelled.
//! Equality of two dims is therefore never wrong when it says yes, and says yes for all sums and products; two
//! floor divisions of very different form may be equal for every size and still compare unequal.
//!
//! A product or sum of more than [`MAX_TERMS`] terms, or of a degree above [`MAX_DEGREE`], is not multiplied out: the operands
//! stay whole, as [`Form::Sum`]s. Equal ones then compare equal if they were written alike.
//!
//! Coefficients saturate at the limits of `i64`. No tensor can have such a size, and evaluation reports the overflow.

pub(in crate::graph) mod nested;

use std::cmp::Ordering;
use std::fmt::{self, Write};

use arcstr::ArcStr;
use smallvec::{SmallVec, smallvec};

use crate::steps;
use nested::{Atom, Form, Nested, innermost_first};

/// A normal form has no more terms than this: those of a product of eight sums of two.
pub(in crate::graph) const MAX_TERMS: usize = 256;
/// A term is a product of no more atoms than this.
pub(in crate::graph) const MAX_DEGREE: usize = 64;
/// A polynomial division that takes more steps than this is left as it was written.
const MAX_DIVISION: usize = 4 * MAX_TERMS;

/// A product of atoms: sorted, an atom to the power of n stands n times. Empty for the constant term.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(in crate::graph) struct Monomial(pub(in crate::graph) SmallVec<[Atom; 1]>);

impl Ord for Monomial {
    /// Leading first: higher degree, then more of the atom that sorts first.
    fn cmp(&self, other: &Self) -> Ordering {
        self.by_degree(other).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Monomial {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Monomial {
    /// Higher degree first.
    pub(in crate::graph) fn by_degree(&self, other: &Monomial) -> Ordering {
        other.0.len().cmp(&self.0.len())
    }

    fn mul(&self, other: &Monomial) -> Monomial {
        let mut atoms: SmallVec<_> = self.0.iter().chain(&other.0).cloned().collect();
        atoms.sort();
        Monomial(atoms)
    }

    /// `self / other` when `other` is a factor of `self`.
    fn divide(&self, other: &Monomial) -> Option<Monomial> {
        let mut rest = self.0.clone();
        for atom in &other.0 {
            rest.remove(rest.iter().position(|a| a == atom)?);
        }
        Some(Monomial(rest))
    }

    /// The atoms that both products have.
    fn common(&self, other: &Monomial) -> Monomial {
        let mut rest = other.0.clone();
        let shared =
            self.0.iter().filter(|atom| rest.iter().position(|a| a == *atom).map(|i| rest.remove(i)).is_some());
        Monomial(shared.cloned().collect())
    }
}

/// A sum of terms, each a monomial and its coefficient, in normal form.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(in crate::graph) struct Polynomial(pub(in crate::graph) Terms);

/// Most sums have one term: a size times a number.
type Terms = SmallVec<[(Monomial, i64); 1]>;

impl Polynomial {
    pub(in crate::graph) fn constant(value: i64) -> Self {
        Polynomial::term(Monomial::default(), value)
    }

    pub(in crate::graph) fn symbol(name: ArcStr) -> Self {
        Polynomial::atom(Atom::Symbol(name))
    }

    pub(in crate::graph) fn atom(atom: Atom) -> Self {
        Polynomial::term(Monomial(smallvec![atom]), 1)
    }

    fn term(monomial: Monomial, coefficient: i64) -> Self {
        Polynomial::from_terms(smallvec![(monomial, coefficient)])
    }

    fn from_terms(mut terms: Terms) -> Self {
        steps::count(terms.len());
        terms.sort_by(|a, b| a.0.cmp(&b.0));
        terms.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = kept.1.saturating_add(next.1);
            }
            same
        });
        terms.retain(|term| term.1 != 0);
        Polynomial(terms)
    }

    /// The value, when no symbol is left.
    pub(in crate::graph) fn as_constant(&self) -> Option<i64> {
        match self.0.as_slice() {
            [] => Some(0),
            [(monomial, value)] if monomial.0.is_empty() => Some(*value),
            _ => None,
        }
    }

    /// The name, when this is one symbol and nothing else.
    pub(in crate::graph) fn as_symbol(&self) -> Option<&ArcStr> {
        match self.0.as_slice() {
            [(monomial, 1)] => match monomial.0.as_slice() {
                [Atom::Symbol(name)] => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    pub(in crate::graph) fn add(&self, other: &Polynomial) -> Polynomial {
        let sum = self.plus(other);
        if sum.0.len() <= MAX_TERMS {
            return sum;
        }
        let (long, short) = if self.0.len() >= other.0.len() { (self, other) } else { (other, self) };
        let sum = long.whole().plus(short);
        if sum.0.len() <= MAX_TERMS { sum } else { long.whole().plus(&short.whole()) }
    }

    pub(in crate::graph) fn mul(&self, other: &Polynomial) -> Polynomial {
        let is_short = self.0.len() * other.0.len() <= MAX_TERMS && self.degree() + other.degree() <= MAX_DEGREE;
        if is_short { self.times(other) } else { self.whole().times(&other.whole()) }
    }

    /// The product with a number that is not 0.
    pub(in crate::graph) fn scale(mut self, factor: i64) -> Polynomial {
        steps::count(self.0.len());
        self.0.iter_mut().for_each(|(_, coefficient)| *coefficient = coefficient.saturating_mul(factor));
        self
    }

    /// The same as one term of one atom.
    fn whole(&self) -> Polynomial {
        if self.0.len() <= 1 && self.degree() <= 1 {
            return self.clone();
        }
        Polynomial::atom(Atom::Nested(Nested::new(Form::Sum(self.clone()))))
    }

    fn degree(&self) -> usize {
        self.0.first().map_or(0, |(monomial, _)| monomial.0.len())
    }

    /// The expressions that are atoms here.
    pub(in crate::graph) fn nested(&self) -> impl DoubleEndedIterator<Item = &Nested> {
        let atoms = self.0.iter().flat_map(|(monomial, _)| &monomial.0);
        atoms.filter_map(|atom| if let Atom::Nested(nested) = atom { Some(nested) } else { None })
    }

    /// The sum in normal form, however many terms that are.
    fn plus(&self, other: &Polynomial) -> Polynomial {
        Polynomial::from_terms(self.0.iter().chain(&other.0).cloned().collect())
    }

    /// The product in normal form, however many terms that are.
    fn times(&self, other: &Polynomial) -> Polynomial {
        let mut terms = Terms::with_capacity(self.0.len() * other.0.len());
        for (a, x) in &self.0 {
            terms.extend(other.0.iter().map(|(b, y)| (a.mul(b), x.saturating_mul(*y))));
        }
        Polynomial::from_terms(terms)
    }

    pub(in crate::graph) fn neg(&self) -> Polynomial {
        self.map_coefficients(|c| c.saturating_neg())
    }

    fn map_coefficients(&self, f: impl Fn(i64) -> i64) -> Polynomial {
        Polynomial::from_terms(self.0.iter().map(|(m, c)| (m.clone(), f(*c))).collect())
    }

    /// `self / divisor` when that leaves no remainder as polynomials: `(batch * 128).exact_div(batch)` is `128`.
    pub(in crate::graph) fn exact_div(&self, divisor: &Polynomial) -> Option<Polynomial> {
        let (quotient, remainder) = self.divide(divisor)?;
        remainder.0.is_empty().then(|| quotient.add(&Polynomial::default()))
    }

    /// `floor(self / divisor)` in normal form. A zero divisor stays, and evaluates to an error.
    pub(in crate::graph) fn floor_div(&self, divisor: &Polynomial) -> Polynomial {
        match divisor.as_constant() {
            Some(0) => floor_div_atom(self.clone(), divisor.clone()),
            Some(c) if c < 0 => self.neg().floor_div_constant(c.saturating_neg()),
            Some(c) => self.floor_div_constant(c),
            None => self.floor_div_polynomial(divisor),
        }
    }

    fn floor_div_constant(&self, divisor: i64) -> Polynomial {
        // floor((d·q + r) / d) = q + floor(r / d), so every coefficient of r can be brought into 0..d.
        let quotient = self.map_coefficients(|c| c.div_euclid(divisor));
        let rest = self.map_coefficients(|c| c.rem_euclid(divisor));
        if rest.as_constant().is_some() {
            return quotient;
        }
        // floor((g·r + k) / (g·d)) = floor((r + floor(k / g)) / d).
        let symbolic = rest.0.iter().filter(|(m, _)| !m.0.is_empty());
        let common = symbolic.fold(divisor, |g, (_, c)| gcd(g, *c));
        let (rest, divisor) = (rest.map_coefficients(|c| c.div_euclid(common)), divisor / common);
        if divisor == 1 {
            return quotient.add(&rest);
        }
        if let Some((numerator, divisor)) = rest.merge_nested_division(divisor) {
            return quotient.add(&numerator.floor_div_constant(divisor));
        }
        quotient.add(&floor_div_atom(rest, Polynomial::constant(divisor)))
    }

    /// `floor((r + floor(a / b)) / d)` is `floor((r·b + a) / (b·d))`: the numerator and divisor of the latter.
    fn merge_nested_division(&self, divisor: i64) -> Option<(Polynomial, i64)> {
        let mut inner = self.0.iter().filter_map(|(monomial, coefficient)| match monomial.0.as_slice() {
            [Atom::Nested(nested)] if *coefficient == 1 => {
                let Form::FloorDiv(a, b) = nested.form() else { return None };
                Some((monomial, a, b.as_constant().filter(|b| *b > 0)?))
            }
            _ => None,
        });
        let (monomial, numerator, b) = inner.next()?;
        if inner.next().is_some() {
            return None;
        }
        let rest = self.add(&Polynomial::term(monomial.clone(), -1));
        Some((rest.mul(&Polynomial::constant(b)).add(numerator), b.checked_mul(divisor)?))
    }

    fn floor_div_polynomial(&self, divisor: &Polynomial) -> Polynomial {
        let (numerator, divisor) = cancel_common(self, divisor);
        if divisor.as_constant().is_some() {
            return numerator.floor_div(&divisor);
        }
        let Some((quotient, rest)) = numerator.divide(&divisor) else {
            return floor_div_atom(numerator, divisor);
        };
        if rest.0.is_empty() {
            return quotient.add(&rest);
        }
        if !quotient.0.is_empty() {
            return quotient.add(&rest.floor_div_polynomial(&divisor));
        }
        floor_div_atom(rest, divisor)
    }

    /// Polynomial long division: `(q, r)` with `self = divisor · q + r`. `None` for a zero divisor, and for a division that is too
    /// long.
    fn divide(&self, divisor: &Polynomial) -> Option<(Polynomial, Polynomial)> {
        let (lead, lead_coefficient) = divisor.0.first()?;
        let (mut quotient, mut remainder) = (Polynomial::default(), Polynomial::default());
        let mut left = self.clone();
        for steps in 0.. {
            let Some((monomial, coefficient)) = left.0.first().cloned() else { break };
            if steps == MAX_DIVISION || left.0.len() > MAX_DIVISION {
                return None;
            }
            let step = monomial.divide(lead).map(|m| (m, coefficient.wrapping_div_euclid(*lead_coefficient)));
            match step {
                Some((m, c)) if c != 0 && !is_saturated(coefficient) => {
                    let step = Polynomial::term(m, c);
                    left = left.plus(&step.times(divisor).neg());
                    quotient = quotient.plus(&step);
                    // A coefficient that the leading one does not divide leaves its own rest behind.
                    if let Some((m, c)) = left.0.first().filter(|t| t.0 == monomial).cloned() {
                        remainder = remainder.plus(&Polynomial::term(m.clone(), c));
                        left = left.plus(&Polynomial::term(m, c.saturating_neg()));
                    }
                }
                _ => {
                    left.0.remove(0);
                    remainder = remainder.plus(&Polynomial::term(monomial, coefficient));
                }
            }
        }
        Some((quotient, remainder))
    }

    /// Calls `f` with every symbol: each as often as it stands here and in each expression that is held.
    pub(in crate::graph) fn for_each_symbol(&self, f: &mut dyn FnMut(&ArcStr)) {
        let inner = innermost_first(self).into_iter().flat_map(|nested| nested.form().parts()).flatten();
        for atom in std::iter::once(self).chain(inner).flat_map(|part| &part.0).flat_map(|(monomial, _)| &monomial.0) {
            if let Atom::Symbol(name) = atom {
                f(name);
            }
        }
    }
}

fn is_saturated(coefficient: i64) -> bool {
    coefficient == i64::MAX || coefficient == i64::MIN
}

fn floor_div_atom(numerator: Polynomial, divisor: Polynomial) -> Polynomial {
    Polynomial::atom(Atom::Nested(Nested::new(Form::FloorDiv(numerator, divisor))))
}

/// Cancels the integer and the atoms that divide every term of both, and makes the divisor's leading term positive.
fn cancel_common(numerator: &Polynomial, divisor: &Polynomial) -> (Polynomial, Polynomial) {
    let terms = || numerator.0.iter().chain(&divisor.0);
    let mut number = terms().fold(0, |g, (_, c)| gcd(g, *c)).max(1);
    let first = divisor.0.first().map(|(m, _)| m.clone()).unwrap_or_default();
    let factor = terms().fold(first, |common, (m, _)| common.common(m));
    if divisor.0.first().is_some_and(|(_, c)| *c < 0) {
        number = -number;
    }
    let cancel = |p: &Polynomial| {
        let reduced = |(m, c): &(Monomial, i64)| Some((m.divide(&factor)?, c.wrapping_div(number)));
        Polynomial::from_terms(p.0.iter().filter_map(reduced).collect())
    };
    (cancel(numerator), cancel(divisor))
}

/// The greatest common divisor; of 0 and 0 it is 0, and `i64::MIN` counts as `i64::MAX`.
fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.saturating_abs(), b.saturating_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Longer texts are cut off.
const MAX_TEXT: usize = 500;

/// A text that ends after so many characters.
struct Text<'a, 'f> {
    f: &'a mut fmt::Formatter<'f>,
    left: usize,
}

impl fmt::Write for Text<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        steps::count(1);
        match text.char_indices().nth(self.left) {
            None => {
                self.left -= text.chars().count();
                self.f.write_str(text)
            }
            Some((end, _)) => {
                self.f.write_str(&text[..end])?;
                self.left = 0;
                Err(fmt::Error)
            }
        }
    }
}

impl fmt::Display for Polynomial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Text { f, left: MAX_TEXT };
        match self.write(&mut text) {
            Err(_) if text.left == 0 => f.write_str("…"),
            other => other,
        }
    }
}

impl Polynomial {
    /// Every level of nesting writes a parenthesis, so that the text's limit is one of the recursion.
    fn write(&self, f: &mut Text<'_, '_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("0");
        }
        for (i, (monomial, coefficient)) in self.0.iter().enumerate() {
            let magnitude = coefficient.unsigned_abs();
            match (i, *coefficient < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            if monomial.0.is_empty() {
                write!(f, "{magnitude}")?;
                continue;
            }
            let alone = monomial.0.len() == 1 && *coefficient == 1 && self.0.len() == 1;
            for (j, atom) in monomial.0.iter().enumerate() {
                if j > 0 {
                    f.write_str(" * ")?;
                }
                match atom {
                    Atom::Symbol(name) => f.write_str(name)?,
                    Atom::Nested(nested) => write_nested(nested, !alone, f)?,
                }
            }
            if magnitude != 1 {
                write!(f, " * {magnitude}")?;
            }
        }
        Ok(())
    }

    /// In parentheses, unless it is a number or a name.
    fn write_side(&self, f: &mut Text<'_, '_>) -> fmt::Result {
        if self.as_constant().is_some() || self.as_symbol().is_some() {
            return self.write(f);
        }
        f.write_str("(")?;
        self.write(f)?;
        f.write_str(")")
    }
}

fn write_nested(nested: &Nested, in_parentheses: bool, f: &mut Text<'_, '_>) -> fmt::Result {
    let (open, close) = if in_parentheses { ("(", ")") } else { ("", "") };
    match nested.form() {
        Form::Sum(sum) => sum.write_side(f),
        Form::FloorDiv(numerator, divisor) => {
            f.write_str(open)?;
            numerator.write_side(f)?;
            f.write_str(" / ")?;
            divisor.write_side(f)?;
            f.write_str(close)
        }
    }
}
