//! Twins: kernels that do what another one does, of operands that lie otherwise, so that these need no copy.
//!
//! A twin is found by its name, `sum_columns` beside `sum`, which alone says nothing: it is of the same crate, and has the same
//! arguments and parameters. Any other kernel of such a name is left alone.

use super::library::KernelLibrary;
use super::table::{Access, KernelDef, KernelKind, OperandDef, ParamDef};

/// In what a twin differs.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twin {
    /// It takes `[outer, axis, inner]`, and reduces or maps along the axis, where the other takes rows: `NAME_columns`.
    Columns,
    /// Its last operand is transposed: `NAME_transposed`.
    Transposed,
}

impl Twin {
    fn suffix(self) -> &'static str {
        match self {
            Twin::Columns => "columns",
            Twin::Transposed => "transposed",
        }
    }

    /// Whether the operands of a twin, given those of the kernel that it is of, have the ranks that it is shown.
    fn fits(self, own: &[OperandDef], twin: &[OperandDef]) -> bool {
        match (self, own, twin) {
            (Twin::Columns, [to, from], [columns, of]) => {
                let is_of_rows =
                    to.access == Access::Out && from.access == Access::In && (to.rank, from.rank) == (2, 2);
                is_of_rows && matches!(columns.rank, 2 | 3) && of.rank == 3
            }
            (Twin::Columns, ..) => false,
            (Twin::Transposed, ..) => {
                let same = own.iter().map(|operand| operand.rank).eq(twin.iter().map(|operand| operand.rank));
                same && twin.last().is_some_and(|last| last.access == Access::In && last.rank >= 2)
            }
        }
    }

    fn is(self, own: &KernelDef, twin: &KernelDef) -> bool {
        fn operand(of: &OperandDef) -> impl PartialEq + use<'_> {
            (of.name.as_str(), of.access, of.dtype)
        }
        // Also what they are where they are not given.
        fn param(of: &ParamDef) -> impl PartialEq + use<'_> {
            (of.name.as_str(), of.kind, of.dtype, of.has_default, of.default, of.default_text.as_str())
        }
        let (operands, params) =
            ([own, twin].map(|def| def.operands.as_slice()), [own, twin].map(|def| def.params.as_slice()));
        own.krate.as_str() == twin.krate.as_str()
            && [own, twin].iter().all(|def| def.kind == KernelKind::Program)
            && operands[0].iter().map(operand).eq(operands[1].iter().map(operand))
            && params[0].iter().map(param).eq(params[1].iter().map(param))
            && self.fits(operands[0], operands[1])
    }
}

impl KernelLibrary {
    /// A kernel's twin, if it has one here.
    #[doc(hidden)]
    pub fn twin(&self, own: &KernelDef, twin: Twin) -> Option<&'static KernelDef> {
        let name = format!("{}_{}", own.name.as_str(), twin.suffix());
        self.named(&name).find(|def| twin.is(own, def))
    }
}
