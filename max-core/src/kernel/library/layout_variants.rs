//! Layout variants: kernels that compute the same op over another memory layout, so that its operands need no copy.
//!
//! A variant is found by name (`sum_columns` beside `sum`), in the same crate and with the same arguments and
//! parameters. Any other kernel of such a name is left alone.

use super::super::abi::{Access, KernelDef, KernelKind, OperandDef, ParamDef};
use super::KernelLibrary;

/// How a layout variant differs.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutVariant {
    /// It takes `[outer, axis, inner]`, and reduces or maps along the axis, where the other takes rows: `NAME_columns`.
    Columns,
    /// Its last operand is transposed: `NAME_transposed`.
    Transposed,
}

impl LayoutVariant {
    fn suffix(self) -> &'static str {
        match self {
            LayoutVariant::Columns => "columns",
            LayoutVariant::Transposed => "transposed",
        }
    }

    /// Whether the operands of a layout variant, given those of the kernel that it is of, have the ranks that it is
    /// shown.
    fn fits(self, own: &[OperandDef], layout_variant: &[OperandDef]) -> bool {
        match (self, own, layout_variant) {
            (LayoutVariant::Columns, [to, from], [columns, of]) => {
                let is_of_rows =
                    to.access == Access::Out && from.access == Access::In && (to.rank, from.rank) == (2, 2);
                is_of_rows && matches!(columns.rank, 2 | 3) && of.rank == 3
            }
            (LayoutVariant::Columns, ..) => false,
            (LayoutVariant::Transposed, ..) => {
                let same = own.iter().map(|operand| operand.rank).eq(layout_variant.iter().map(|operand| operand.rank));
                same && layout_variant.last().is_some_and(|last| last.access == Access::In && last.rank >= 2)
            }
        }
    }

    fn is(self, own: &KernelDef, layout_variant: &KernelDef) -> bool {
        fn operand(of: &OperandDef) -> impl PartialEq + use<'_> {
            (of.name.as_str(), of.access, of.dtype)
        }
        // Also what they are where they are not given.
        fn param(of: &ParamDef) -> impl PartialEq + use<'_> {
            (of.name.as_str(), of.kind, of.dtype, of.has_default, of.default, of.default_text.as_str())
        }
        let (operands, params) = (
            [own, layout_variant].map(|def| def.operands.as_slice()),
            [own, layout_variant].map(|def| def.params.as_slice()),
        );
        own.krate.as_str() == layout_variant.krate.as_str()
            && [own, layout_variant].iter().all(|def| def.kind == KernelKind::Program)
            && operands[0].iter().map(operand).eq(operands[1].iter().map(operand))
            && params[0].iter().map(param).eq(params[1].iter().map(param))
            && self.fits(operands[0], operands[1])
    }
}

impl KernelLibrary {
    /// A kernel's layout variant, if it has one here.
    #[doc(hidden)]
    pub fn layout_variant(&self, own: &KernelDef, layout_variant: LayoutVariant) -> Option<&'static KernelDef> {
        let name = format!("{}_{}", own.name.as_str(), layout_variant.suffix());
        self.named(&name).find(|def| layout_variant.is(own, def))
    }
}
