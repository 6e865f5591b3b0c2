//! Operands on the CPU: strided parts of tensors with their bounds, and whole blocks of their elements.

use super::isa::{Aligned, BLOCK, Level, TAIL, narrow_f16, widen_f16};
use crate::dtype::DType;
use crate::kernel::abi::{Pack, RawTensor};
use crate::kernel::lang::{Any, Prim};

/// A part of an operand. Of the last dimension, the `count` indices from `lo` on are inside, counted modulo 2^64 as the
/// language computes with indices; elements with another one read as `pad` and are not written. A part that was selected
/// outside of its operand has none, and nothing that is selected of it has any.
pub struct CpuTensor<T: Any, const R: usize> {
    pub(super) ptr: *mut T::Mem,
    pub(super) dims: [i64; R],
    pub(super) strides: [i64; R],
    pub(super) lo: i64,
    pub(super) count: i64,
    pub(super) pad: T::Compute,
    pub(super) stream: bool,
    /// Room for packed tiles, or null.
    pub(super) pack: *const Pack,
    /// Which of the operand's matrices this is.
    pub(super) part: i64,
}

impl<T: Any, const R: usize> Clone for CpuTensor<T, R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Any, const R: usize> Copy for CpuTensor<T, R> {}

/// Where a block of lanes begins, how many of its lanes there are, and whether `plain` has said that all of these can be read.
#[derive(Clone, Copy)]
pub struct At {
    pub(super) i: i64,
    pub(super) w: usize,
    pub(super) plain: bool,
    /// Whether it is a whole block: known to the compiler, as a width of 64 is not.
    pub(super) whole: bool,
    /// Whether words that follow are prefetched.
    pub(super) prefetches: bool,
    /// Whether the lanes come [transposed](transposed), of a whole block of lanes [that can be](Lanes::TRANSPOSES).
    pub(super) transposes: bool,
}

/// Lanes that stay side by side when a block is transposed.
pub(super) const QUAD: usize = 4;

/// The place of lane `k` of a [block](BLOCK) in its transpose, as four vectors of four quads: the quad of a vector of its own. The lane of
/// place `k`, too.
#[inline(always)]
pub(super) const fn transposed(k: usize) -> usize {
    k / QUAD % QUAD * TAIL + k / TAIL * QUAD + k % QUAD
}

impl At {
    /// A whole block, of which `plain` has said that all lanes can be read.
    #[inline(always)]
    pub(super) fn whole(i: i64, w: usize) -> Self {
        At { i, w, plain: true, whole: true, prefetches: true, transposes: false }
    }

    /// The first `w` lanes of a block, of which `plain` may have said that they can be read.
    #[inline(always)]
    pub(super) fn masked(i: i64, w: usize, plain: bool) -> Self {
        At { i, w, plain, whole: false, prefetches: true, transposes: false }
    }

    /// As many lanes from `i` on, of `N` of a block or of the blocks of a strip.
    #[inline(always)]
    pub(super) fn moved<const N: usize>(self, i: i64) -> Self {
        At { i, w: if self.whole { N } else { self.w }, ..self }
    }

    /// The whole part of `i / S`. Lanes that can be read are counted from 0 on, and the compiler then knows so too: places of segments
    /// become constants.
    #[inline(always)]
    pub(super) fn part<const S: usize, const N: usize>(self) -> i64 {
        if self.is_plain::<N>() { (self.i as u64 / S as u64) as i64 } else { self.i / S as i64 }
    }

    /// Whether `plain` has said that the lanes can be read: of a strip it always has.
    #[inline(always)]
    pub(super) fn is_plain<const N: usize>(self) -> bool {
        N > BLOCK || self.plain
    }

    /// How many of the `N` lanes there are.
    #[inline(always)]
    pub(super) fn lanes<const N: usize>(self) -> usize {
        if self.is_whole::<N>() || self.w > N { N } else { self.w }
    }

    /// Whether all `N` lanes are there: of a strip only the blocks that are there are read.
    #[inline(always)]
    pub(super) fn is_whole<const N: usize>(self) -> bool {
        N > BLOCK || self.whole
    }
}

