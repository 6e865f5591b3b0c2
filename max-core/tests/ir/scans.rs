//! Scans, and other loops of lanes, in units of rows that begin beside the index or go the other way: the right results
//! however rows lie, and accesses of 16 bytes where they lie in units.

use max_core::dtype::{Element, bf16};
use max_core::kernel::ir::compute_dtype;
use ptx_sim::Stats;

use crate::execute::{Item, execute};
use crate::lanes::{LIES, elements, matrix};

trait Number: Item + Element + PartialEq + std::fmt::Debug {
    fn of(n: u64) -> Self;
}

macro_rules! number {
    ($($ty:ty: $n:ident => $value:expr;)*) => {$(
        impl Number for $ty {
            fn of($n: u64) -> Self { $value }
        }
    )*};
}
number! {
    f32: n => n as f32;
    f64: n => n as f64;
    bf16: n => bf16::from_f32(n as f32);
    u8: n => n as u8;
    i64: n => n as i64;
}

/// Where the element of index `k` lies in a row: at `k + from`, or at `from - k`.
#[derive(Clone, Copy, Debug)]
struct Place {
    from: i64,
    falls: bool,
}

impl Place {
    fn of(self, k: i64) -> i64 {
        if self.falls { self.from - k } else { k + self.from }
    }

    /// The instructions that make the coordinate `%v` from the index `%index`, with other values from `%v + 1` on.
    fn code(self, v: u32, index: u32) -> String {
        let (from, zero, part) = (v + 1, v + 2, v + 3);
        let op = if self.falls { format!("sub %{from}, %{index}") } else { format!("add %{index}, %{from}") };
        // In two steps, as rows that are parts of others have it.
        format!(
            "%{from}: i64 = const {} %{zero}: i64 = const 0 %{part}: i64 = {op} %{v}: i64 = add %{zero}, %{part}",
            self.from
        )
    }
}

/// The sums of a row up to each element, and the last one up to there that is not 0.
fn scan<T: Number>(read: Place, write: Place) -> String {
    let (t, c) = (T::DTYPE.short_name(), compute_dtype(T::DTYPE).short_name());
    let zero = if T::DTYPE.is_float() { "0.0" } else { "0" };
    format!(
        "kernel \"k\" program grid(y.0) (out y: {t}[2], out z: {t}[2], in x: {t}[2]) {{
            %0: i64 = program_id 0 %1: i64 = dim y.1 %2: {c} = const {zero}
            scan %1 (%2, %2) |%3: i64| {{
                {} %10: {c} = load x[%0, %4] yield %10, %10
            }} combine |%11: {c}, %12: {c}; %13: {c}, %14: {c}| {{
                %15: {c} = add %11, %13 %16: bool = eq %14, %2 %17: {c} = select %16, %12, %14 yield %15, %17
            }} emit |%18: {c}, %19: {c}| {{
                {} store y[%0, %20] = %18 store z[%0, %3] = %19
            }}
        }}",
        read.code(4, 3),
        write.code(20, 3),
    )
}

/// A row, doubled.
fn map<T: Number>(read: Place, write: Place) -> String {
    let (t, c) = (T::DTYPE.short_name(), compute_dtype(T::DTYPE).short_name());
    format!(
        "kernel \"k\" program grid(y.0) (out y: {t}[2], out z: {t}[2], in x: {t}[2]) {{
            %0: i64 = program_id 0 %1: i64 = dim y.1
            lanes %1 |%3: i64| {{
                {} %10: {c} = load x[%0, %4] %11: {c} = add %10, %10
                {} store y[%0, %20] = %11 store z[%0, %3] = %10
            }}
        }}",
        read.code(4, 3),
        write.code(20, 3),
    )
}

type Lies = (usize, i64, i64);

