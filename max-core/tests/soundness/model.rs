//! What indices mean: a plain reading of the language's rules, computed in 128 bits and wrapped where a coordinate is made.

/// A tensor of floats.
#[derive(Clone)]
pub struct Array {
    pub dims: Vec<i64>,
    pub values: Vec<f32>,
}

impl Array {
    /// Small numbers, which sums of many are exact of.
    pub fn new(dims: &[i64]) -> Self {
        let len = dims.iter().product::<i64>();
        Array { dims: dims.to_vec(), values: (0..len).map(|i| (i * 7 % 19 + 1) as f32).collect() }
    }

    /// An element, or 0 outside.
    pub fn at(&self, index: &[i64]) -> f32 {
        let mut place = 0;
        for (&i, &dim) in index.iter().zip(&self.dims) {
            if !(0..dim).contains(&i) {
                return 0.0;
            }
            place = place * dim + i;
        }
        self.values[place as usize]
    }
}

/// A coordinate.
pub fn wrap(exact: i128) -> i64 {
    exact as i64
}

/// A vector of the language: its length, and what an index reads.
pub struct Line<'a> {
    pub len: i64,
    pub at: Box<dyn Fn(i64) -> f32 + 'a>,
}

impl<'a> Line<'a> {
    pub fn new(len: i64, at: impl Fn(i64) -> f32 + 'a) -> Self {
        Line { len, at: Box::new(at) }
    }

    pub fn slice(self, lo: i64, n: i64) -> Self {
        Line::new(n.max(0), move |i| (self.at)(wrap(i128::from(lo) + i128::from(i))))
    }

    pub fn reverse(self) -> Self {
        let last = i128::from(self.len) - 1;
        Line::new(self.len, move |i| (self.at)(wrap(last - i128::from(i))))
    }

    /// The `i`-th block of so many.
    pub fn block(self, i: i64, size: i64) -> Self {
        let lo = wrap(i128::from(i) * i128::from(size));
        let left = wrap(i128::from(self.len) - i128::from(lo));
        self.slice(lo, size.min(left))
    }

    pub fn values(&self) -> Vec<f32> {
        (0..self.len).map(|i| (self.at)(i)).collect()
    }

    pub fn sum(&self) -> f32 {
        self.values().iter().sum()
    }
}