impl<T: Any, const R: usize> CpuTensor<T, R> {
    /// # Safety
    /// `raw` must have `R` dims and strides.
    #[inline(always)]
    pub(super) unsafe fn new(raw: &RawTensor, stream: bool) -> Self {
        let (mut dims, mut strides) = ([0; R], [0; R]);
        let mut i = 0;
        while i < R {
            // SAFETY: `i < R`, by the contract above.
            (dims[i], strides[i]) = unsafe { (*raw.dims.add(i), *raw.strides.add(i)) };
            i += 1;
        }
        let count = if R == 0 { 1 } else { dims[R - 1] };
        CpuTensor {
            ptr: raw.ptr.cast(),
            dims,
            strides,
            lo: 0,
            count,
            pad: T::Compute::default(),
            stream,
            pack: raw.pack,
            part: 0,
        }
    }

    /// Whether the indices `from..from + n` of the last dimension are inside. A negative `n` is none that is.
    #[inline(always)]
    pub(super) fn holds(&self, from: i64, n: i64) -> bool {
        // By subtraction: `from + n` may wrap, and what is compared here cannot.
        let before = from.wrapping_sub(self.lo) as u64;
        let count = self.count as u64;
        before <= count && n as u64 <= count - before
    }

    /// A pointer to the element at `index`, if it is inside.
    #[inline(always)]
    pub(super) fn element(&self, index: [i64; R]) -> Option<*mut T::Mem> {
        let mut offset = 0_i64;
        let mut inside = true;
        let mut d = 0;
        // `get`, since a loop that is not unrolled would keep checks of indices, and what panics.
        while let (Some(&i), Some(&dim), Some(&stride)) = (index.get(d), self.dims.get(d), self.strides.get(d)) {
            let (lo, count) = if d + 1 == R { (self.lo, self.count) } else { (0, dim) };
            inside &= (i.wrapping_sub(lo) as u64) < count as u64;
            offset = offset.wrapping_add(i.wrapping_mul(stride));
            d += 1;
        }
        inside.then(|| self.ptr.wrapping_offset(offset as isize))
    }

    /// The part at index `i` of dimension `axis`, which `S = R - 1` dimensions remain of.
    #[inline(always)]
    pub(super) fn select<const S: usize>(self, axis: usize, i: i64) -> CpuTensor<T, S> {
        let (mut dims, mut strides) = ([0; S], [0; S]);
        let mut d = 0;
        while d < S {
            let from = if d < axis { d } else { d + 1 };
            (dims[d], strides[d]) = (self.dims[from], self.strides[from]);
            d += 1;
        }
        // Along the last dimension, bounds know whether this part is outside itself.
        let (inside, lo, count) = if axis + 1 == R {
            (self.holds(i, 1), 0, if S == 0 { 1 } else { dims[S - 1] })
        } else {
            ((i as u64) < self.dims[axis] as u64, self.lo, self.count)
        };
        let count = if inside { count } else { 0 };
        let ptr = self.ptr.wrapping_offset(if inside { i.wrapping_mul(self.strides[axis]) as isize } else { 0 });
        let pack = if inside && axis == 0 { self.pack } else { std::ptr::null() };
        let part = self.part.wrapping_mul(self.dims[axis]).wrapping_add(i);
        CpuTensor { ptr, dims, strides, lo, count, pad: self.pad, stream: self.stream, pack, part }
    }
}

impl<T: Any> CpuTensor<T, 2> {
    /// A tile in memory, of so many rows and columns, row by row.
    #[inline(always)]
    pub(super) fn of_tile(ptr: *const T::Mem, [rows, columns]: [usize; 2]) -> Self {
        CpuTensor {
            ptr: ptr.cast_mut(),
            dims: [rows as i64, columns as i64],
            strides: [columns as i64, 1],
            lo: 0,
            count: columns as i64,
            pad: T::Compute::default(),
            stream: false,
            pack: std::ptr::null(),
            part: 0,
        }
    }
}

