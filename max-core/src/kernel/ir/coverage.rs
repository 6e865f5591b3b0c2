//! Coverage (definite assignment of results): whether programs write all of an operand, whatever the input is.
//!
//! A result that is covered needs no zero fill, and its epilogue can be fused where it is stored.

use super::{Kernel, Op, Value};

/// The axes of an operand that have to be of size 1 for programs to write all of it, whatever the input: as where each
/// program stores one element for its row of a result, in the row's column 0. `None` if that is not plain to see.
///
/// Such a result needs no zeros before, and what follows it can be computed where it is stored.
pub(crate) fn covers_if_one(kernel: &Kernel, operand: u32) -> Option<Vec<u32>> {
    let op_of = |value: &Value| {
        let makes = kernel.body.insts.iter().find(|inst| inst.results.contains(value));
        makes.map(|inst| &inst.op)
    };
    let of_store = |index: &[Value]| {
        let (mut ones, mut divided) = (Vec::new(), 0);
        for (axis, value) in (0..).zip(index) {
            let op = op_of(value)?;
            if *op == Op::Const(0) {
                ones.push(axis);
            } else {
                let Op::ProgramId(id) = op else { return None };
                let of = kernel.grid.get(*id as usize)?;
                let is_each = (of.operand, of.dim, of.size) == (operand as i32, axis, 1);
                divided += usize::from(is_each);
                is_each.then_some(())?;
            }
        }
        // An axis of the grid that is of something else may have no programs.
        (divided == kernel.grid.len()).then_some(ones)
    };
    kernel.body.insts.iter().find_map(|inst| {
        let Op::Store { operand: to, index, scatter: false, .. } = &inst.op else { return None };
        if *to == operand { of_store(index) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[track_caller]
    fn check(grid: &str, code: &str, expected: Option<&[u32]>) {
        let text = format!("kernel \"k\" program grid({grid}) (out y: f32[2], in x: f32[2]) {{\n{code}\n}}\n");
        let kernel = parse(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(covers_if_one(&kernel, 0).as_deref(), expected, "{text}");
    }

    #[test]
    fn one_store_for_each_program_writes_all_if_other_axes_have_one_element() {
        let ids = "%0: i64 = program_id 0 %1: i64 = const 0 %2: f32 = load x[%0, %1]";
        check("y.0", &format!("{ids} store y[%0, %1] = %2"), Some(&[1]));
        check("y.0, y.1", &format!("{ids} %3: i64 = program_id 1 store y[%0, %3] = %2"), Some(&[]));
        // In another column, of another operand's rows, of each second row, for one of several programs, or for some
        // input.
        check("y.0", &format!("{ids} %3: i64 = const 1 store y[%0, %3] = %2"), None);
        check("x.0", &format!("{ids} store y[%0, %1] = %2"), None);
        check("y.0 / 2", &format!("{ids} store y[%0, %1] = %2"), None);
        check("y.0, x.1", &format!("{ids} store y[%0, %1] = %2"), None);
        let when = "%3: bool = lt %2, %2 if %3 { store y[%0, %1] = %2 }";
        check("y.0", &format!("{ids} {when}"), None);
    }
}
