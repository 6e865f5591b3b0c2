//! Tiles, and the variables that hold them: the accumulators of `dot`.
//!
//! Variables defer their last GEMM, so that it can write its accumulators straight to the result.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;

use super::gemm::Gemm;
use super::gemm::microkernel::Accumulators;
use super::isa::{BLOCK, Level, TAIL};
use super::lanes::values;
use super::{At, Cpu};
use crate::kernel::ir::ReduceOp;
use crate::kernel::lang::{Any, Lanes, Prim, Val};

/// A tile: its rows. It begins a cache line, so that no vector of a row of whole vectors lies in two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct CpuTile<P, const R: usize, const C: usize>(pub(super) [[P; C]; R]);

impl<P, const R: usize, const C: usize> std::ops::Deref for CpuTile<P, R, C> {
    type Target = [[P; C]; R];
    #[inline(always)]
    fn deref(&self) -> &[[P; C]; R] {
        &self.0
    }
}

impl<P, const R: usize, const C: usize> std::ops::DerefMut for CpuTile<P, R, C> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [[P; C]; R] {
        &mut self.0
    }
}

/// A variable that holds a tile.
///
/// It is lazy: zeros are not written before something other than a GEMM reads them, and the last GEMM that was added is
/// not computed before its sum is used: so the first one begins with empty registers, and the last one writes its
/// accumulators to where they are stored.
pub struct CpuTileVar<P, const R: usize, const C: usize> {
    /// Its value, without what is deferred.
    tile: UnsafeCell<MaybeUninit<CpuTile<P, R, C>>>,
    /// Whether its value is zeros that are not written yet.
    blank: Cell<bool>,
    /// A GEMM that is deferred.
    product: Cell<Option<Gemm<P>>>,
}

impl<P: Prim, const R: usize, const C: usize> CpuTileVar<P, R, C> {
    #[inline(always)]
    pub(super) fn new(v: CpuTile<P, R, C>) -> Self {
        CpuTileVar { tile: UnsafeCell::new(MaybeUninit::new(v)), blank: Cell::new(false), product: Cell::new(None) }
    }

    /// Begins to exist, with zeros.
    #[inline(always)]
    pub(super) fn zeros(place: &mut MaybeUninit<Self>) {
        let place = place.as_mut_ptr();
        // SAFETY: the place is writable; `tile` may stay as it is, for it need not be initialized.
        unsafe {
            (&raw mut (*place).blank).write(Cell::new(true));
            (&raw mut (*place).product).write(Cell::new(None));
        }
    }

    #[inline(always)]
    pub(super) fn get<L: Level>(&self) -> CpuTile<P, R, C> {
        // SAFETY: the tile is settled, and no reference to it is kept.
        unsafe { *self.materialize::<L>() }
    }

    #[inline(always)]
    pub(super) fn set(&self, v: CpuTile<P, R, C>) {
        self.blank.set(false);
        self.product.set(None);
        // SAFETY: no reference to the tile is kept.
        unsafe { (*self.tile.get()).write(v) };
    }

    /// The materialized tile: with all that was deferred.
    #[inline(always)]
    pub(super) fn materialize<L: Level>(&self) -> *mut CpuTile<P, R, C> {
        if self.blank.get() || self.has_deferred() {
            materialize::<L, P>(self.any());
        }
        self.tile.get().cast()
    }

    /// Whether a GEMM is deferred.
    #[inline(always)]
    pub(super) fn has_deferred(&self) -> bool {
        // SAFETY: no reference to the GEMM is kept.
        unsafe { (*self.product.as_ptr()).is_some() }
    }

    /// The same, of a shape that is known when the kernel runs.
    #[inline(always)]
    pub(super) fn any(&self) -> AnyVar<'_, P> {
        AnyVar { tile: self.tile.get().cast(), shape: [R, C], blank: &self.blank, product: &self.product }
    }
}

/// A variable that holds a tile, whatever its shape: what computes GEMMs is compiled once for all shapes.
#[derive(Clone, Copy)]
pub(super) struct AnyVar<'a, P> {
    tile: *mut P,
    /// Rows and columns.
    pub shape: [usize; 2],
    blank: &'a Cell<bool>,
    product: &'a Cell<Option<Gemm<P>>>,
}

/// Computes what was deferred, and gives the tile's first element.
#[inline(never)]
pub(super) fn materialize<L: Level, P: Prim>(v: AnyVar<'_, P>) -> *mut P {
    v.flush::<L>();
    if v.blank.replace(false) {
        // SAFETY: zero bits are the zero of every type that kernels compute with.
        unsafe { v.tile.write_bytes(0, v.shape[0] * v.shape[1]) };
    }
    v.tile
}

