//! Reads a table that another build made, before anything of it is a Rust value: pointers, numbers of enums, strings, counts, and that
//! indices name what is there.
//!
//! What cannot be seen is the extension's word, as with all code that is loaded: that pointers lead to memory of the lengths beside
//! them, and that its functions do what the table says ([`Contract`](super::Contract)).

use super::layout::{LAYOUT, TARGET, target_name};
use super::{
    Condition, ExtensionTable, GpuTile, GridAxis, GridOp, GridTerm, Instance, KernelDef, List, OperandDef, ParamDef,
    PartDim, Str, TABLE_VERSION, misshapen,
};
use crate::dtype::DType;

/// The most items of a list, and bytes of a string, that are believed.
const LIMIT: usize = 1 << 20;

/// The largest rank of an operand.
const MAX_RANK: i32 = 8;

/// Why a table cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// There is none.
    Null,
    /// It is of another version.
    Version(u32),
    /// It was compiled for another target.
    Target(String),
    /// Its types lie otherwise in memory, although its version is the same.
    Layout,
    /// A value in it cannot be: which, and of which kernel.
    Value(String),
}

type Checked<T = ()> = Result<T, Misfit>;

fn wrong<T>(what: &str, problem: impl std::fmt::Display) -> Checked<T> {
    Err(Misfit::Value(format!("{what}: {problem}")))
}

/// The terms of an axis are one expression.
///
/// # Safety
/// The terms must be there, and have been checked one by one.
unsafe fn expression(axis: &GridAxis, (all, count): (*const GridTerm, usize), what: &str) -> Checked {
    let first = axis.dim as usize;
    let is_there =
        usize::try_from(axis.size).ok().and_then(|size| first.checked_add(size)).is_some_and(|end| end <= count);
    if !is_there || axis.size == 0 {
        return wrong(what, format_args!("{} terms from {first} on, of {count}", axis.size));
    }
    // SAFETY: there are as many, each of them a value of its type.
    let terms = unsafe { std::slice::from_raw_parts(all.add(first), axis.size as usize) };
    misshapen(terms).map_or(Ok(()), |why| wrong(what, why))
}

/// The kernels of a table.
///
/// # Safety
/// `table` is null, or what `max_extension` of a library that stays loaded returned: in every version of the table its first field is
/// the version, and in those from 7 on what follows it are the fingerprints. Where these are ours, its pointers are valid or null.
pub(crate) unsafe fn kernels(table: *const ExtensionTable) -> Checked<Vec<&'static KernelDef>> {
    if table.is_null() {
        return Err(Misfit::Null);
    }
    if !table.is_aligned() {
        return wrong("the table", "it is not aligned");
    }
    // The version before the fingerprints: only from version 7 on there are any.
    // SAFETY: the caller vouches for the first field.
    let version = unsafe { (&raw const (*table).version).read() };
    if version != TABLE_VERSION {
        return Err(Misfit::Version(version));
    }
    // SAFETY: a table of our version has the fingerprints.
    let (layout, target) = unsafe { ((&raw const (*table).layout).read(), (&raw const (*table).target).read()) };
    if target != TARGET {
        return Err(Misfit::Target(target_name(&target)));
    }
    if layout != LAYOUT {
        return Err(Misfit::Layout);
    }
    // SAFETY: the layout is ours.
    let defs = unsafe { list(&raw const (*table).kernels, "the table's kernels")? };
    let mut kernels = Vec::with_capacity(defs.1);
    for i in 0..defs.1 {
        // SAFETY: `i` is below the length of the list, whose items are pointers.
        let def: *const KernelDef = unsafe { defs.0.cast::<*const KernelDef>().add(i).read() };
        if def.is_null() || !def.is_aligned() {
            return wrong("the table's kernels", format_args!("pointer {i} is null or not aligned"));
        }
        // SAFETY: the pointer is neither null nor unaligned, and the layout is ours.
        unsafe { kernel(def)? };
        // SAFETY: every field holds a value of its type, and the library stays loaded.
        kernels.push(unsafe { &*def });
    }
    Ok(kernels)
}

