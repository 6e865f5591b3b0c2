//! Column kernels: reductions, writes and scans along a strided axis, many neighbouring columns at a time.
//!
//! They walk row after row, so that memory is read contiguously.

use super::isa::{BLOCK, Level, TAIL};
use super::{At, Cpu};
use crate::kernel::lang::{Any, ColumnLanes, LaneItem, Lanes, OwnedColumns, Val};

/// The most columns that are read together, a row after the other: hardware prefetchers follow runs of this length.
const WIDE: usize = 1024;
/// With fewer rows, columns are taken in blocks: those of a block are near enough, and a strip has much to begin and to
/// end.
pub(super) const MANY_ROWS: i64 = 32;
/// Rows that are taken of a block of columns before those beside it: what they are reduced to stays in registers
/// meanwhile, and they in the cache, to be reduced twice.
const ROWS: i64 = 16;
/// Rows whose columns are reduced together, before they are combined with those above: rounding errors grow with the
/// length of such a span and with their number, not with the product.
const SPAN: i64 = 512;
/// The same of scans.
const SCAN_SPAN: i64 = 64;

/// Calls `f` for strips of columns, each of two whole blocks or more; returns where the rest begins.
#[inline(always)]
fn in_strips(n: i64, f: impl Fn(At)) -> i64 {
    let mut lo = 0;
    while n - lo >= 2 * BLOCK as i64 {
        let left = n - lo;
        let w = if left < WIDE as i64 { left as usize / BLOCK * BLOCK } else { WIDE };
        f(At::whole(lo, w));
        lo += w as i64;
    }
    lo
}

/// The columns that there are of `N`: of a strip, those of its blocks.
#[inline(always)]
fn width<const N: usize>(at: At) -> usize {
    if N > BLOCK && at.w < N { at.w } else { N }
}

/// The items of lanes, computed together where that can be.
#[inline(always)]
pub(super) fn items<L: Level, A: Lanes<Cpu<L>, Item: LaneItem<Cpu<L>>>, const N: usize>(
    lanes: A,
    at: At,
) -> <A::Item as LaneItem<Cpu<L>>>::Array<N> {
    if N <= BLOCK || A::STRIPS {
        let block = lanes.block::<N>(at);
        let mut items = lanes.lane::<N>(&block, 0).splat::<N>();
        let mut j = 1;
        while j < width::<N>(at) {
            A::Item::set_lane(&mut items, j, lanes.lane::<N>(&block, j));
            j += 1;
        }
        return items;
    }
    let first = lanes.block::<BLOCK>(At::whole(at.i, BLOCK));
    let mut items = lanes.lane::<BLOCK>(&first, 0).splat::<N>();
    let mut j = 0;
    while j < width::<N>(at) {
        let block = lanes.block::<BLOCK>(At::whole(at.i + j as i64, BLOCK));
        let mut k = 0;
        while k < BLOCK {
            A::Item::set_lane(&mut items, j + k, lanes.lane::<BLOCK>(&block, k));
            k += 1;
        }
        j += BLOCK;
    }
    items
}

/// Stores lanes strip by strip, each by blocks, if they cost less so and all of them are plain; returns where the rest
/// begins.
#[inline(always)]
pub(super) fn store_strips<L: Level, T: Any, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, T>>>(
    lanes: A,
    n: i64,
    plain: bool,
    store: impl Fn(At, &[T::Compute; BLOCK]),
) -> i64 {
    if !plain || !lanes.wide() {
        return 0;
    }
    in_strips(
        n,
        #[inline(always)]
        |at| {
            let block = lanes.block::<WIDE>(at);
            let mut j = 0;
            while j < width::<WIDE>(at) {
                let mut v = [T::Compute::default(); BLOCK];
                let mut k = 0;
                while k < BLOCK {
                    v[k] = lanes.lane::<WIDE>(&block, j + k).0;
                    k += 1;
                }
                store(At::whole(at.i + j as i64, BLOCK), &v);
                j += BLOCK;
            }
        },
    )
}

/// Reduces `N` columns.
#[inline(always)]
pub(super) fn fold<L: Level, C: ColumnLanes<Cpu<L>>, A: LaneItem<Cpu<L>>, const N: usize>(
    columns: C,
    at: At,
    init: A,
    f: impl Fn(A, (C::Item, Val<Cpu<L>, i64>)) -> A,
    combine: impl Fn(A, A) -> A,
) -> A::Array<N> {
    let fixed = columns.fixed::<N>(at);
    fold_spans::<L, A, N>(
        (columns.rows().0, width::<N>(at)),
        init,
        #[inline(always)]
        |span, rows| {
            if N >= BLOCK {
                let mut j = 0;
                while j < width::<N>(at) {
                    fold_block::<L, C, A, N, BLOCK>(span, columns, &fixed, (at, j), rows, &f);
                    j += BLOCK;
                }
            } else {
                fold_block::<L, C, A, N, TAIL>(span, columns, &fixed, (at, 0), rows, &f);
            }
        },
        &combine,
    )
}