impl<P: Prim> AnyVar<'_, P> {
    /// Computes the GEMM that is deferred.
    #[inline(always)]
    pub(super) fn flush<L: Level>(self) {
        if let Some(product) = self.product.take() {
            // SAFETY: operands of a GEMM that is deferred last as long as the launch.
            unsafe { self.compute::<L>(0, &product) };
        }
    }

    /// Defers a GEMM, from row 0 on.
    ///
    /// # Safety
    /// Its operands must last as long as the launch.
    #[inline(always)]
    pub(super) unsafe fn defer<L: Level>(self, product: Gemm<P>) {
        self.flush::<L>();
        self.product.set(Some(product));
    }

    /// Adds a GEMM to the rows from `above` on.
    ///
    /// # Safety
    /// The GEMM's operands must be there, and the rows and columns that it computes inside the tile.
    #[inline(always)]
    pub(super) unsafe fn add<L: Level>(self, above: usize, product: &Gemm<P>) {
        self.flush::<L>();
        // SAFETY: by the contract above.
        unsafe { self.compute::<L>(above, product) };
    }

    /// # Safety
    /// As for [`add`](Self::add).
    #[inline(never)]
    unsafe fn compute<L: Level>(self, above: usize, product: &Gemm<P>) {
        let [all, width] = self.shape;
        let blank = self.blank.replace(false);
        // SAFETY: by the contract above; zero bits are zero.
        unsafe {
            let to = self.tile.add(above * width);
            if blank {
                let [rows, columns] = product.extents();
                self.tile.write_bytes(0, above * width);
                to.add(rows * width).write_bytes(0, (all - above - rows) * width);
                let mut i = 0;
                while columns < width && i < rows {
                    to.add(i * width + columns).write_bytes(0, width - columns);
                    i += 1;
                }
            }
            let from = if blank { ptr::null() } else { to.cast_const() };
            product.run::<L>(&Accumulators { from, to, from_row: width, to_row: width });
        }
    }

    /// The GEMM that is deferred, and what it is to be added to; their sum is what the variable holds.
    #[inline(always)]
    pub(super) fn deferred(self) -> Option<(Gemm<P>, *const P)> {
        let from = if self.blank.get() { ptr::null() } else { self.tile.cast_const() };
        self.product.get().map(|product| (product, from))
    }
}

#[inline(always)]
pub(super) fn map_assign<L: Level, T: Any, const R: usize, const C: usize>(
    v: &CpuTileVar<T::Compute, R, C>,
    f: impl Fn(Val<Cpu<L>, i64>, Val<Cpu<L>, i64>, Val<Cpu<L>, T>) -> Val<Cpu<L>, T>,
) {
    let tile = v.materialize::<L>();
    let mut i = 0;
    while i < R {
        let mut j = 0;
        while j < C {
            // SAFETY: the element is in the variable, to which no reference is kept while lane code runs.
            let element = unsafe { (&(*tile).0)[i][j] };
            let element = f(Val(i as i64), Val(j as i64), Val(element)).0;
            // SAFETY: as above.
            unsafe { (&mut (*tile).0)[i][j] = element };
            j += 1;
        }
        i += 1;
    }
}

#[inline(always)]
pub(super) fn zip<L: Level, T: Any, U: Any, V: Any, const R: usize, const C: usize, const P: usize, const Q: usize>(
    a: &CpuTile<T::Compute, R, C>,
    b: &CpuTile<U::Compute, P, Q>,
    f: impl Fn(Val<Cpu<L>, T>, Val<Cpu<L>, U>) -> Val<Cpu<L>, V>,
) -> CpuTile<V::Compute, R, C> {
    const { assert!((P == R || P == 1) && (Q == C || Q == 1), "tiles of these shapes do not broadcast") }
    let mut out = CpuTile([[V::Compute::default(); C]; R]);
    let mut i = 0;
    while i < R {
        let row = if P == 1 { &b[0] } else { &b[i] };
        let mut j = 0;
        while j < C {
            out[i][j] = f(Val(a[i][j]), Val(if Q == 1 { row[0] } else { row[j] })).0;
            j += 1;
        }
        i += 1;
    }
    out
}

#[inline(always)]
pub(super) fn zip_assign<L: Level, T: Any, U: Any, const R: usize, const C: usize, const P: usize, const Q: usize>(
    v: &CpuTileVar<T::Compute, R, C>,
    b: CpuTile<U::Compute, P, Q>,
    f: impl Fn(Val<Cpu<L>, T>, Val<Cpu<L>, U>) -> Val<Cpu<L>, T>,
) {
    const { assert!((P == R || P == 1) && (Q == C || Q == 1), "tiles of these shapes do not broadcast") }
    let tile = v.materialize::<L>();
    let mut i = 0;
    while i < R {
        let row = if P == 1 { &b[0] } else { &b[i] };
        let mut j = 0;
        while j < C {
            // SAFETY: as in `map_assign`.
            let element = unsafe { (&(*tile).0)[i][j] };
            let element = f(Val(element), Val(if Q == 1 { row[0] } else { row[j] })).0;
            // SAFETY: as above.
            unsafe { (&mut (*tile).0)[i][j] = element };
            j += 1;
        }
        i += 1;
    }
}