impl<T: Any> CpuTensor<T, 1> {
    #[inline(always)]
    pub(super) fn slice(self, from: i64, n: i64) -> Self {
        CpuTensor {
            ptr: self.ptr.wrapping_offset(from.wrapping_mul(self.strides[0]) as isize),
            dims: [if n < 0 { 0 } else { n }],
            lo: self.lo.wrapping_sub(from),
            ..self
        }
    }

    /// The same of an output, where nothing outside of the slice is inside.
    #[inline(always)]
    pub(super) fn own_slice(self, from: i64, n: i64) -> Self {
        let x = self.slice(from, n);
        let end = x.lo.checked_add(x.count).unwrap_or(i64::MAX);
        let (lo, end) = (if x.lo > 0 { x.lo } else { 0 }, if end < x.dims[0] { end } else { x.dims[0] });
        CpuTensor { lo, count: if lo < end { end - lo } else { 0 }, ..x }
    }

    #[inline(always)]
    pub(super) fn reverse(self) -> Self {
        let n = self.dims[0];
        CpuTensor {
            ptr: self.ptr.wrapping_offset((n - 1).wrapping_mul(self.strides[0]) as isize),
            strides: [self.strides[0].wrapping_neg()],
            lo: n.wrapping_sub(self.lo).wrapping_sub(self.count),
            ..self
        }
    }

    /// Whether all of a block is inside, one element before the other.
    fn backwards<const N: usize>(&self, i: i64, w: usize) -> bool {
        self.strides[0] == -1 && w == N && self.holds(i, N as i64)
    }

    /// Whether the `n` elements from `from` on are inside, one after the other or all the same: what the main loop takes.
    #[inline(always)]
    pub(super) fn plain(&self, from: i64, n: i64) -> bool {
        self.holds(from, n) && (self.strides[0] == 1 || self.strides[0] == 0)
    }
}

/// Where the last of a block's elements lies, from index 0 on, if they lie one before the other.
fn backwards_from<const N: usize>(i: i64) -> isize {
    (i as isize).wrapping_add(N as isize - 1).wrapping_neg()
}

/// The elements of a block that is not [plain](CpuTensor::plain), each from its own address. By value: a tensor or an [`At`] whose
/// address is taken would live in memory, and so would the caller's block in all its branches, were it written here itself.
#[cold]
#[inline(never)]
pub(super) fn gather<T: Any, const N: usize>(x: CpuTensor<T, 1>, i: i64, w: usize) -> Aligned<[T::Compute; N]> {
    let mut block = Aligned([x.pad; N]);
    if x.backwards::<N>(i, w) {
        // SAFETY: the block is inside the operand, from its last element on.
        let mem = unsafe { x.ptr.wrapping_offset(backwards_from::<N>(i)).cast::<[T::Mem; N]>().read_unaligned() };
        for (j, lane) in block.0.iter_mut().enumerate() {
            *lane = T::widen(mem[N - 1 - j]);
        }
        return block;
    }
    for (j, lane) in block.0.iter_mut().enumerate().take(w) {
        if let Some(p) = x.element([i.wrapping_add(j as i64)]) {
            // SAFETY: the element is inside the operand.
            *lane = T::widen(unsafe { *p });
        }
    }
    block
}

/// A block of elements that are each repeated, of which there are several.
#[cold]
#[inline(never)]
pub(super) fn repeat_each<T: Any, const N: usize>(
    x: CpuTensor<T, 1>,
    times: i64,
    i: i64,
    w: usize,
) -> Aligned<[T::Compute; N]> {
    let mut block = Aligned([x.pad; N]);
    for (j, lane) in block.0.iter_mut().enumerate().take(w) {
        if let Some(p) = x.element([i.wrapping_add(j as i64).checked_div(times).unwrap_or(0)]) {
            // SAFETY: the element is inside the operand.
            *lane = T::widen(unsafe { *p });
        }
    }
    block
}

