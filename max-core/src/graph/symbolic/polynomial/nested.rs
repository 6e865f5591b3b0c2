//! Expressions inside of expressions: the atoms of a [`Polynomial`] that are no symbols.
//!
//! An expression holds another one by reference, and equal ones are one object (they are *hash-consed*). So an expression that
//! stands in many places is compared, hashed, walked and evaluated once: work is in proportion to the objects, where
//! the same as a tree may have exponentially many nodes. Nothing here recurses, however deep expressions nest.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arcstr::ArcStr;

use super::{Monomial, Polynomial};
use crate::steps;

/// What a term is a product of.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(in crate::graph) enum Atom {
    Symbol(ArcStr),
    Nested(Nested),
}

/// What an atom holds.
#[derive(PartialEq, Eq, Hash)]
pub(in crate::graph) enum Form {
    /// A floor division that could not be reduced further: numerator and divisor.
    FloorDiv(Polynomial, Polynomial),
    /// A sum that is one factor, or one summand, where multiplied out there would be too many terms.
    Sum(Polynomial),
}

impl Form {
    /// The polynomials in it.
    pub fn parts(&self) -> [Option<&Polynomial>; 2] {
        match self {
            Form::FloorDiv(numerator, divisor) => [Some(numerator), Some(divisor)],
            Form::Sum(sum) => [Some(sum), None],
        }
    }

    fn nested(&self) -> impl DoubleEndedIterator<Item = &Nested> {
        self.parts().into_iter().flatten().flat_map(Polynomial::nested)
    }
}

struct Node {
    form: Form,
    /// How deep expressions nest in it.
    depth: u32,
}

/// An expression as an atom. Equal ones are the same object.
#[derive(Clone)]
pub(in crate::graph) struct Nested(Arc<Node>);

impl Nested {
    pub fn new(form: Form) -> Nested {
        KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().intern(form)
    }

    pub fn form(&self) -> &Form {
        &self.0.form
    }

    /// What tells it from all others, as long as it exists.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

impl PartialEq for Nested {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Nested {}

impl Hash for Nested {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl Ord for Nested {
    /// Shallow ones first, then by what they hold, from left to right. That does not depend on when they were made.
    fn cmp(&self, other: &Self) -> Ordering {
        let (mut a, mut b) = (self, other);
        loop {
            steps::count(1);
            match a.0.depth.cmp(&b.0.depth) {
                _ if a == b => return Ordering::Equal,
                Ordering::Equal => {}
                order => return order,
            }
            match difference(a.form(), b.form()) {
                Difference::Order(order) => return order,
                Difference::Inside(x, y) => (a, b) = (x, y),
            }
        }
    }
}

impl PartialOrd for Nested {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Nested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Polynomial::atom(Atom::Nested(self.clone())))
    }
}

/// What decides the order of two expressions.
enum Difference<'a> {
    Order(Ordering),
    /// The order of these two, which differ.
    Inside(&'a Nested, &'a Nested),
}

/// The first difference of two forms.
fn difference<'a>(a: &'a Form, b: &'a Form) -> Difference<'a> {
    let is_sum = |form: &Form| matches!(form, Form::Sum(_));
    if is_sum(a) != is_sum(b) {
        return Difference::Order(is_sum(a).cmp(&is_sum(b)));
    }
    for (a, b) in a.parts().into_iter().flatten().zip(b.parts().into_iter().flatten()) {
        for ((a, x), (b, y)) in a.0.iter().zip(&b.0) {
            if a.0.len() != b.0.len() {
                return Difference::Order(Monomial::by_degree(a, b));
            }
            for (a, b) in a.0.iter().zip(&b.0) {
                steps::count(1);
                match (a, b) {
                    (Atom::Nested(a), Atom::Nested(b)) if a != b => return Difference::Inside(a, b),
                    (Atom::Nested(_), Atom::Nested(_)) => {}
                    (a, b) if a != b => return Difference::Order(a.cmp(b)),
                    _ => {}
                }
            }
            if x != y {
                return Difference::Order(x.cmp(y));
            }
        }
        if a.0.len() != b.0.len() {
            return Difference::Order(a.0.len().cmp(&b.0.len()));
        }
    }
    Difference::Order(Ordering::Equal)
}

impl Drop for Node {
    /// Drops what it holds one after the other, not one inside the other.
    fn drop(&mut self) {
        let mut left = Vec::new();
        take_nested(&mut self.form, &mut left);
        while let Some(nested) = left.pop() {
            if let Some(mut node) = Arc::into_inner(nested.0) {
                take_nested(&mut node.form, &mut left);
            }
        }
    }
}

fn take_nested(form: &mut Form, into: &mut Vec<Nested>) {
    let parts = match form {
        Form::FloorDiv(numerator, divisor) => [std::mem::take(numerator), std::mem::take(divisor)],
        Form::Sum(sum) => [std::mem::take(sum), Polynomial::default()],
    };
    let atoms = parts.into_iter().flat_map(|part| part.0).flat_map(|(monomial, _)| monomial.0);
    into.extend(atoms.filter_map(|atom| if let Atom::Nested(nested) = atom { Some(nested) } else { None }));
}

/// All that exist in the process.
static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

#[derive(Default)]
struct Known {
    hasher: RandomState,
    by_hash: HashMap<u64, Vec<Weak<Node>>>,
    count: usize,
    /// How many existed when those that no longer do were last forgotten.
    kept: usize,
}

impl Known {
    fn intern(&mut self, form: Form) -> Nested {
        let hash = self.hasher.hash_one(&form);
        let same = self.by_hash.entry(hash).or_default();
        if let Some(node) = same.iter().filter_map(Weak::upgrade).find(|node| node.form == form) {
            return Nested(node);
        }
        let depth = form.nested().map(|nested| nested.0.depth).max().unwrap_or(0).saturating_add(1);
        let node = Arc::new(Node { form, depth });
        same.push(Arc::downgrade(&node));
        self.count += 1;
        if self.count > 2 * self.kept + 64 {
            self.by_hash.retain(|_, same| {
                same.retain(|node| node.strong_count() > 0);
                !same.is_empty()
            });
            self.count = self.by_hash.values().map(Vec::len).sum();
            self.kept = self.count;
        }
        Nested(node)
    }
}

/// All that a polynomial holds, each once, behind what it holds itself.
pub(in crate::graph) fn innermost_first(polynomial: &Polynomial) -> Vec<&Nested> {
    let (mut seen, mut order) = (HashSet::new(), Vec::new());
    let mut left: Vec<(&Nested, bool)> = polynomial.nested().rev().map(|nested| (nested, false)).collect();
    while let Some((nested, is_done)) = left.pop() {
        steps::count(1);
        if is_done {
            order.push(nested);
        } else if seen.insert(nested.id()) {
            left.push((nested, true));
            left.extend(nested.form().nested().rev().map(|inner| (inner, false)));
        }
    }
    order
}