/// Reduces the rows of `N` columns: `fold` takes some of them into what those above in their span came to, which
/// `combine` puts together with what the spans above came to.
#[inline(always)]
fn fold_spans<L: Level, A: LaneItem<Cpu<L>>, const N: usize>(
    (rows, width): (i64, usize),
    init: A,
    fold: impl Fn(&mut A::Array<N>, (i64, i64)),
    combine: &impl Fn(A, A) -> A,
) -> A::Array<N> {
    let mut total = init.splat::<N>();
    let mut span = init.splat::<N>();
    let mut first = 0;
    while first < rows {
        let last = if rows - first < ROWS { rows } else { first + ROWS };
        fold(&mut span, (first, last));
        if last % SPAN == 0 || last == rows {
            let mut j = 0;
            while j < width {
                let both = combine(A::lane(&total, j), A::lane(&span, j));
                A::set_lane(&mut total, j, if last <= SPAN { A::lane(&span, j) } else { both });
                A::set_lane(&mut span, j, init);
                j += 1;
            }
        }
        first = last;
    }
    total
}

/// Takes rows of the `B` columns from `from` on into the accumulators.
#[inline(always)]
fn fold_block<L: Level, C: ColumnLanes<Cpu<L>>, A: LaneItem<Cpu<L>>, const N: usize, const B: usize>(
    acc: &mut A::Array<N>,
    columns: C,
    fixed: &C::Fixed<N>,
    (at, from): (At, usize),
    rows: (i64, i64),
    f: &impl Fn(A, (C::Item, Val<Cpu<L>, i64>)) -> A,
) {
    let mut own = A::lane(acc, from).splat::<B>();
    let mut j = 1;
    while j < B {
        A::set_lane(&mut own, j, A::lane(acc, from + j));
        j += 1;
    }
    let own = fold_rows::<L, C, A, N, B>(
        own,
        columns,
        fixed,
        (at, from),
        rows,
        #[inline(always)]
        |a, item, _| f(a, item),
    );
    let mut j = 0;
    while j < B {
        A::set_lane(acc, from + j, A::lane(&own, j));
        j += 1;
    }
}

/// Takes rows of the `B` columns from `from` on into `acc`; `f` is also given which of these columns it is.
#[inline(always)]
fn fold_rows<L: Level, C: ColumnLanes<Cpu<L>>, A: LaneItem<Cpu<L>>, const N: usize, const B: usize>(
    mut acc: A::Array<B>,
    columns: C,
    fixed: &C::Fixed<N>,
    (at, from): (At, usize),
    (first, last): (i64, i64),
    f: impl Fn(A, (C::Item, Val<Cpu<L>, i64>), usize) -> A,
) -> A::Array<B> {
    let mut k = first;
    while k < last {
        let block = columns.block::<N, B>(fixed, at, from, Val(k));
        let mut j = 0;
        while j < B {
            let v = f(A::lane(&acc, j), (columns.lane::<N, B>(fixed, &block, from, j), Val(k)), j);
            A::set_lane(&mut acc, j, v);
            j += 1;
        }
        k += 1;
    }
    acc
}

/// Reduces `N` columns twice: some rows by both folds while they are near, then the rows below.
#[inline(always)]
pub(super) fn fold_twice<
    L: Level,
    C: ColumnLanes<Cpu<L>>,
    A: LaneItem<Cpu<L>>,
    B: LaneItem<Cpu<L>>,
    S: LaneItem<Cpu<L>>,
    const N: usize,
>(
    columns: C,
    at: At,
    first: (A, impl Fn(A, (C::Item, Val<Cpu<L>, i64>)) -> A),
    finish: impl Fn(A) -> B,
    second: (S, impl Fn(S, (C::Item, Val<Cpu<L>, i64>), B) -> S),
    combine: impl Fn((B, S), (B, S)) -> (B, S),
) -> <(B, S) as LaneItem<Cpu<L>>>::Array<N> {
    let fixed = columns.fixed::<N>(at);
    fold_spans::<L, (B, S), N>(
        (columns.rows().0, width::<N>(at)),
        (finish(first.0), second.0),
        #[inline(always)]
        |span, rows| {
            if N >= BLOCK {
                let mut j = 0;
                while j < width::<N>(at) {
                    fold_block_twice::<L, C, A, B, S, N, BLOCK>(
                        span,
                        columns,
                        &fixed,
                        (at, j),
                        rows,
                        (&first, &finish, &second, &combine),
                    );
                    j += BLOCK;
                }
            } else {
                fold_block_twice::<L, C, A, B, S, N, TAIL>(
                    span,
                    columns,
                    &fixed,
                    (at, 0),
                    rows,
                    (&first, &finish, &second, &combine),
                );
            }
        },
        &combine,
    )
}

