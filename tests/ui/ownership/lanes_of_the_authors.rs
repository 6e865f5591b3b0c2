use max::kernel::lang::{In, Lanes, Target, Val};

/// Lanes that say of any block that it may be read without a look at bounds.
#[derive(Clone, Copy)]
struct Everything<M: Target>(In<M, f32, 1>);

impl<M: Target> Lanes<M> for Everything<M> {
    type Item = Val<M, f32>;
    type Block<const N: usize> = M::Block<f32, N>;
    fn len(self) -> Val<M, i64> {
        Val::max_value()
    }
    fn plain(self, _: i64, _: i64) -> bool {
        true
    }
    fn block<const N: usize>(self, at: M::At) -> M::Block<f32, N> {
        Lanes::block::<N>(self.0, at)
    }
    fn lane<const N: usize>(&self, b: &M::Block<f32, N>, j: usize) -> Val<M, f32> {
        self.0.lane(b, j)
    }
}

fn main() {}
