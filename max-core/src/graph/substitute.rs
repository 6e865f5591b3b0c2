//! [`Substitution`]: names of dims replaced by dims, in types, ops and whole graphs. So a subgraph becomes part of its caller.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::node::{GraphData, Op};
use super::parameters::{KernelCall, ParamValue, Parameters};
use super::symbolic::bind::Symbols;
use super::symbolic::dim::Dim;
use super::symbolic::polynomial::Polynomial;
use super::symbolic::polynomial::nested::{Atom, Form, innermost_first};
use super::symbolic::shape::Shape;
use super::types::{BufferType, TensorType, Type};

/// What names stand for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Substitution(HashMap<Arc<str>, Dim>);

impl Substitution {
    /// What a name stands for, if it is replaced.
    pub fn get(&self, name: &str) -> Option<&Dim> {
        self.0.get(name)
    }

    /// Replaces a name.
    pub fn insert(&mut self, name: impl Into<Arc<str>>, dim: Dim) {
        self.0.insert(name.into(), dim);
    }

    /// A dim with its names replaced.
    pub fn dim(&self, dim: &Dim) -> Dim {
        if self.0.is_empty() {
            return dim.clone();
        }
        match dim {
            Dim::Static(size) => Dim::Static(*size),
            Dim::Symbolic(name) => self.get(name.name()).unwrap_or(dim).clone(),
            Dim::Algebraic(_) => {
                let expression = dim.to_polynomial();
                let mut known = HashMap::new();
                for nested in innermost_first(&expression) {
                    let value = match nested.form() {
                        Form::Sum(sum) => self.sum(sum, &known),
                        Form::FloorDiv(numerator, divisor) => self.sum(numerator, &known) / self.sum(divisor, &known),
                    };
                    known.insert(nested.id(), value);
                }
                self.sum(&expression, &known)
            }
        }
    }

    fn sum(&self, polynomial: &Polynomial, known: &HashMap<usize, Dim>) -> Dim {
        let mut sum = Dim::Static(0);
        for (monomial, coefficient) in &polynomial.0 {
            let mut term = Dim::Static(*coefficient);
            for atom in &monomial.0 {
                term = match atom {
                    Atom::Symbol(name) => term * self.get(name).cloned().unwrap_or_else(|| Dim::from(&**name)),
                    Atom::Nested(nested) => term * known.get(&nested.id()).cloned().unwrap_or(Dim::Static(1)),
                };
            }
            sum = sum + term;
        }
        sum
    }

    /// A shape with its names replaced.
    pub fn shape(&self, shape: &Shape) -> Shape {
        shape.iter().map(|dim| self.dim(dim)).collect()
    }

    /// A type with its names replaced.
    pub fn ty(&self, ty: &Type) -> Type {
        let of = |ty: &TensorType| TensorType::new(ty.dtype, self.shape(&ty.shape), ty.device);
        match ty {
            Type::Tensor(ty) => Type::Tensor(of(ty)),
            Type::Buffer(ty) => Type::Buffer(BufferType::from_tensor(of(ty.as_tensor()))),
        }
    }

    /// An op with its names replaced, and `prefix` before the names of its weights.
    pub fn op(&self, op: &Op, prefix: &str) -> Op {
        let mut op = op.clone();
        match &mut op {
            Op::ShapeToTensor(shape) | Op::BindDims(shape) => *shape = self.shape(shape),
            Op::Slice(axes) | Op::BufferStoreSlice(axes) => {
                axes.iter_mut().for_each(|axis| axis.start = self.dim(&axis.start));
            }
            Op::Kernel(call) => self.call(call),
            Op::ConstantExternal(name) if !prefix.is_empty() => *name = format!("{prefix}{name}").into(),
            Op::Call { prefix: inner, .. } if !prefix.is_empty() => *inner = format!("{prefix}{inner}").into(),
            _ => {}
        }
        for region in op.regions_mut() {
            *region = Arc::new(self.graph(region, prefix));
        }
        op
    }

    fn call(&self, call: &mut KernelCall) {
        if call.parameters.iter().any(|(_, value)| matches!(value, ParamValue::Dim(_))) {
            let replaced = |(name, value): (&str, &ParamValue)| {
                let value = match value {
                    ParamValue::Dim(dim) => self.dim(dim).into(),
                    other => other.clone(),
                };
                (name.to_owned(), value)
            };
            call.parameters = call.parameters.iter().map(replaced).collect::<Parameters>();
        }
    }

    /// A region with its names replaced.
    pub fn graph(&self, graph: &GraphData, prefix: &str) -> GraphData {
        let mut graph = graph.clone();
        let mut known = Symbols::new();
        for number in 0..graph.symbols.len() {
            if number == graph.inherited {
                graph.inherited = known.len();
            }
            let dim = self.dim(&Dim::from(graph.symbols.name(number)));
            for name in dim.parameters() {
                known.add(&name);
            }
        }
        graph.inherited = graph.inherited.min(known.len());
        graph.symbols = known;
        graph.values.iter_mut().for_each(|value| value.ty = self.ty(&value.ty));
        graph.nodes.iter_mut().for_each(|node| node.op = self.op(&node.op, prefix));
        let types: Vec<Shape> = graph.values.iter().map(|value| value.ty.shape().clone()).collect();
        types.iter().for_each(|shape| graph.declare_symbols(shape));
        graph
    }
}

impl fmt::Display for Substitution {
    /// `n = 4, batch = b * 2`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all: Vec<String> = self.0.iter().map(|(name, dim)| format!("{name} = {dim}")).collect();
        all.sort();
        f.write_str(&all.join(", "))
    }
}
