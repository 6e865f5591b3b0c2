//! What rows are to the last axis: kernels along an axis whose elements do not lie side by side, of a tensor `[outer, axis,
//! inner]` along the middle one. Each program takes neighbouring columns together, so that memory is read as it lies. Half
//! types accumulate in `f32`; sums and products of integers wrap.

use max::kernel::prelude::*;

use crate::reduce::{beyond, same};

/// Makes a function a kernel of columns: how many a program takes stands here. A CPU reads memory fastest where it reads on for
/// a page; a thread of a GPU takes one. Where that is for too few threads, which read each column several times, rows are copied
/// together on a GPU instead.
macro_rules! columns {
    (op = $op:literal, $($kernel:tt)*) => {
        #[kernel(op = $op, tile(COLUMNS = 1024, gpu(COLUMNS = 256)))]
        $($kernel)*
    };
}

columns! {
    op = "sum_columns",
    /// The sum along the middle axis.
    pub fn sum_columns<T: Number>(y: Out<T, 2>, x: In<T, 3>) {
        let [outer, part] = program_id();
        y.select(outer).block::<COLUMNS>(part).write(x.select(outer).columns::<COLUMNS>(part).sum());
    }
}

columns! {
    op = "mean_columns",
    /// The mean along the middle axis.
    pub fn mean_columns<T: Float>(y: Out<T, 2>, x: In<T, 3>) {
        let [outer, part] = program_id();
        let x = x.select(outer);
        let n = T::from_i64(x.dim(0));
        y.select(outer).block::<COLUMNS>(part).write(x.columns::<COLUMNS>(part).sum().map(|s| s / n));
    }
}

columns! {
    op = "prod_columns",
    /// The product along the middle axis.
    pub fn prod_columns<T: Number>(y: Out<T, 2>, x: In<T, 3>) {
        let [outer, part] = program_id();
        y.select(outer).block::<COLUMNS>(part).write(x.select(outer).columns::<COLUMNS>(part).prod());
    }
}

columns! {
    op = "reduce_max_columns",
    /// The largest element along the middle axis; NaN if any is NaN.
    pub fn reduce_max_columns<T: Number>(y: Out<T, 2>, x: In<T, 3>) {
        let [outer, part] = program_id();
        y.select(outer).block::<COLUMNS>(part).write(x.select(outer).columns::<COLUMNS>(part).max());
    }
}

columns! {
    op = "reduce_min_columns",
    /// The smallest element along the middle axis; NaN if any is NaN.
    pub fn reduce_min_columns<T: Number>(y: Out<T, 2>, x: In<T, 3>) {
        let [outer, part] = program_id();
        y.select(outer).block::<COLUMNS>(part).write(x.select(outer).columns::<COLUMNS>(part).min());
    }
}

columns! {
    op = "argmax_columns",
    /// The position of the largest element along the middle axis, of the smallest one if `smallest`: the first of equal ones,
    /// the first NaN if there is one; along an empty axis its length.
    pub fn argmax_columns<T: Number>(y: Out<i64, 2>, x: In<T, 3>, #[param(default = false)] smallest: bool) {
        let [outer, part] = program_id();
        let x = x.select(outer);
        let n = x.dim(0);
        let last = if smallest { T::HIGHEST } else { T::LOWEST };
        let found = x
            .columns::<COLUMNS>(part)
            .fold_with((last, n), |(m, at), (v, i)| if beyond(v, m, smallest) { (v, i) } else { (m, at) })
            .reduce(|(m, at), (v, i)| {
                if beyond(v, m, smallest) || (same(v, m) && i < at) { (v, i) } else { (m, at) }
            });
        y.select(outer).block::<COLUMNS>(part).write(found.map(|(_, at)| if at < n { at } else { 0 }));
    }
}

columns! {
    op = "var_columns",
    /// The variance along the middle axis: the mean of the squares of the differences from the mean. Rows are combined with
    /// others by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    pub fn var_columns<T: Float>(y: Out<T, 2>, x: In<T, 3>) {
        let [outer, part] = program_id();
        let moments = x
            .select(outer)
            .columns::<COLUMNS>(part)
            .fold_with((0.0, 0.0), |(n, s), (v, _)| (n + 1.0, s + v))
            .then(|(n, s)| (n, s / n), 0.0, |q, (v, _), (_, mean)| q + (v - mean) * (v - mean))
            .reduce(|((n, mean), q), ((m, other), r)| {
                let all = n + m;
                let d = other - mean;
                ((all, mean + d * (m / all)), q + r + d * d * (n * (m / all)))
            });
        y.select(outer).block::<COLUMNS>(part).write(moments.map(|((n, _), q)| q / n));
    }
}

/// What two parts of a column come to: their largest elements, and the sums of their exponentials shifted by these. The smaller
/// one's sum is brought to the larger element.
#[kernel]
fn together<T: Float>(m: T, s: T, n: T, r: T) -> (T, T) {
    let l = m.max(n);
    let d = (m.min(n) - l).exp();
    (l, if m < n { s * d + r } else { s + r * d })
}

columns! {
    op = "softmax_columns",
    /// `exp(x) / sum(exp(x))` along the middle axis, shifted by the largest element so that no exponential overflows.
    pub fn softmax_columns<T: Float>(y: Out<T, 3>, x: In<T, 3>) {
        let [outer, part] = program_id();
        let x = x.select(outer).columns::<COLUMNS>(part);
        let sums = x
            // NaN need not be the largest: it gets into the sum.
            .fold_with(T::LOWEST, |m, (v, _)| if v > m { v } else { m })
            .then(|m| m, 0.0, |s, (v, _), m| s + (v - m).exp())
            .reduce(|(m, s), (n, r)| together(m, s, n, r));
        let scale = sums.map(|(m, s)| (m, 1.0 / s));
        y.select(outer).columns::<COLUMNS>(part).write(x.zip(scale).map(|(v, (m, scale))| (v - m).exp() * scale));
    }
}

columns! {
    op = "logsoftmax_columns",
    /// `x - log(sum(exp(x)))` along the middle axis.
    pub fn logsoftmax_columns<T: Float>(y: Out<T, 3>, x: In<T, 3>) {
        let [outer, part] = program_id();
        let x = x.select(outer).columns::<COLUMNS>(part);
        let shift = x
            .fold_with(T::LOWEST, |m, (v, _)| if v > m { v } else { m })
            .then(|m| m, 0.0, |s, (v, _), m| s + (v - m).exp())
            .reduce(|(m, s), (n, r)| together(m, s, n, r))
            .map(|(m, s)| m + s.log());
        y.select(outer).columns::<COLUMNS>(part).write(x.zip(shift).map(|(v, shift)| v - shift));
    }
}

columns! {
    op = "cumsum_columns",
    /// The sums of the elements up to each one along the middle axis: without that one if `exclusive`, from the end if
    /// `reverse`.
    pub fn cumsum_columns<T: Number>(
        y: Out<T, 3>,
        x: In<T, 3>,
        #[param(default = false)] exclusive: bool,
        #[param(default = false)] reverse: bool,
    ) {
        let [outer, part] = program_id();
        let x = x.select(outer).columns::<COLUMNS>(part);
        let y = y.select(outer).columns::<COLUMNS>(part);
        if reverse {
            if exclusive {
                y.reverse().write_exclusive_scan(x.reverse(), 0, |a, b| a + b);
            } else {
                y.reverse().write_scan(x.reverse(), 0, |a, b| a + b);
            }
        } else if exclusive {
            y.write_exclusive_scan(x, 0, |a, b| a + b);
        } else {
            y.write_scan(x, 0, |a, b| a + b);
        }
    }
}