/// # Safety
/// As for [`kernels`], of one kernel.
unsafe fn kernel(def: *const KernelDef) -> Checked {
    // SAFETY: of every block here, the caller vouches for the layout; each field is read as a type of which every bit pattern is a
    // value, before the field itself is a value of its type.
    unsafe {
        let name = string(&raw const (*def).name, "a kernel's name")?;
        let of = |what: &str| format!("kernel `{name}`, {what}");
        let version = (&raw const (*def).version).read();
        if version != TABLE_VERSION {
            return wrong(&of("version"), format_args!("it is {version}, the table's is {TABLE_VERSION}"));
        }
        let kind = one_of((&raw const (*def).kind).cast(), &[0, 1], &of("kind"))?;
        for (text, what) in [
            (&raw const (*def).krate, "crate"),
            (&raw const (*def).file, "file"),
            (&raw const (*def).doc, "doc"),
            (&raw const (*def).signature, "signature"),
        ] {
            string(text, &of(what))?;
        }
        boolean((&raw const (*def).optimized).cast(), &of("optimized"))?;
        boolean((&raw const (*def).may_hold_tiles).cast(), &of("whether it may hold tiles"))?;

        let tiles = list(&raw const (*def).tile_names, &of("tile constants"))?;
        each(tiles, |tile| string(tile, &of("a tile constant's name")).map(drop))?;
        let generics = list(&raw const (*def).generics, &of("generics"))?;
        each(generics, |generic| {
            string(&raw const (*generic).name, &of("a generic's name"))?;
            codes(list(&raw const (*generic).dtypes, &of("a generic's dtypes"))?, &of("a generic's dtypes"))?;
            boolean((&raw const (*generic).by_size).cast(), &of("a generic's size"))
        })?;
        let grid = list(&raw const (*def).grid, &of("grid"))?;
        let program = kind == 1;
        if grid.1 > 3 || (grid.1 == 0) == program {
            return wrong(&of("grid"), format_args!("it has {} axes", grid.1));
        }
        let counts = Counts { generics: generics.1, tiles: tiles.1, axes: grid.1, program };
        let operands = list(&raw const (*def).operands, &of("operands"))?;
        each(operands, |o| operand(o, &counts, &of("an operand")))?;
        let has_dim = |i: usize, dim: u32| i < operands.1 && i64::from(dim) < i64::from((*operands.0.add(i)).rank);
        let terms = list(&raw const (*def).grid_terms, &of("the terms of its grid"))?;
        let parameters = list(&raw const (*def).params, &of("parameters"))?.1;
        each(terms, |term| {
            let op =
                one_of((&raw const (*term).op).cast(), &GridOp::ALL.map(|op| op as u32), &of("a term of its grid"))?;
            let (i, value) = ((&raw const (*term).index).read() as usize, (&raw const (*term).value).read());
            let is_there = match op {
                1 => u32::try_from(value).is_ok_and(|dim| has_dim(i, dim)),
                2 => i < parameters,
                3 => i < tiles.1,
                _ => true,
            };
            if is_there { Ok(()) } else { wrong(&of("a term of its grid"), format_args!("index {i}, {value}")) }
        })?;
        boolean((&raw const (*def).nondeterministic).cast(), &of("whether it is nondeterministic"))?;
        each(grid, |axis| {
            let axis = axis.read();
            index(axis.tile.into(), -1, tiles.1, &of("a grid's tile constant"))?;
            match usize::try_from(axis.operand) {
                Ok(i) if !has_dim(i, axis.dim) => {
                    wrong(&of("grid"), format_args!("operand {i} has no dim {}", axis.dim))
                }
                Err(_) if axis.operand == GridAxis::EXPRESSION => expression(&axis, terms, &of("grid")),
                Err(_) if axis.operand != GridAxis::CONSTANT => {
                    wrong(&of("grid"), format_args!("operand {}", axis.operand))
                }
                _ => Ok(()),
            }
        })?;
        let condition = |condition: *const Condition, what: &str| match condition.read() {
            c if has_dim(c.operand as usize, c.dim) => Ok(()),
            c => wrong(what, format_args!("operand {} has no dim {}", c.operand, c.dim)),
        };
        let variants = list(&raw const (*def).variants, &of("variants"))?;
        each(variants, |variant| {
            each(list(&raw const (*variant).conditions, &of("variants"))?, |c| condition(c, &of("variants")))
        })?;
        each(list(&raw const (*def).params, &of("parameters"))?, |p| param(p, &of("a parameter")))?;
        same(list(&raw const (*def).gpu_tile, &of("tile on a GPU"))?.1, tiles.1, &of("tile on a GPU"))?;
        each(list(&raw const (*def).gpu_tiles, &of("tiles on a GPU"))?, |tile| {
            let what = of("tiles on a GPU");
            gpu_tile(tile, &counts, &what)?;
            each(list(&raw const (*tile).conditions, &what)?, |c| condition(c, &what))
        })?;
        each(list(&raw const (*def).instances, &of("instances"))?, |i| {
            instance(i, &counts, variants.1, &of("an instance"))
        })?;
        for (form, name) in
            [(&raw const (*def).columns, "its form for columns"), (&raw const (*def).transposed, "its transposed form")]
        {
            let form = form.cast::<*const KernelDef>().read();
            if form.is_null() {
                continue;
            }
            let has_forms = || {
                let [columns, transposed] = [&raw const (*form).columns, &raw const (*form).transposed];
                [columns, transposed].iter().any(|form| !form.cast::<*const KernelDef>().read().is_null())
            };
            if !form.is_aligned() || has_forms() {
                return wrong(&of(name), "a pointer that is not aligned, or a form of a form");
            }
            kernel(form)?;
        }
        function((&raw const (*def).record).cast(), &of("record"))?;
        function((&raw const (*def).reference).cast(), &of("reference form"))
    }
}

