//! The normal form behind [`Dim`](super::Dim): a polynomial with integer coefficients over symbols and floor divisions.
//!
//! Terms are kept sorted by the graded lexicographic order, leading term first, without zero coefficients, so two
//! expressions that are equal as polynomials are equal as values. A floor division is an atom, reduced first: whole
//! multiples of the divisor leave it (`(n * 4 + 6) / 4` is `n + 1`), and common factors of both sides are cancelled.
//! Equality of two dims is therefore never wrong when it says yes, and says yes for all sums and products; two
//! floor divisions of very different form may be equal for every size and still compare unequal.
//!
//! Coefficients saturate at the limits of `i64`. No tensor can have such a size, and evaluation reports the overflow.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// What a term is a product of: a symbol, or a floor division that could not be reduced further.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Atom {
    Symbol(Arc<str>),
    FloorDiv(Arc<(Polynomial, Polynomial)>),
}

/// A product of atoms: sorted, an atom to the power of n stands n times. Empty for the constant term.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Monomial(pub(super) Vec<Atom>);

impl Ord for Monomial {
    /// Leading first: higher degree, then more of the atom that sorts first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.0.len().cmp(&self.0.len())).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Monomial {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Monomial {
    fn mul(&self, other: &Monomial) -> Monomial {
        let mut atoms = [self.0.as_slice(), other.0.as_slice()].concat();
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
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(super) struct Polynomial(pub(super) Vec<(Monomial, i64)>);

impl Polynomial {
    pub(super) fn constant(value: i64) -> Self {
        Polynomial::term(Monomial::default(), value)
    }

    pub(super) fn symbol(name: Arc<str>) -> Self {
        Polynomial::atom(Atom::Symbol(name))
    }

    fn atom(atom: Atom) -> Self {
        Polynomial::term(Monomial(vec![atom]), 1)
    }

    fn term(monomial: Monomial, coefficient: i64) -> Self {
        Polynomial::from_terms(vec![(monomial, coefficient)])
    }

    fn from_terms(mut terms: Vec<(Monomial, i64)>) -> Self {
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
    pub(super) fn as_constant(&self) -> Option<i64> {
        match self.0.as_slice() {
            [] => Some(0),
            [(monomial, value)] if monomial.0.is_empty() => Some(*value),
            _ => None,
        }
    }

    /// The name, when this is one symbol and nothing else.
    pub(super) fn as_symbol(&self) -> Option<&Arc<str>> {
        match self.0.as_slice() {
            [(monomial, 1)] => match monomial.0.as_slice() {
                [Atom::Symbol(name)] => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn add(&self, other: &Polynomial) -> Polynomial {
        Polynomial::from_terms([self.0.as_slice(), other.0.as_slice()].concat())
    }

    pub(super) fn mul(&self, other: &Polynomial) -> Polynomial {
        let mut terms = Vec::with_capacity(self.0.len() * other.0.len());
        for (a, x) in &self.0 {
            terms.extend(other.0.iter().map(|(b, y)| (a.mul(b), x.saturating_mul(*y))));
        }
        Polynomial::from_terms(terms)
    }

    pub(super) fn neg(&self) -> Polynomial {
        self.map_coefficients(|c| c.saturating_neg())
    }

    fn map_coefficients(&self, f: impl Fn(i64) -> i64) -> Polynomial {
        Polynomial::from_terms(self.0.iter().map(|(m, c)| (m.clone(), f(*c))).collect())
    }

    /// `self / divisor` when that leaves no remainder as polynomials: `(batch * 128).exact_div(batch)` is `128`.
    pub(super) fn exact_div(&self, divisor: &Polynomial) -> Option<Polynomial> {
        let (quotient, remainder) = self.divide(divisor)?;
        remainder.0.is_empty().then_some(quotient)
    }

    /// `floor(self / divisor)` in normal form. A zero divisor stays, and evaluates to an error.
    pub(super) fn floor_div(&self, divisor: &Polynomial) -> Polynomial {
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
            [Atom::FloorDiv(parts)] if *coefficient == 1 => {
                let b = parts.1.as_constant().filter(|b| *b > 0)?;
                Some((monomial, &parts.0, b))
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
            return quotient;
        }
        if !quotient.0.is_empty() {
            return quotient.add(&rest.floor_div_polynomial(&divisor));
        }
        floor_div_atom(rest, divisor)
    }

    /// Polynomial long division: `(q, r)` with `self = divisor · q + r`. `None` for a zero divisor.
    fn divide(&self, divisor: &Polynomial) -> Option<(Polynomial, Polynomial)> {
        let (lead, lead_coefficient) = divisor.0.first()?;
        let (mut quotient, mut remainder) = (Polynomial::default(), Polynomial::default());
        let mut left = self.clone();
        while let Some((monomial, coefficient)) = left.0.first().cloned() {
            let step = monomial.divide(lead).map(|m| (m, coefficient.wrapping_div_euclid(*lead_coefficient)));
            match step {
                Some((m, c)) if c != 0 && !is_saturated(coefficient) => {
                    let step = Polynomial::term(m, c);
                    left = left.add(&step.mul(divisor).neg());
                    quotient = quotient.add(&step);
                    // A coefficient that the leading one does not divide leaves its own rest behind.
                    if let Some((m, c)) = left.0.first().filter(|t| t.0 == monomial).cloned() {
                        remainder = remainder.add(&Polynomial::term(m.clone(), c));
                        left = left.add(&Polynomial::term(m, c.saturating_neg()));
                    }
                }
                _ => {
                    left.0.remove(0);
                    remainder = remainder.add(&Polynomial::term(monomial, coefficient));
                }
            }
        }
        Some((quotient, remainder))
    }

    /// Calls `f` with every symbol, each as often as it stands in the expression.
    pub(super) fn for_each_symbol(&self, f: &mut dyn FnMut(&Arc<str>)) {
        for atom in self.0.iter().flat_map(|(monomial, _)| &monomial.0) {
            match atom {
                Atom::Symbol(name) => f(name),
                Atom::FloorDiv(parts) => {
                    parts.0.for_each_symbol(f);
                    parts.1.for_each_symbol(f);
                }
            }
        }
    }
}

fn is_saturated(coefficient: i64) -> bool {
    coefficient == i64::MAX || coefficient == i64::MIN
}

fn floor_div_atom(numerator: Polynomial, divisor: Polynomial) -> Polynomial {
    Polynomial::atom(Atom::FloorDiv(Arc::new((numerator, divisor))))
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

impl fmt::Display for Polynomial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
                    Atom::FloorDiv(_) if alone => write!(f, "{atom}")?,
                    Atom::FloorDiv(_) => write!(f, "({atom})")?,
                }
            }
            if magnitude != 1 {
                write!(f, " * {magnitude}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Symbol(name) => f.write_str(name),
            Atom::FloorDiv(parts) => {
                let side = |p: &Polynomial| match p.as_constant().is_some() || p.as_symbol().is_some() {
                    true => p.to_string(),
                    false => format!("({p})"),
                };
                write!(f, "{} / {}", side(&parts.0), side(&parts.1))
            }
        }
    }
}
