//! Operands that a kernel may go without: what stands in their place.

use smallvec::SmallVec;

use super::site::{Result, Site};
use crate::driver::{Device, DeviceRef, Tensor};
use crate::dtype::DType;
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::parameters::{ParamValue, Parameters};
use crate::graph::types::{TensorType, Type};
use crate::graph::value::{GraphRef, TensorValue, Value};
use crate::kernel::abi::{Access, DTypeRef, KernelDef, OperandDef};

/// The one element in the place of an absent operand of this rank.
pub(crate) fn placeholder(dtype: DType, rank: usize) -> std::result::Result<Tensor, GraphErrorKind> {
    let ones: SmallVec<[usize; 5]> = std::iter::repeat_n(1, rank).collect();
    Ok(Tensor::zeros(dtype, &ones, &Device::cpu())?)
}

impl Site {
    /// What stands in the place of an operand beside `like` that is absent.
    pub(in crate::graph) fn absent(&self, like: &TensorValue, dtype: DType, rank: usize) -> Result<TensorValue> {
        match placeholder(dtype, rank) {
            Ok(tensor) => Ok(self.push_placeholder(&like.graph, tensor, like.device())),
            Err(kind) => self.fail(&[like], kind),
        }
    }

    fn push_placeholder(&self, graph: &GraphRef, tensor: Tensor, device: DeviceRef) -> TensorValue {
        let ty = TensorType::new(tensor.dtype(), tensor.shape(), device);
        self.push(graph, Op::Constant(tensor), SmallVec::new(), ty)
    }

    /// Puts what stands in the place of absent operands among the values of an op, and says so by parameters. Absent are
    /// those that a parameter of their name, `false`, says are, and after these the last ones that may be, as long as there
    /// are too few values.
    pub(in crate::graph) fn fill_absent(
        &self,
        (graph, device): (&GraphRef, DeviceRef),
        kernel: &KernelDef,
        values: &mut Vec<Value>,
        results: &[Type],
        parameters: &mut Parameters,
    ) -> Result<()> {
        let inputs: SmallVec<[&OperandDef; 4]> =
            kernel.operands.as_slice().iter().filter(|operand| operand.access != Access::Out).collect();
        let mut missing = inputs.len().saturating_sub(values.len());
        let said = |operand: &OperandDef, parameters: &Parameters| {
            kernel.given_param(operand).map(|param| parameters.get(param.name.as_str()).cloned())
        };
        let mut absent: SmallVec<[usize; 4]> = SmallVec::new();
        for is_said in [true, false] {
            for (i, operand) in inputs.iter().enumerate().rev() {
                let may_be = match said(operand, parameters) {
                    Some(Some(ParamValue::Bool(given))) => is_said && !given,
                    Some(None) => !is_said,
                    _ => false,
                };
                if may_be && missing > 0 {
                    missing -= 1;
                    absent.push(i);
                }
            }
        }
        absent.sort_unstable();
        for i in absent {
            let operand = inputs[i];
            let dtype = dtype_of(kernel, operand.dtype, values, results, parameters);
            let rank = usize::try_from(operand.rank).unwrap_or_default();
            let tensor = match placeholder(dtype, rank) {
                Ok(tensor) => tensor,
                Err(kind) => return Err(self.error(graph, values.iter().map(Value::ty), kind)),
            };
            let value = self.push_placeholder(graph, tensor, device);
            values.insert(i.min(values.len()), value.into());
            parameters.set(operand.name.as_str().into(), ParamValue::Bool(false));
        }
        Ok(())
    }
}

/// The dtype of an operand that is absent: as others have it, or any.
fn dtype_of(kernel: &KernelDef, of: DTypeRef, values: &[Value], results: &[Type], parameters: &Parameters) -> DType {
    let Some(generic) = usize::try_from(of.generic).ok().and_then(|i| kernel.generics.as_slice().get(i)) else {
        return DType::from_code(of.fixed).unwrap_or(DType::F32);
    };
    if let Some(ParamValue::DType(dtype)) = parameters.get(generic.name.as_str()) {
        return *dtype;
    }
    let operands = kernel.operands.as_slice();
    let is_result = |operand: &&OperandDef| operand.access == Access::Out;
    // Values before the first absent one are known to stand at their operand; results are all there.
    let firsts = operands.iter().filter(|o| !is_result(o)).zip(values.iter().map(|value| value.ty().dtype()));
    let firsts = firsts.take_while(|(operand, _)| kernel.given_param(operand).is_none());
    let outs = operands.iter().filter(is_result).zip(results.iter().map(Type::dtype));
    let known = firsts.chain(outs).find(|(operand, _)| operand.dtype.generic == of.generic).map(|(_, dtype)| dtype);
    let any = || generic.dtypes.as_slice().first().and_then(|code| DType::from_code(*code));
    known.or_else(any).unwrap_or(DType::F32)
}