/// How many there are of what indices name.
struct Counts {
    generics: usize,
    tiles: usize,
    axes: usize,
    program: bool,
}

/// # Safety
/// As for [`kernel`].
unsafe fn operand(o: *const OperandDef, counts: &Counts, what: &str) -> Checked {
    // SAFETY: as in `kernel`.
    unsafe {
        string(&raw const (*o).name, what)?;
        one_of((&raw const (*o).access).cast(), &[0, 1, 2], what)?;
        let dtype = (&raw const (*o).dtype).read();
        index(dtype.generic.into(), -1, counts.generics, what)?;
        if dtype.generic < 0 {
            code(dtype.fixed, what)?;
        }
        let rank = (&raw const (*o).rank).read();
        let fits = if counts.program { (1..=MAX_RANK).contains(&rank) } else { rank == -1 };
        if !fits {
            return wrong(what, format_args!("its rank is {rank}"));
        }
        boolean((&raw const (*o).zero_init).cast(), what)?;
        let dims = |part: *const PartDim| -> Checked {
            let part = part.read();
            index(part.axis.into(), -1, counts.axes, what)?;
            index(part.tile.into(), -1, counts.tiles, what)?;
            index(part.dim.into(), 0, rank.max(0) as usize, what)
        };
        each(list(&raw const (*o).written, what)?, dims)?;
        each(list(&raw const (*o).part, what)?, dims)
    }
}

/// # Safety
/// As for [`kernel`].
unsafe fn param(p: *const ParamDef, what: &str) -> Checked {
    // SAFETY: as in `kernel`.
    unsafe {
        string(&raw const (*p).name, what)?;
        let kind = one_of((&raw const (*p).kind).cast(), &[0, 1, 2, 3], what)?;
        // Of integers and floats.
        if kind == 0 || kind == 3 {
            code((&raw const (*p).dtype).read(), what)?;
        }
        boolean((&raw const (*p).has_default).cast(), what)?;
        string(&raw const (*p).default_text, what)?;
        each(list(&raw const (*p).choices, what)?, |choice| string(choice, what).map(drop))
    }
}

