//! Columns: reduced, written, scanned and kept in blocks of neighbours, row after row, so that memory is read as it lies.

use super::level::{BLOCK, Level, TAIL};
use super::{At, Cpu, CpuTensor, WIDE, scratch};
use crate::kernel::lang::{Any, ColumnLanes, LaneItem, OwnedColumns, Target, Val};

/// Rows whose columns are reduced together, before they are combined with those above: rounding errors grow with the
/// length of such a span and with their number, not with the product.
const SPAN: i64 = 512;
/// The same of scans.
const SCAN_SPAN: i64 = 64;
/// Rows that are reduced twice before those below: the first-level cache has room for them. Those of wide blocks lie as far from
/// each other as in the operand, where a power of two leaves few lines of the cache; the others are often kept.
const TWICE: i64 = 128;
const TWICE_WIDE: i64 = 8;
/// Columns of more bytes than this are not kept, as they would not stay in the second-level cache.
const KEPT_BYTES: i64 = 4 << 20;

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
    let rows = columns.rows().0;
    let mut total = init.splat::<N>();
    let mut first = 0;
    while first < rows {
        let last = if rows - first < SPAN { rows } else { first + SPAN };
        let acc = fold_rows::<L, C, A, N>(
            columns,
            &fixed,
            (at, first, last),
            init,
            #[inline(always)]
            |acc, item, _| f(acc, item),
        );
        let mut j = 0;
        while j < N {
            let both = combine(A::lane(&total, j), A::lane(&acc, j));
            A::set_lane(&mut total, j, if first == 0 { A::lane(&acc, j) } else { both });
            j += 1;
        }
        first = last;
    }
    total
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
    (init, f): (A, impl Fn(A, (C::Item, Val<Cpu<L>, i64>)) -> A),
    finish: impl Fn(A) -> B,
    (second, again): (S, impl Fn(S, (C::Item, Val<Cpu<L>, i64>), B) -> S),
    combine: impl Fn((B, S), (B, S)) -> (B, S),
) -> <(B, S) as LaneItem<Cpu<L>>>::Array<N> {
    let fixed = columns.fixed::<N>(at);
    let rows = columns.rows().0;
    let chunk = if N >= WIDE { TWICE_WIDE } else { TWICE };
    let nothing = (finish(init), second);
    let (mut total, mut span) = (nothing.splat::<N>(), nothing.splat::<N>());
    let mut first = 0;
    while first < rows {
        let last = if rows - first < chunk { rows } else { first + chunk };
        let acc = fold_rows::<L, C, A, N>(
            columns,
            &fixed,
            (at, first, last),
            init,
            #[inline(always)]
            |acc, item, _| f(acc, item),
        );
        let mut known = finish(init).splat::<N>();
        let mut j = 0;
        while j < N {
            B::set_lane(&mut known, j, finish(A::lane(&acc, j)));
            j += 1;
        }
        let acc = fold_rows::<L, C, S, N>(
            columns,
            &fixed,
            (at, first, last),
            second,
            #[inline(always)]
            |s, item, j| again(s, item, B::lane(&known, j)),
        );
        // As in `fold`, spans are combined with what is above them, and parts of spans with what is above these.
        let (is_first, is_last) = (first % SPAN == 0, last % SPAN == 0 || last == rows);
        let mut j = 0;
        while j < N {
            let part = (B::lane(&known, j), S::lane(&acc, j));
            let both = if is_first { part } else { combine(<(B, S)>::lane(&span, j), part) };
            <(B, S)>::set_lane(&mut span, j, both);
            j += 1;
        }
        let mut j = 0;
        while is_last && j < N {
            let above = <(B, S)>::lane(&total, j);
            let span = <(B, S)>::lane(&span, j);
            <(B, S)>::set_lane(&mut total, j, if last <= SPAN { span } else { combine(above, span) });
            j += 1;
        }
        first = last;
    }
    total
}

/// Reduces the `N` columns of the rows from `first` up to `last`, by blocks; `f` is also given the number of the column.
#[inline(always)]
fn fold_rows<L: Level, C: ColumnLanes<Cpu<L>>, A: LaneItem<Cpu<L>>, const N: usize>(
    columns: C,
    fixed: &C::Fixed<N>,
    (at, first, last): (At, i64, i64),
    init: A,
    f: impl Fn(A, (C::Item, Val<Cpu<L>, i64>), usize) -> A,
) -> A::Array<N> {
    let mut acc = init.splat::<N>();
    let mut k = first;
    while k < last {
        if N >= BLOCK {
            let mut j = 0;
            while j < N {
                fold_block::<L, C, A, N, BLOCK>(&mut acc, columns, fixed, (at, j, k), &f);
                j += BLOCK;
            }
        } else {
            fold_block::<L, C, A, N, TAIL>(&mut acc, columns, fixed, (at, 0, k), &f);
        }
        k += 1;
    }
    acc
}

/// Takes the `B` columns from `first` on of row `k` into the accumulators.
#[inline(always)]
fn fold_block<L: Level, C: ColumnLanes<Cpu<L>>, A: LaneItem<Cpu<L>>, const N: usize, const B: usize>(
    acc: &mut A::Array<N>,
    columns: C,
    fixed: &C::Fixed<N>,
    (at, first, k): (At, usize, i64),
    f: &impl Fn(A, (C::Item, Val<Cpu<L>, i64>), usize) -> A,
) {
    let block = columns.block::<N, B>(fixed, at, first, Val(k));
    let mut j = 0;
    while j < B {
        let v = f(A::lane(acc, first + j), (columns.lane::<N, B>(fixed, &block, first, j), Val(k)), first + j);
        A::set_lane(acc, first + j, v);
        j += 1;
    }
}