#[inline(always)]
pub(super) fn reduce_var<L: Level, T: Any, const R: usize, const C: usize>(
    op: ReduceOp,
    v: &CpuTileVar<T::Compute, R, C>,
) -> CpuTile<T::Compute, R, 1> {
    // SAFETY: nothing assigns the variable meanwhile.
    let tile = unsafe { &*v.materialize::<L>() };
    let mut out = CpuTile([[T::Compute::default(); 1]; R]);
    let mut i = 0;
    while i < R {
        out[i][0] = reduce_row(op, &tile[i]);
        i += 1;
    }
    out
}

/// A tile whose rows are written one after the other: `fill` writes all elements of a row. Zeros before them would be a pass
/// over memory of their own, and with them two copies of the tile.
///
/// # Safety
/// `fill` must write every element.
#[inline(always)]
pub(super) unsafe fn from_rows<P: Copy, const R: usize, const C: usize>(
    fill: impl Fn(usize, &mut [MaybeUninit<P>; C]),
) -> [[P; C]; R] {
    let mut tile = MaybeUninit::<[[P; C]; R]>::uninit();
    // SAFETY: the same memory, as elements that nobody has written.
    let rows = unsafe { &mut *tile.as_mut_ptr().cast::<[[MaybeUninit<P>; C]; R]>() };
    let mut i = 0;
    while i < R {
        fill(i, &mut rows[i]);
        i += 1;
    }
    // SAFETY: by the contract above.
    unsafe { tile.assume_init() }
}

/// Writes a row: the first items of lanes, and what they have past their end.
#[inline(always)]
pub(super) fn fill_row<L: Level, T: Any, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, T>>, const C: usize>(
    row: &mut [MaybeUninit<T::Compute>; C],
    lanes: A,
) {
    let mut j = 0;
    let plain = lanes.plain(0, C as i64);
    if plain {
        while j + BLOCK <= C {
            let v = values::<L, T, A, BLOCK>(lanes, At::whole(j as i64, BLOCK));
            let mut k = 0;
            // Both bounds, here and below, so that no check of the index remains.
            while k < BLOCK && j + k < C {
                row[j + k].write(v[k]);
                k += 1;
            }
            j += BLOCK;
        }
    }
    while j < C {
        let w = if C - j < TAIL { C - j } else { TAIL };
        let v = values::<L, T, A, TAIL>(lanes, At::masked(j as i64, w, plain));
        let mut k = 0;
        while k < w && k < TAIL && j + k < C {
            row[j + k].write(v[k]);
            k += 1;
        }
        j += w;
    }
}

/// Reduces the columns of a row by a fixed tree.
#[inline(always)]
pub(super) fn reduce_row<P: Prim, const C: usize>(op: ReduceOp, row: &[P; C]) -> P {
    macro_rules! extreme {
        ($compare:tt, $exact:ident) => {{
            // One instruction compares where there is no NaN, and where the sign of zeros does not matter.
            let (mut is_nan, mut j) = (false, 0);
            while j < C {
                is_nan |= row[j] != row[j];
                j += 1;
            }
            let found = by_halves(row, #[inline(always)] |a, b| if a $compare b { a } else { b });
            if P::FLOAT && (is_nan || found == P::default()) {
                return by_halves(row, #[inline(always)] |a, b| a.$exact(b));
            }
            found
        }};
    }
    match op {
        ReduceOp::Sum => by_halves(
            row,
            #[inline(always)]
            |a, b| a.add(b),
        ),
        ReduceOp::Max => extreme!(>, max),
        ReduceOp::Min => extreme!(<, min),
    }
}

#[inline(always)]
fn by_halves<P: Prim, const C: usize>(row: &[P; C], f: impl Fn(P, P) -> P) -> P {
    let (mut row, mut n) = (*row, C);
    // The last vector is halved in a variable of its own, which lies in registers: a half that was just stored is not there yet
    // when the next round reads parts of it.
    let in_vector = C.is_multiple_of(TAIL) && C > 0;
    while n > if in_vector { TAIL } else { 1 } {
        // Of whole vectors whole vectors.
        let half = if in_vector { n / 2 / TAIL * TAIL } else { n / 2 };
        let mut j = 0;
        while j < half {
            row[j] = f(row[j], row[n - half + j]);
            j += 1;
        }
        n -= half;
    }
    if !in_vector {
        return row[0];
    }
    // SAFETY: the row has at least `TAIL` columns.
    let mut last = unsafe { row.as_ptr().cast::<[P; TAIL]>().read() };
    halve::<P, 8>(&mut last, &f);
    halve::<P, 4>(&mut last, &f);
    halve::<P, 2>(&mut last, &f);
    halve::<P, 1>(&mut last, &f);
    last[0]
}

/// Combines `N` items with the next ones.
#[inline(always)]
fn halve<P: Prim, const N: usize>(row: &mut [P; TAIL], f: &impl Fn(P, P) -> P) {
    let mut j = 0;
    while j < N {
        row[j] = f(row[j], row[N + j]);
        j += 1;
    }
}