/// # Safety
/// As for [`kernel`].
unsafe fn gpu_tile(tile: *const GpuTile, counts: &Counts, what: &str) -> Checked {
    // SAFETY: as in `kernel`.
    unsafe {
        index((&raw const (*tile).generic).read().into(), -1, counts.generics, what)?;
        codes(list(&raw const (*tile).dtypes, what)?, what)?;
        same(list(&raw const (*tile).tile, what)?.1, counts.tiles, what)
    }
}

/// # Safety
/// As for [`kernel`].
unsafe fn instance(i: *const Instance, counts: &Counts, variants: usize, what: &str) -> Checked {
    // SAFETY: as in `kernel`.
    unsafe {
        one_of((&raw const (*i).level).cast(), &[0, 2, 3, 4], what)?;
        let dtypes = list(&raw const (*i).dtypes, what)?;
        same(dtypes.1, counts.generics, what)?;
        codes(dtypes, what)?;
        same(list(&raw const (*i).tile, what)?.1, counts.tiles, what)?;
        index((&raw const (*i).variant).read().into(), 0, variants + 1, what)?;
        function((&raw const (*i).run).cast(), what)
    }
}

/// The items of a list and their number.
///
/// # Safety
/// `at` points at a list of our layout.
unsafe fn list<T>(at: *const List<T>, what: &str) -> Checked<(*const T, usize)> {
    // SAFETY: both fields may have any bits.
    let (ptr, len) = unsafe { ((&raw const (*at).ptr).read(), (&raw const (*at).len).read()) };
    if len > LIMIT {
        return wrong(what, format_args!("a list of {len} items, of at most {LIMIT}"));
    }
    if ptr.is_null() || !ptr.is_aligned() {
        return wrong(what, "a list whose pointer is null or not aligned");
    }
    Ok((ptr, len))
}

/// # Safety
/// The list is one that `f` may be called of each item of.
unsafe fn each<T>((ptr, len): (*const T, usize), mut f: impl FnMut(*const T) -> Checked) -> Checked {
    // SAFETY: `i` is below the length.
    (0..len).try_for_each(|i| f(unsafe { ptr.add(i) }))
}

/// # Safety
/// `at` points at a string of our layout, whose pointer is null or valid.
unsafe fn string(at: *const Str, what: &str) -> Checked<&'static str> {
    // SAFETY: both fields may have any bits.
    let (ptr, len) = unsafe { ((&raw const (*at).ptr).read(), (&raw const (*at).len).read()) };
    if ptr.is_null() || len > LIMIT {
        return wrong(what, format_args!("a string of {len} bytes, of at most {LIMIT}, or a null one"));
    }
    // SAFETY: the pointer is not null, and the caller vouches for its length.
    match std::str::from_utf8(unsafe { std::slice::from_raw_parts(ptr, len) }) {
        Ok(text) => Ok(text),
        Err(error) => wrong(what, format_args!("a string that is no UTF-8 ({error})")),
    }
}

/// # Safety
/// `at` can be read.
unsafe fn one_of(at: *const u32, values: &[u32], what: &str) -> Checked<u32> {
    // SAFETY: the caller's promise.
    let value = unsafe { at.read() };
    if values.contains(&value) { Ok(value) } else { wrong(what, format_args!("{value} is none of {values:?}")) }
}

/// # Safety
/// `at` can be read.
unsafe fn boolean(at: *const u8, what: &str) -> Checked {
    // SAFETY: the caller's promise.
    match unsafe { at.read() } {
        0 | 1 => Ok(()),
        value => wrong(what, format_args!("{value} is neither false nor true")),
    }
}