/// The items of row `k`.
#[inline(always)]
fn values<L: Level, T: Any, C: ColumnLanes<Cpu<L>, Item = Val<Cpu<L>, T>>, const N: usize>(
    columns: C,
    fixed: &C::Fixed<N>,
    at: At,
    k: i64,
) -> [T::Compute; N] {
    let block = columns.block::<N, N>(fixed, at, 0, Val(k));
    let mut result = [T::Compute::default(); N];
    let mut j = 0;
    while j < N {
        result[j] = columns.lane::<N, N>(fixed, &block, 0, j).0;
        j += 1;
    }
    result
}

/// Where the whole blocks of columns begin that can be read and written.
#[inline(always)]
fn start<L: Level, T: Any, C: ColumnLanes<Cpu<L>>>(out: OwnedColumns<Cpu<L>, T>, columns: C) -> i64 {
    let (n, from) = (out.len.0, out.from.0);
    let row = out.out.select::<1>(0, 0);
    let plain = columns.plain(out.out.dims[0], 0, n) && Cpu::<L>::plain_out(row, from, from + n);
    Cpu::<L>::start(0, n, plain)
}

/// Writes columns.
#[inline(always)]
pub(super) fn write<L: Level, T: Any, C: ColumnLanes<Cpu<L>, Item = Val<Cpu<L>, T>>>(
    out: OwnedColumns<Cpu<L>, T>,
    columns: C,
) {
    Cpu::<L>::blocks(
        0,
        out.len.0,
        start(out, columns),
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
        let v = values::<L, T, C, N>(columns, &fixed, at, k);
        Cpu::<L>::store_lanes(out.out.select(0, out.row(Val(k)).0), At { i: out.from.0 + at.i, w: at.w }, &v);
        k += 1;
    }
}

/// Writes the prefix combinations of columns.
#[inline(always)]
pub(super) fn scan<L: Level, T: Any, C: ColumnLanes<Cpu<L>, Item = Val<Cpu<L>, T>>>(
    out: OwnedColumns<Cpu<L>, T>,
    columns: C,
    init: (T::Compute, bool),
    combine: &impl Fn(Val<Cpu<L>, T>, Val<Cpu<L>, T>) -> Val<Cpu<L>, T>,
) {
    let (n, start) = (out.len.0, start(out, columns));
    let mut lo = 0;
    if C::WIDE && start == 0 {
        while lo + WIDE as i64 <= n {
            scan_some::<L, T, C, WIDE>(out, columns, At { i: lo, w: WIDE }, init, combine);
            lo += WIDE as i64;
        }
    }
    Cpu::<L>::blocks(
        lo,
        n,
        start,
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
                while j < N {
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
        while j < N {
            before[j] = combine(Val(before[j]), Val(span[j])).0;
            j += 1;
        }
        first = last;
    }
}

/// Takes the `B` columns from `first` on of row `k` into what came up to it in its span, and writes that behind what came
/// before the span.
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
    let w = if B >= BLOCK { B } else { at.w };
    let i = out.from.0 + at.i + first as i64;
    Cpu::<L>::store_lanes(out.out.select(0, out.row(Val(k)).0), At { i, w }, &v);
}

/// The same columns where rows lie close to each other, and where their first one is. Rows that are a power of two apart
/// fall on few lines of a cache, which does not hold what it has room for.
#[inline(always)]
pub(super) fn keep<L: Level, T: Any>(x: CpuTensor<T, 2>, from: i64, len: i64) -> (CpuTensor<T, 2>, i64) {
    let (rows, stride) = (x.dims[0], x.strides[0]);
    let width = (len + TAIL as i64 - 1) / TAIL as i64 * TAIL as i64;
    let bytes = rows.saturating_mul(width * size_of::<T::Mem>() as i64);
    let is_plain = len > 0 && x.strides[1] == 1 && x.select::<1>(0, 0).plain(from, from + len);
    if !is_plain || rows < 2 || bytes > KEPT_BYTES || stride >= 0 && stride <= width {
        // Those behind read as padding here too.
        return (CpuTensor { hi: if from + len < x.hi { from + len } else { x.hi }, ..x }, from);
    }
    let ptr = scratch::take(bytes as usize).cast::<T::Mem>();
    let mut k = 0;
    while k < rows {
        // SAFETY: the columns `from .. from + len` of each row are inside the operand, and the room is for `width` of each.
        unsafe {
            let source = x.ptr.offset((k * stride + from) as isize);
            let target = ptr.offset((k * width) as isize);
            if len == BLOCK as i64 {
                let mut j = 0;
                while j < BLOCK {
                    let part = source.add(j).cast::<[T::Mem; TAIL]>().read_unaligned();
                    target.add(j).cast::<[T::Mem; TAIL]>().write_unaligned(part);
                    j += TAIL;
                }
            } else {
                std::ptr::copy_nonoverlapping(source, target, len as usize);
            }
        }
        k += 1;
    }
    let kept = CpuTensor {
        ptr,
        dims: [rows, len],
        strides: [width, 1],
        lo: 0,
        hi: len,
        pack: std::ptr::null(),
        part: 0,
        stream: false,
        ..x
    };
    (kept, 0)
}