/// Reduces rows of the `W` columns from `from` on twice, and combines that with what those above in their span came to.
#[inline(always)]
fn fold_block_twice<
    L: Level,
    C: ColumnLanes<Cpu<L>>,
    A: LaneItem<Cpu<L>>,
    B: LaneItem<Cpu<L>>,
    S: LaneItem<Cpu<L>>,
    const N: usize,
    const W: usize,
>(
    span: &mut <(B, S) as LaneItem<Cpu<L>>>::Array<N>,
    columns: C,
    fixed: &C::Fixed<N>,
    (at, from): (At, usize),
    rows: (i64, i64),
    ((init, f), finish, (second, again), combine): (
        &(A, impl Fn(A, (C::Item, Val<Cpu<L>, i64>)) -> A),
        &impl Fn(A) -> B,
        &(S, impl Fn(S, (C::Item, Val<Cpu<L>, i64>), B) -> S),
        &impl Fn((B, S), (B, S)) -> (B, S),
    ),
) {
    let acc = fold_rows::<L, C, A, N, W>(
        init.splat::<W>(),
        columns,
        fixed,
        (at, from),
        rows,
        #[inline(always)]
        |a, item, _| f(a, item),
    );
    let mut known = finish(*init).splat::<W>();
    let mut j = 0;
    while j < W {
        B::set_lane(&mut known, j, finish(A::lane(&acc, j)));
        j += 1;
    }
    let acc = fold_rows::<L, C, S, N, W>(
        second.splat::<W>(),
        columns,
        fixed,
        (at, from),
        rows,
        #[inline(always)]
        |s, item, j| again(s, item, B::lane(&known, j)),
    );
    let mut j = 0;
    while j < W {
        let part = (B::lane(&known, j), S::lane(&acc, j));
        let both = combine(<(B, S)>::lane(span, from + j), part);
        <(B, S)>::set_lane(span, from + j, if rows.0 % SPAN == 0 { part } else { both });
        j += 1;
    }
}

/// Where the whole blocks of columns are that can be read and written.
#[inline(always)]
fn whole<L: Level, T: Any, C: ColumnLanes<Cpu<L>>>(out: OwnedColumns<Cpu<L>, T>, columns: C) -> [i64; 2] {
    let (n, from) = (out.len.0, out.from.0);
    let row = out.out.select::<1>(0, 0);
    let plain = columns.plain(out.out.dims[0], 0, n) && row.strides[0] == 1 && row.holds(from, n);
    Cpu::<L>::whole(0, n, plain)
}

/// Writes columns.
#[inline(always)]
pub(super) fn write<L: Level, T: Any, C: ColumnLanes<Cpu<L>, Item = Val<Cpu<L>, T>>>(
    out: OwnedColumns<Cpu<L>, T>,
    columns: C,
) {
    let (n, whole) = (out.len.0, whole(out, columns));
    let mut lo = 0;
    if whole[0] == 0 && n > 0 && out.out.dims[0] >= MANY_ROWS {
        lo = in_strips(
            n,
            #[inline(always)]
            |at| write_some::<L, T, C, WIDE>(out, columns, at),
        );
    }
    Cpu::<L>::column_blocks(
        lo,
        n,
        whole,
        #[inline(always)]
        |at| write_some::<L, T, C, BLOCK>(out, columns, at),
        #[inline(always)]
        |at| write_some::<L, T, C, TAIL>(out, columns, at),
    );
}

/// Writes `N` columns.
#[inline(always)]
fn write_some<L: Level, T: Any, C: ColumnLanes<Cpu<L>, Item = Val<Cpu<L>, T>>, const N: usize>(
    out: OwnedColumns<Cpu<L>, T>,
    columns: C,
    at: At,
) {
    let fixed = columns.fixed::<N>(at);
    let mut k = 0;
    while k < out.out.dims[0] {
        if N >= BLOCK {
            let mut j = 0;
            while j < width::<N>(at) {
                write_block::<L, T, C, N, BLOCK>(out, columns, &fixed, (at, j, k));
                j += BLOCK;
            }
        } else {
            write_block::<L, T, C, N, TAIL>(out, columns, &fixed, (at, 0, k));
        }
        k += 1;
    }
}