/// Writes a block that is not plain.
#[cold]
#[inline(never)]
pub(super) fn scatter_block<T: Any, const N: usize>(x: CpuTensor<T, 1>, i: i64, w: usize, block: &[T::Compute; N]) {
    if x.backwards::<N>(i, w) {
        let mut mem = [T::narrow(block[0]); N];
        for (j, lane) in block.iter().enumerate() {
            mem[N - 1 - j] = T::narrow(*lane);
        }
        // SAFETY: the block is inside the operand, from its last element on, in a part that this instance owns.
        unsafe { x.ptr.wrapping_offset(backwards_from::<N>(i)).cast::<[T::Mem; N]>().write_unaligned(mem) };
        return;
    }
    for (j, lane) in block.iter().enumerate().take(w) {
        if let Some(p) = x.element([i.wrapping_add(j as i64)]) {
            // SAFETY: the element is inside the operand, in a part that this instance owns.
            unsafe { *p = T::narrow(*lane) };
        }
    }
}

/// Whether memory holds the numbers that kernels compute with. They are then copied, without a loop, of which kernels would have
/// thousands to be unrolled.
const fn is_same<T: Any>() -> bool {
    match T::STATIC_DTYPE {
        // Memory holds any byte where kernels compute with `bool`.
        Some(DType::Bool) | None => false,
        Some(dtype) => {
            dtype as u8 == <T::Compute as Prim>::DTYPE as u8 && size_of::<T::Mem>() == size_of::<T::Compute>()
        }
    }
}

#[inline(always)]
pub(super) fn widen<L: Level, T: Any, const N: usize>(mem: &[T::Mem; N]) -> [T::Compute; N] {
    if const { is_same::<T>() } {
        // SAFETY: they are numbers of one type.
        return unsafe { std::mem::transmute_copy(mem) };
    }
    if T::IS_F16 && N.is_multiple_of(8) {
        // SAFETY: `f16` is `u16` in memory and `f32` in computation.
        return unsafe {
            let mem: &[u16; N] = &*std::ptr::from_ref(mem).cast();
            let wide = widen_f16::<L, N>(
                mem,
                #[inline(always)]
                |m| std::mem::transmute_copy::<T::Compute, f32>(&T::widen(std::mem::transmute_copy(&m))),
            );
            std::mem::transmute_copy(&wide)
        };
    }
    let mut out = [T::Compute::default(); N];
    let mut j = 0;
    while j < N {
        out[j] = widen_one::<L, T>(mem[j]);
        j += 1;
    }
    out
}

/// One element, by the machine's own conversion where there is one.
#[inline(always)]
pub(super) fn widen_one<L: Level, T: Any>(mem: T::Mem) -> T::Compute {
    #[cfg(target_arch = "x86_64")]
    if T::IS_F16 && L::AVX2 {
        use std::arch::x86_64::*;
        // SAFETY: `f16` is `u16` in memory and `f32` in computation; levels with AVX2 have F16C.
        return unsafe {
            let bits = std::mem::transmute_copy::<T::Mem, u16>(&mem);
            let mut vector = _mm_cvtsi32_si128(bits.into());
            // Opaque: LLVM would insert the bits into whatever register is at hand, and wait for what that held before.
            std::arch::asm!("/* {0} */", inout(xmm_reg) vector, options(pure, nomem, nostack, preserves_flags));
            let wide = _mm_cvtss_f32(_mm_cvtph_ps(vector));
            std::mem::transmute_copy::<f32, T::Compute>(&wide)
        };
    }
    T::widen(mem)
}

#[inline(always)]
pub(super) fn narrow<L: Level, T: Any, const N: usize>(block: &[T::Compute; N]) -> [T::Mem; N] {
    if const { is_same::<T>() } {
        // SAFETY: they are numbers of one type.
        return unsafe { std::mem::transmute_copy(block) };
    }
    if T::IS_F16 {
        // SAFETY: `f16` is `u16` in memory and `f32` in computation.
        return unsafe {
            let wide: &[f32; N] = &*std::ptr::from_ref(block).cast();
            let mem = narrow_f16::<L, N>(
                wide,
                #[inline(always)]
                |c| std::mem::transmute_copy::<T::Mem, u16>(&T::narrow(std::mem::transmute_copy(&c))),
            );
            std::mem::transmute_copy(&mem)
        };
    }
    let mut out = [T::narrow(block[0]); N];
    let mut j = 0;
    while j < N {
        out[j] = T::narrow(block[j]);
        j += 1;
    }
    out
}
