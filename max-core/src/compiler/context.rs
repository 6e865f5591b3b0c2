//! [`Context`]: what passes know besides the graph.

use std::sync::Arc;

use crate::driver::{DeviceRef, Tensor};
use crate::graph::weights::WeightsRegistry;
use crate::graph::{GraphData, KernelCall, Node};
use crate::kernel::abi::KernelDef;
use crate::kernel::{CodeOptions, Form, KernelLibrary, SharedTiles};
use crate::plan::Plan;
use crate::plan::error::{EngineError, OpRef};

/// What passes know besides the graph.
pub(crate) struct Context<'a> {
    /// The session's kernels; those of the graph's own library are looked up first.
    pub library: &'a KernelLibrary,
    /// The form of kernels that will run.
    pub form: Form,
    /// The session's devices.
    pub devices: &'a [DeviceRef],
    /// How the code of kernels on GPUs is written.
    pub code: CodeOptions,
    /// The number of threads that will execute kernels; who asks may start them.
    pub threads: &'a dyn Fn() -> usize,
    /// Where weights are found by name.
    pub weights: &'a dyn WeightsRegistry,
    /// The packed tiles of constants that models of the session have.
    pub packed: &'a Arc<SharedTiles>,
    /// Whether indices outside of their axis are an error on the host.
    pub check_indices: bool,
    /// Executes a plan without inputs: how constants are computed.
    pub execute: fn(&Plan) -> Result<Vec<Tensor>, EngineError>,
}

impl Context<'_> {
    /// An op, for messages.
    pub fn op(&self, graph: &GraphData, node: &Node) -> OpRef {
        OpRef { model: graph.name.clone(), op: node.op.to_string().into(), location: node.location }
    }

    /// The kernel that an op names: of the graph's own library, if that has it.
    pub fn kernel(&self, graph: &GraphData, node: &Node, call: &KernelCall) -> Result<&'static KernelDef, EngineError> {
        let found = graph.kernel_library().find_kernel(&call.name).unwrap_or_else(|| self.library.get(&call.name));
        found.map_err(|source| EngineError::Kernel { op: self.op(graph, node), source: source.into() })
    }

    /// Checks that the session has an op's device.
    pub fn check_device(&self, graph: &GraphData, node: &Node) -> Result<(), EngineError> {
        let types = node.results().map(|id| graph.ty(id).device());
        match [node.device].into_iter().chain(types).find(|device| !self.devices.contains(device)) {
            None => Ok(()),
            Some(device) => {
                let (op, available) = (self.op(graph, node), self.devices.to_vec());
                Err(EngineError::Device { op, device, available })
            }
        }
    }
}

/// What a pass returns.
pub(super) type Outcome<T = ()> = Result<T, EngineError>;