/// Writes the `B` columns from `first` on of row `k`.
#[inline(always)]
fn write_block<L: Level, T: Any, C: ColumnLanes<Cpu<L>, Item = Val<Cpu<L>, T>>, const N: usize, const B: usize>(
    out: OwnedColumns<Cpu<L>, T>,
    columns: C,
    fixed: &C::Fixed<N>,
    (at, first, k): (At, usize, i64),
) {
    let block = columns.block::<N, B>(fixed, at, first, Val(k));
    let mut v = [T::Compute::default(); B];
    let mut j = 0;
    while j < B {
        v[j] = columns.lane::<N, B>(fixed, &block, first, j).0;
        j += 1;
    }
    let i = out.from.0.wrapping_add(at.i).wrapping_add(first as i64);
    Cpu::<L>::store_lanes(out.out.select(0, out.row(Val(k)).0), at.moved::<B>(i), &v);
}

/// Writes the prefix combinations of columns.
#[inline(always)]
pub(super) fn scan<L: Level, T: Any, C: ColumnLanes<Cpu<L>, Item = Val<Cpu<L>, T>>>(
    out: OwnedColumns<Cpu<L>, T>,
    columns: C,
    init: (T::Compute, bool),
    combine: &impl Fn(Val<Cpu<L>, T>, Val<Cpu<L>, T>) -> Val<Cpu<L>, T>,
) {
    let (n, whole) = (out.len.0, whole(out, columns));
    let mut lo = 0;
    if whole[0] == 0 && n > 0 && out.out.dims[0] >= MANY_ROWS {
        lo = in_strips(
            n,
            #[inline(always)]
            |at| scan_some::<L, T, C, WIDE>(out, columns, at, init, combine),
        );
    }
    Cpu::<L>::column_blocks(
        lo,
        n,
        whole,
        #[inline(always)]
        |at| scan_some::<L, T, C, BLOCK>(out, columns, at, init, combine),
        #[inline(always)]
        |at| scan_some::<L, T, C, TAIL>(out, columns, at, init, combine),
    );
}

/// Writes the prefix combinations of `N` columns: in spans, each combined with what came before it.
#[inline(always)]
fn scan_some<L: Level, T: Any, C: ColumnLanes<Cpu<L>, Item = Val<Cpu<L>, T>>, const N: usize>(
    out: OwnedColumns<Cpu<L>, T>,
    columns: C,
    at: At,
    (init, exclusive): (T::Compute, bool),
    combine: &impl Fn(Val<Cpu<L>, T>, Val<Cpu<L>, T>) -> Val<Cpu<L>, T>,
) {
    let fixed = columns.fixed::<N>(at);
    let rows = out.out.dims[0];
    let mut before = [init; N];
    let mut first = 0;
    while first < rows {
        let last = if rows - first < SCAN_SPAN { rows } else { first + SCAN_SPAN };
        let mut span = [init; N];
        let mut k = first;
        while k < last {
            if N >= BLOCK {
                let mut j = 0;
                while j < width::<N>(at) {
                    scan_row::<L, T, C, N, BLOCK>(
                        out,
                        columns,
                        &fixed,
                        (at, j, k),
                        (&before, &mut span, exclusive),
                        combine,
                    );
                    j += BLOCK;
                }
            } else {
                scan_row::<L, T, C, N, TAIL>(
                    out,
                    columns,
                    &fixed,
                    (at, 0, k),
                    (&before, &mut span, exclusive),
                    combine,
                );
            }
            k += 1;
        }
        let mut j = 0;
        while j < width::<N>(at) {
            before[j] = combine(Val(before[j]), Val(span[j])).0;
            j += 1;
        }
        first = last;
    }
}

/// Takes the `B` columns from `first` on of row `k` into what came up to it in its span, and writes that behind what
/// came before the span.
#[inline(always)]
fn scan_row<L: Level, T: Any, C: ColumnLanes<Cpu<L>, Item = Val<Cpu<L>, T>>, const N: usize, const B: usize>(
    out: OwnedColumns<Cpu<L>, T>,
    columns: C,
    fixed: &C::Fixed<N>,
    (at, first, k): (At, usize, i64),
    (before, span, exclusive): (&[T::Compute; N], &mut [T::Compute; N], bool),
    combine: &impl Fn(Val<Cpu<L>, T>, Val<Cpu<L>, T>) -> Val<Cpu<L>, T>,
) {
    let block = columns.block::<N, B>(fixed, at, first, Val(k));
    let mut v = [T::Compute::default(); B];
    let mut j = 0;
    while j < B {
        let own = span[first + j];
        let next = combine(Val(own), columns.lane::<N, B>(fixed, &block, first, j)).0;
        v[j] = combine(Val(before[first + j]), Val(if exclusive { own } else { next })).0;
        span[first + j] = next;
        j += 1;
    }
    let i = out.from.0.wrapping_add(at.i).wrapping_add(first as i64);
    Cpu::<L>::store_lanes(out.out.select(0, out.row(Val(k)).0), at.moved::<B>(i), &v);
}
