//! Shape classes: the sizes of executions whose inputs have the same shapes are computed once.
//!
//! A model with many steps has thousands of sizes, strides and places, all of which follow from the sizes of its inputs. Those
//! of a class that comes a second time are kept. Executions never wait for each other: what another one is looking at is computed
//! again.

use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use super::sizes::Bound;

/// How many classes are kept, each at the place that its sizes say.
const PLACES: usize = 16;

/// Where the slots of an arena begin, and its bytes.
pub(crate) type Slots = (SmallVec<[i64; 16]>, i64);

/// What follows from the shapes of inputs.
pub(crate) struct ShapeClass {
    /// The sizes of all names.
    pub bound: Bound,
    pub table: Box<[i64]>,
    /// Of each arena.
    pub slots: Box<[Slots]>,
}

/// What is known of the sizes that inputs give.
pub(crate) enum Known {
    Class(Arc<ShapeClass>),
    /// They came before.
    Seen,
    Nothing,
}

/// The classes of a model.
#[derive(Default)]
pub(crate) struct ShapeClasses([Mutex<Option<Entry>>; PLACES]);

struct Entry {
    given: Bound,
    class: Option<Arc<ShapeClass>>,
}

impl ShapeClasses {
    /// What is known of these sizes, which are noted.
    pub fn find(&self, given: &Bound) -> Known {
        let Some(Ok(mut entry)) = self.0.get(place(given)).map(Mutex::try_lock) else { return Known::Nothing };
        match &*entry {
            Some(known) if known.given == *given => known.class.clone().map_or(Known::Seen, Known::Class),
            _ => {
                *entry = Some(Entry { given: given.clone(), class: None });
                Known::Nothing
            }
        }
    }

    /// Keeps what follows from these sizes.
    pub fn keep(&self, given: Bound, class: ShapeClass) {
        if let Some(Ok(mut entry)) = self.0.get(place(&given)).map(Mutex::try_lock) {
            *entry = Some(Entry { given, class: Some(Arc::new(class)) });
        }
    }
}

/// Where the class of these sizes is kept.
fn place(given: &[i64]) -> usize {
    // The multiplier of Knuth's MMIX; its high bits are good.
    let mix = |hash: u64, size: &i64| (hash ^ *size as u64).wrapping_mul(6_364_136_223_846_793_005).rotate_left(32);
    given.iter().fold(0, mix) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_a_second_time_is_kept_until_another_takes_its_place() {
        let classes = ShapeClasses::default();
        let given = Bound::from_slice(&[3, 7]);
        assert!(matches!(classes.find(&given), Known::Nothing));
        assert!(matches!(classes.find(&given), Known::Seen));
        let class = ShapeClass { bound: given.clone(), table: Box::new([1, 2]), slots: Box::new([]) };
        classes.keep(given.clone(), class);
        assert!(matches!(classes.find(&given), Known::Class(class) if *class.table == [1, 2]));
        let other =
            (0..).map(|size| Bound::from_slice(&[size, 1])).find(|other| place(other) == place(&given)).unwrap();
        assert!(matches!(classes.find(&other), Known::Nothing));
        assert!(matches!(classes.find(&given), Known::Nothing));
    }
}