/// Runs a scan, or a map, of rows that lie in some way, and checks the results.
fn run<T: Number>(scans: bool, columns: usize, [read, write]: [Place; 2], [of_x, of_y]: [Lies; 2]) -> Stats {
    let rows = 3;
    let x = |i: usize, j: usize| ((31 * i + 17 * j + j * j % 13) % 3) as u64;
    let size = [rows, columns];
    let mut tensors = [
        matrix(size, of_y, |_, _| T::of(99)),
        matrix(size, of_y, |_, _| T::of(99)),
        matrix(size, of_x, |i, j| T::of(x(i, j))),
    ];
    let source = if scans { scan::<T>(read, write) } else { map::<T>(read, write) };
    let stats = execute(&source, &mut tensors, &[], &[rows as i64], 2);
    let (y, z): (Vec<T>, Vec<T>) = (elements(&tensors[0]), elements(&tensors[1]));
    let n = columns as i64;
    for i in 0..rows {
        let (mut sum, mut last) = (0, 0);
        let mut wanted = vec![99; columns];
        for k in 0..n {
            let at = read.of(k);
            let item = if (0..n).contains(&at) { x(i, at as usize) } else { 0 };
            (sum, last) = if !scans { (2 * item, item) } else { (sum + item, if item == 0 { last } else { item }) };
            let said = || format!("{columns} of {}, {read:?} {of_x:?} to {write:?} {of_y:?}, {i}, {k}", T::DTYPE);
            assert_eq!(z[i * columns + k as usize], T::of(last), "{}", said());
            if (0..n).contains(&write.of(k)) {
                wanted[write.of(k) as usize] = sum;
            }
        }
        for (j, &wanted) in wanted.iter().enumerate() {
            let said = || format!("{columns} of {}, {read:?} {of_x:?} to {write:?} {of_y:?}, {i}, {j}", T::DTYPE);
            assert_eq!(y[i * columns + j], T::of(wanted), "{}", said());
        }
    }
    stats
}

const fn rising(from: i64) -> Place {
    Place { from, falls: false }
}

const fn falling(from: i64) -> Place {
    Place { from, falls: true }
}

fn check<T: Number>() {
    for scans in [true, false] {
        for columns in [1, 2, 5, 8, 64, 257, 1030, 2500] {
            let end = columns as i64 - 1;
            for places in [
                [rising(0), rising(0)],
                [rising(-1), rising(8)],
                [rising(8), falling(end)],
                [falling(end), falling(end - 1)],
                [falling(end + 8), rising(-8)],
                [falling(end - 1), rising(i64::MIN)],
            ] {
                run::<T>(scans, columns, places, [LIES[0], LIES[0]]);
            }
            for lies in &LIES[1..6] {
                run::<T>(scans, columns, [rising(3), falling(end)], [*lies, LIES[0]]);
                run::<T>(scans, columns, [falling(end), rising(0)], [LIES[0], *lies]);
            }
        }
    }
}

checks!(scans_of_f32 f32 scans_of_f64 f64 scans_of_bf16 bf16 scans_of_u8 u8 scans_of_i64 i64);

#[test]
fn rows_beside_the_index_are_accessed_in_units() {
    let columns = 2048;
    let end = columns as i64 - 1;
    for scans in [true, false] {
        for read in [rising(0), rising(8), rising(-16), falling(end), falling(end - 8), falling(end + 16)] {
            for write in [rising(0), falling(end)] {
                let stats = run::<f32>(scans, columns, [read, write], [LIES[0], LIES[0]]);
                let of_row = |k: &i64| (0..=end).contains(&read.of(4 * k));
                let units = 3 * (0..columns as i64 / 4).filter(of_row).count() as u64;
                let counts = ["ld.global", "ld.global.v4", "st.global", "st.global.v4"].map(|kind| stats.count(kind));
                let results = 2 * 3 * columns as u64 / 4;
                let wanted = [units, units, results, results];
                assert_eq!(counts, wanted, "{scans}, {read:?} to {write:?}: {:?}", stats.by_kind);
                assert_eq!((stats.excess_sectors, stats.bank_conflicts), (0, 0), "{scans}, {read:?} to {write:?}");
            }
        }
        // Where rows begin between units, their elements are read one by one.
        let stats = run::<f32>(scans, columns, [rising(-1), rising(0)], [LIES[0], LIES[0]]);
        assert_eq!(stats.count("ld.global.v4"), 0, "{:?}", stats.by_kind);
        assert_eq!(stats.count("st.global.v4") > 0, scans, "{:?}", stats.by_kind);
    }
}