/// # Safety
/// `at` can be read.
unsafe fn function(at: *const *const u8, what: &str) -> Checked {
    // SAFETY: the caller's promise.
    if unsafe { at.read() }.is_null() { wrong(what, "the function is null") } else { Ok(()) }
}

/// # Safety
/// The items of the list can be read.
unsafe fn codes(list: (*const u8, usize), what: &str) -> Checked {
    // SAFETY: the caller's promise.
    unsafe { each(list, |at| code(at.read(), what)) }
}

fn code(value: u8, what: &str) -> Checked {
    if DType::from_code(value).is_some() { Ok(()) } else { wrong(what, format_args!("{value} is no dtype's code")) }
}

fn index(value: i64, least: i64, end: usize, what: &str) -> Checked {
    let inside = value >= least && value < end as i64;
    if inside { Ok(()) } else { wrong(what, format_args!("index {value}, of {least} to below {end}")) }
}

fn same(found: usize, wanted: usize, what: &str) -> Checked {
    if found == wanted { Ok(()) } else { wrong(what, format_args!("{found} values where there are {wanted}")) }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::super::*;
    use super::*;

    unsafe extern "C" fn record(
        _: *const Binding,
        _: *mut std::ffi::c_void,
        _: unsafe extern "C" fn(*mut std::ffi::c_void, *const u8, usize),
    ) {
    }
    unsafe extern "C" fn reference(_: *const Binding, _: *const LaunchArgs, _: i64, _: i64) {}
    unsafe extern "C" fn run(_: *const LaunchArgs, _: i64, _: i64) {}

    /// A kernel with something of everything, whose parts can be changed: it is leaked.
    fn def() -> &'static mut KernelDef {
        fn all<T>(items: impl Into<Vec<T>>) -> List<T> {
            let items = Vec::leak(items.into());
            let len = items.len();
            List { ptr: items.as_mut_ptr(), len, of: std::marker::PhantomData }
        }
        let part = || PartDim { axis: 0, dim: 1, tile: 0, size: 1 };
        let operand = |name, access| OperandDef {
            name: Str::new(name),
            access,
            dtype: DTypeRef::generic(0),
            rank: 2,
            zero_init: false,
            written: all([part()]),
            part: all([part()]),
        };
        let codes = || all([DType::F32 as u8]);
        let few = || Condition { operand: 1, dim: 0, max: 8 };
        Box::leak(Box::new(KernelDef {
            version: TABLE_VERSION,
            kind: KernelKind::Program,
            name: Str::new("of_everything"),
            krate: Str::new("me"),
            file: Str::new("me.rs"),
            line: 1,
            doc: Str::new(""),
            signature: Str::new("fn of_everything()"),
            optimized: true,
            operands: all([operand("y", Access::Out), operand("x", Access::In)]),
            generics: all([GenericDef { name: Str::new("T"), dtypes: codes(), by_size: false }]),
            params: all([ParamDef {
                name: Str::new("n"),
                kind: ParamKind::Int,
                dtype: DType::I64 as u8,
                has_default: false,
                default: 0,
                default_text: Str::new(""),
                choices: all([Str::new("one")]),
            }]),
            may_hold_tiles: true,
            tile_names: all([Str::new("B")]),
            gpu_tile: all([8]),
            gpu_tiles: all([GpuTile { sm: 90, generic: 0, dtypes: codes(), conditions: all([few()]), tile: all([8]) }]),
            variants: all([Variant { conditions: all([few()]) }]),
            grid: all([
                GridAxis { operand: 0, dim: 0, tile: 0, size: 1 },
                GridAxis { operand: GridAxis::EXPRESSION, dim: 0, tile: -1, size: 3 },
            ]),
            grid_terms: all([
                GridTerm { op: GridOp::Dim, index: 0, value: 1 },
                GridTerm { op: GridOp::Param, index: 0, value: 0 },
                GridTerm { op: GridOp::Div, index: 0, value: 0 },
            ]),
            nondeterministic: false,
            columns: None,
            transposed: None,
            instances: all([Instance { level: Level::Portable, dtypes: codes(), tile: all([8]), variant: 1, run }]),
            record,
            reference,
            // SAFETY: nothing runs it.
            contract: unsafe { Contract::upheld() },
        }))
    }

    fn table(def: *const KernelDef) -> ExtensionTable {
        // Not as references, which those that are null could not be.
        let defs: &'static [*const KernelDef] = Vec::leak(vec![def]);
        let kernels = List { ptr: defs.as_ptr().cast(), len: defs.len(), of: std::marker::PhantomData };
        ExtensionTable { version: TABLE_VERSION, layout: LAYOUT, target: TARGET, kernels }
    }

    fn checked(table: &ExtensionTable) -> Result<usize, Misfit> {
        // SAFETY: it is a table of ours with values that may be wrong, and what it points at is leaked.
        unsafe { kernels(table) }.map(|kernels| kernels.len())
    }

    #[test]
    fn a_table_of_ours_is_taken() {
        assert_eq!(checked(&table(def())), Ok(1));
    }

    #[test]
    fn a_table_of_another_build_is_refused() {
        // SAFETY: null is what it may be.
        assert_eq!(unsafe { kernels(ptr::null()) }.err(), Some(Misfit::Null));
        let ours = || table(def());
        assert_eq!(checked(&ExtensionTable { version: 6, ..ours() }), Err(Misfit::Version(6)));
        assert_eq!(checked(&ExtensionTable { layout: LAYOUT ^ 1, ..ours() }), Err(Misfit::Layout));
        let mut target = [0; super::super::layout::TARGET_BYTES];
        target[..7].copy_from_slice(b"sparc64");
        assert_eq!(checked(&ExtensionTable { target, ..ours() }), Err(Misfit::Target("sparc64".into())));
    }

    /// Where a first item of a list lies.
    fn first<T>(list: &List<T>) -> *mut T {
        list.ptr.cast_mut()
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        let is_wrong = |what: &str, change: &dyn Fn(*mut KernelDef)| {
            let def: *mut KernelDef = def();
            change(def);
            match checked(&table(def)) {
                Err(Misfit::Value(text)) if text.contains(what) => {}
                other => panic!("{what}: {other:?}"),
            }
        };
        // SAFETY: every write is to a field of a kernel that nobody has a reference to, or of a list that it owns, by a pointer to
        // numbers of the field's size.
        unsafe {
            is_wrong("5 is none of [0, 1]", &|d| (&raw mut (*d).kind).cast::<u32>().write(5));
            is_wrong("`of_everything`, version: it is 3", &|d| (&raw mut (*d).version).write(3));
            is_wrong("2 is neither false nor true", &|d| (&raw mut (*d).optimized).cast::<u8>().write(2));
            is_wrong("whether it may hold tiles: 3 is", &|d| (&raw mut (*d).may_hold_tiles).cast::<u8>().write(3));
            is_wrong("no UTF-8", &|d| (*d).doc = Str { ptr: [0xff].as_ptr(), len: 1 });
            is_wrong("null one", &|d| (*d).name.ptr = ptr::null());
            is_wrong("a string of 18446744073709551615", &|d| (*d).file.len = usize::MAX);
            is_wrong("a list of 18446744073709551615 items", &|d| (*d).params.len = usize::MAX);
            is_wrong("null or not aligned", &|d| (*d).operands.ptr = ptr::null());
            is_wrong("null or not aligned", &|d| (*d).instances.ptr = ptr::without_provenance(1));
            is_wrong("instances", &|d| (*d).instances.ptr = (*d).instances.ptr.wrapping_byte_add(1));
            is_wrong("record: the function is null", &|d| (&raw mut (*d).record).cast::<usize>().write(0));
            is_wrong("reference form: the function is null", &|d| (&raw mut (*d).reference).cast::<usize>().write(0));
            is_wrong("an instance: the function is null", &|d| {
                (&raw mut (*first(&(*d).instances)).run).cast::<usize>().write(0);
            });
            is_wrong("an instance: 1 is none of", &|d| {
                (&raw mut (*first(&(*d).instances)).level).cast::<u32>().write(1);
            });
            is_wrong("an instance: 200 is no dtype", &|d| *first(&(*first(&(*d).instances)).dtypes) = 200);
            is_wrong("an instance: 0 values where there are 1", &|d| (*first(&(*d).instances)).tile.len = 0);
            is_wrong("an instance: index 2, of 0 to below 2", &|d| (*first(&(*d).instances)).variant = 2);
            is_wrong("an operand: 9 is none of", &|d| {
                (&raw mut (*first(&(*d).operands)).access).cast::<u32>().write(9)
            });
            is_wrong("an operand: index 1", &|d| (*first(&(*d).operands)).dtype.generic = 1);
            is_wrong("an operand: 0 is no dtype", &|d| {
                (*first(&(*d).operands)).dtype = DTypeRef { generic: -1, fixed: 0 };
            });
            is_wrong("an operand: its rank is -1", &|d| (*first(&(*d).operands)).rank = -1);
            is_wrong("an operand: index 2, of 0 to below 2", &|d| (*first(&(*first(&(*d).operands)).part)).dim = 2);
            is_wrong("an operand: index 3, of -1 to below 2", &|d| {
                (*first(&(*first(&(*d).operands)).written)).axis = 3
            });
            is_wrong("a parameter: 4 is none of", &|d| (&raw mut (*first(&(*d).params)).kind).cast::<u32>().write(4));
            is_wrong("a parameter: 0 is no dtype", &|d| (*first(&(*d).params)).dtype = 0);
            is_wrong("a generic's dtypes: 3 is no dtype", &|d| *first(&(*first(&(*d).generics)).dtypes) = 3);
            is_wrong("grid: it has 0 axes", &|d| (*d).grid.len = 0);
            is_wrong("grid: operand 2 has no dim 0", &|d| (*first(&(*d).grid)).operand = 2);
            is_wrong("grid: operand 0 has no dim 2", &|d| (*first(&(*d).grid)).dim = 2);
            is_wrong("a grid's tile constant: index -2", &|d| (*first(&(*d).grid)).tile = -2);
            is_wrong("grid: operand -3", &|d| (*first(&(*d).grid)).operand = -3);
            is_wrong("a term of its grid: 10 is none of", &|d| {
                (&raw mut (*first(&(*d).grid_terms)).op).cast::<u32>().write(10)
            });
            is_wrong("a term of its grid: index 0, 2", &|d| (*first(&(*d).grid_terms)).value = 2);
            is_wrong("grid: an operation has too few values", &|d| (*first(&(*d).grid_terms)).op = GridOp::Add);
            is_wrong("grid: 3 terms from 0 on, of 2", &|d| (*d).grid_terms.len = 2);
            is_wrong("whether it is nondeterministic: 3 is", &|d| {
                (&raw mut (*d).nondeterministic).cast::<u8>().write(3)
            });
            is_wrong("variants: operand 7 has no dim", &|d| {
                (*first(&(*first(&(*d).variants)).conditions)).operand = 7;
            });
            is_wrong("tile on a GPU: 0 values", &|d| (*d).gpu_tile.len = 0);
            is_wrong("tiles on a GPU: index 1", &|d| (*first(&(*d).gpu_tiles)).generic = 1);
            is_wrong("tiles on a GPU: operand 1 has no dim 7", &|d| {
                (*first(&(*first(&(*d).gpu_tiles)).conditions)).dim = 7;
            });
        }
        let null = table(ptr::null());
        assert!(matches!(checked(&null), Err(Misfit::Value(text)) if text.contains("pointer 0 is null")));
    }
}
