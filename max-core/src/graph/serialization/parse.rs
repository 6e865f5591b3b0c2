//! Reads the text form of a graph. What it reads is checked as if ops had added it ([`super::verify`]): a text may come from
//! anywhere.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::text::STRUCTURE;
use super::verify::verify;
use crate::driver::{DeviceRef, Tensor};
use crate::dtype::DType;
use crate::graph::error::GraphErrorKind;
use crate::graph::node::{Chain, GraphData, Node, NodeId, Op, SliceAxes, SliceAxis, ValueDef, ValueId, Window};
use crate::graph::parameters::{KernelCall, ParamValue, Parameters};
use crate::graph::symbolic::bind::Symbols;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::types::{BufferType, TensorType, Type};
use crate::graph::value::Scalar;
use crate::graph::value::number::tensor_of;

/// Graphs in graphs, and parentheses in dims, nest no deeper: who reads a text does not run out of stack.
const DEEPEST: usize = 64;

/// Where constants are found that are not in the text.
pub(super) type Outside<'a> = &'a dyn Fn(&str) -> Option<Tensor>;

/// Reads a graph.
pub(super) fn parse(
    text: &str,
    outside: Outside<'_>,
    location: &'static Location<'static>,
) -> Result<GraphData, GraphErrorKind> {
    let mut parser = Parser { text, at: 0, outside, location, depth: 0 };
    let graph = parser.graph(&Symbols::new()).and_then(|graph| {
        parser.space();
        if parser.at == text.len() { Ok(graph) } else { Err("more behind the graph".to_owned()) }
    });
    graph.map_err(|reason| {
        let before = &text[..parser.at];
        let (line, column) =
            (before.matches('\n').count() + 1, before.len() - before.rfind('\n').map_or(0, |at| at + 1) + 1);
        GraphErrorKind::Text { line, column, reason }
    })
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    outside: Outside<'a>,
    location: &'static Location<'static>,
    depth: usize,
}

type Parsed<T> = Result<T, String>;

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            if !self.rest().starts_with("//") {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    /// Takes a mark or a word, if it is next.
    fn take(&mut self, mark: &str) -> bool {
        self.space();
        let is_word = mark.ends_with(|c: char| c.is_alphanumeric());
        let ends = |rest: &str| !is_word || !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let taken = self.rest().strip_prefix(mark).is_some_and(ends);
        if taken {
            self.at += mark.len();
        }
        taken
    }

    fn expect(&mut self, mark: &str) -> Parsed<()> {
        if self.take(mark) { Ok(()) } else { Err(format!("expected `{mark}`")) }
    }

    fn peek(&mut self, mark: &str) -> bool {
        let at = self.at;
        let taken = self.take(mark);
        self.at = at;
        taken
    }

    fn span(&mut self, what: &str, is_part: impl Fn(char) -> bool) -> Parsed<&'a str> {
        self.space();
        let rest = self.rest();
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        if end == 0 {
            return Err(format!("expected {what}"));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    fn word(&mut self) -> Parsed<&'a str> {
        self.span("a name", |c| c.is_alphanumeric() || c == '_' || c == '.')
    }

    fn number<T: std::str::FromStr>(&mut self, what: &str) -> Parsed<T> {
        let digits = self.span(what, |c| c.is_ascii_digit() || c == '-')?;
        digits.parse().map_err(|_| format!("{digits} is no {what}"))
    }

    /// A text in quotes, with Rust's escapes.
    fn quoted(&mut self) -> Parsed<String> {
        self.expect("\"")?;
        let mut text = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((at, c)) = chars.next() {
            let escaped = match c {
                '"' => {
                    self.at += at + 1;
                    return Ok(text);
                }
                '\\' => match chars.next().map(|(_, c)| c) {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some('r') => '\r',
                    Some('0') => '\0',
                    Some(c @ ('"' | '\\' | '\'')) => c,
                    Some('u') => {
                        let digits: String =
                            chars.by_ref().map(|(_, c)| c).skip(1).take_while(|c| *c != '}').take(8).collect();
                        let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                        code.ok_or_else(|| format!("`\\u{{{digits}}}` is no character"))?
                    }
                    _ => return Err("an unknown escape".to_owned()),
                },
                c => c,
            };
            text.push(escaped);
        }
        Err("a text without its closing quote".to_owned())
    }

    /// Items up to `close`, with commas between them.
    fn list<T>(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        if self.take(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.take(close) {
                return Ok(items);
            }
            self.expect(",")?;
        }
    }

    /// A sum of products of names, numbers and sums in parentheses.
    fn dim(&mut self) -> Parsed<Dim> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("dims nest too deep".to_owned());
        }
        let negative = self.take("-");
        let mut sum = self.product()?;
        if negative {
            sum = -sum;
        }
        loop {
            if self.take("+") {
                sum = sum + self.product()?;
            } else if self.take("-") {
                sum = sum - self.product()?;
            } else {
                self.depth -= 1;
                return Ok(sum);
            }
        }
    }

    fn product(&mut self) -> Parsed<Dim> {
        let mut product = self.factor()?;
        loop {
            if self.take("*") {
                product = product * self.factor()?;
            } else if self.rest().trim_start().starts_with('/') && !self.rest().trim_start().starts_with("//") {
                self.expect("/")?;
                product = product / self.factor()?;
            } else {
                return Ok(product);
            }
        }
    }

    fn factor(&mut self) -> Parsed<Dim> {
        if self.take("(") {
            let sum = self.dim()?;
            self.expect(")")?;
            return Ok(sum);
        }
        if self.take("-") {
            return Ok(-self.factor()?);
        }
        self.space();
        if self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(Dim::Static(self.number("size")?));
        }
        Ok(Dim::from(self.span("a dim", |c| c.is_alphanumeric() || c == '_')?))
    }

    fn shape(&mut self) -> Parsed<Shape> {
        self.expect("[")?;
        Ok(self.list("]", Self::dim)?.into())
    }

    fn ty(&mut self) -> Parsed<Type> {
        let is_buffer = self.take("buffer");
        let name = self.word()?;
        let dtype: DType = name.parse().map_err(|_| format!("`{name}` is no dtype"))?;
        let shape = self.shape()?;
        let device = if self.take("on") {
            let name = self.span("a device", |c| c.is_alphanumeric() || c == ':')?;
            name.parse().map_err(|_| format!("`{name}` is no device"))?
        } else {
            DeviceRef::CPU
        };
        let ty = TensorType::new(dtype, shape, device);
        Ok(if is_buffer { Type::Buffer(BufferType::from_tensor(ty)) } else { Type::Tensor(ty) })
    }

    fn value(&mut self, known: &HashMap<u32, ValueId>) -> Parsed<ValueId> {
        self.expect("%")?;
        let number: u32 = self.number("number of a value")?;
        known.get(&number).copied().ok_or_else(|| format!("%{number} is not known here"))
    }

    fn new_value(&mut self) -> Parsed<u32> {
        self.expect("%")?;
        self.number("number of a value")
    }

    /// A graph in which the names `around` have a size.
    fn graph(&mut self, around: &Symbols) -> Parsed<GraphData> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("graphs nest too deep".to_owned());
        }
        self.expect("graph")?;
        self.space();
        let name = if self.rest().starts_with('"') {
            self.quoted()?
        } else {
            self.span("a name", |c| c != '(' && c != '\n')?.trim_end().to_owned()
        };
        let mut graph = GraphData::new(name.into());
        (graph.symbols, graph.inherited) = (around.clone(), around.len());
        self.expect("(")?;
        let mut known: HashMap<u32, ValueId> = HashMap::new();
        let inputs = self.list(")", |parser| {
            let number = parser.new_value()?;
            let name = if parser.peek("\"") { Some(parser.quoted()?) } else { None };
            parser.expect(":")?;
            Ok((number, name, parser.ty()?))
        })?;
        let is_named = inputs.first().is_some_and(|(_, name, _)| name.is_some());
        for (position, (number, name, ty)) in inputs.into_iter().enumerate() {
            let name: Option<Arc<str>> = name.map(Into::into);
            if name.is_some() != is_named {
                return Err("inputs have names all or none".to_owned());
            }
            if name.as_ref().is_some_and(|name| name.is_empty() || graph.input_names.contains(name)) {
                return Err(format!("the name of %{number} is empty, or another input's"));
            }
            graph.input_names.extend(name);
            graph.declare_symbols(ty.shape());
            let (device, types) = (ty.device(), SmallVec::from_iter([ty]));
            let id = graph.push(Op::Input(position), SmallVec::new(), types, device, false, self.location);
            graph.inputs.push(id);
            if known.insert(number, id).is_some() {
                return Err(format!("%{number} is there twice"));
            }
        }
        self.expect("{")?;
        while !self.take("}") {
            if self.take("return") {
                let mut outputs = Vec::new();
                while self.peek("%") {
                    outputs.push(self.value(&known)?);
                    self.take(",");
                }
                graph.outputs = Some(outputs);
                self.expect("}")?;
                break;
            }
            if graph.outputs.is_some() {
                return Err("a node behind `return`".to_owned());
            }
            self.node(&mut graph, &mut known)?;
        }
        self.depth -= 1;
        Ok(graph)
    }

    fn node(&mut self, graph: &mut GraphData, known: &mut HashMap<u32, ValueId>) -> Parsed<()> {
        let mut numbers = Vec::new();
        while self.peek("%") {
            numbers.push(self.new_value()?);
            self.take(",");
        }
        if !numbers.is_empty() {
            self.expect("=")?;
        }
        let name = self.word()?;
        // What stands before the operands.
        let (mut constant, mut shape, mut text) = (None, Shape::from(()), String::new());
        match name {
            "constant" => constant = Some(self.literal()?),
            "constant_external" | "kernel" => text = self.quoted()?,
            "shape_to_tensor" | "bind_dims" => shape = self.shape()?,
            _ => {}
        }
        let operands: SmallVec<[ValueId; 4]> =
            if self.take("(") { self.list(")", |parser| parser.value(known))?.into() } else { SmallVec::new() };
        let attributes = if self.take_attributes() { self.attributes()? } else { Attributes::default() };
        let types = if self.take(":") {
            let mut types = vec![self.ty()?];
            while types.len() < numbers.len() {
                self.expect(",")?;
                types.push(self.ty()?);
            }
            types
        } else {
            Vec::new()
        };
        if types.len() != numbers.len() {
            return Err(format!("{} results, and {} types", numbers.len(), types.len()));
        }
        let chain = self.chain(graph.nodes.len())?;
        let mut inner = Vec::new();
        if self.take("{") {
            while !self.take("}") {
                inner.push(Arc::new(self.graph(&graph.symbols)?));
            }
        }
        let op = match name {
            "constant" => Op::Constant(self.constant(constant.unwrap_or_default(), types.first())?),
            "constant_external" => Op::ConstantExternal(text.into()),
            "reshape" => Op::Reshape,
            "permute" => Op::Permute(attributes.positions("dims")?),
            "broadcast_to" => Op::BroadcastTo,
            "slice" => Op::Slice(attributes.starts),
            "sliding_window" => {
                let (axis, number) = (attributes.axis.ok_or("no `axis`")?, |name: &str| attributes.number(name));
                Op::SlidingWindow(Window { axis, step: number("step")?, dilation: number("dilation")? })
            }
            "concat" => Op::Concat(attributes.axis.ok_or("no `axis`")?),
            "rebind" => Op::Rebind { message: attributes.text("message").unwrap_or_default().into() },
            "shape_to_tensor" => Op::ShapeToTensor(shape),
            "bind_dims" => Op::BindDims(shape),
            "transfer_to" => Op::TransferTo,
            "buffer_load" => Op::BufferLoad,
            "buffer_store" => Op::BufferStore,
            "buffer_store_slice" => Op::BufferStoreSlice(attributes.starts),
            "print" => Op::Print { label: attributes.text("label").unwrap_or_default().into() },
            "fence" => Op::Fence,
            "merge_device_chains" => Op::MergeChains,
            "cond" | "while_loop" => {
                let regions = <[Arc<GraphData>; 2]>::try_from(std::mem::take(&mut inner));
                let [first, second] = regions.map_err(|_| "expected two regions".to_owned())?;
                match name {
                    "cond" => Op::Cond { then: first, otherwise: second },
                    _ => Op::While { condition: first, body: second },
                }
            }
            "call" => {
                let called = inner.pop().ok_or("no graph that is called")?;
                Op::Call { graph: called, prefix: attributes.text("prefix").unwrap_or_default().into() }
            }
            name => {
                let is_quoted = name == "kernel";
                let name = if is_quoted { text } else { name.to_owned() };
                if !is_quoted && STRUCTURE.contains(&name.as_str()) {
                    return Err(format!("`{name}` is no node"));
                }
                let Attributes { axis, parameters, .. } = attributes;
                Op::Kernel(KernelCall { name: name.into(), axis, parameters })
            }
        };
        if !inner.is_empty() {
            return Err(format!("`{name}` runs no graph"));
        }
        match &op {
            Op::BindDims(shape) => graph.declare_symbols(shape),
            Op::Rebind { .. } | Op::Call { .. } => types.iter().for_each(|ty| graph.declare_symbols(ty.shape())),
            _ => {}
        }
        let id = NodeId(graph.nodes.len() as u32);
        let first_result = ValueId(graph.values.len() as u32);
        let own = types.first().map(Type::device);
        let device = match &op {
            Op::Cond { .. } | Op::While { .. } | Op::Call { .. } | Op::Fence | Op::MergeChains => DeviceRef::CPU,
            _ => own.or(operands.first().map(|id| graph.ty(*id).device())).unwrap_or(DeviceRef::CPU),
        };
        for (i, (number, ty)) in (0..).zip(numbers.iter().zip(types)) {
            graph.values.push(ValueDef { ty, node: id });
            if known.insert(*number, ValueId(first_result.0 + i)).is_some() {
                return Err(format!("%{number} is there twice"));
            }
        }
        let node = Node {
            op,
            operands,
            first_result,
            result_count: numbers.len() as u32,
            device,
            chain,
            location: self.location,
        };
        verify(graph, &node)?;
        graph.nodes.push(node);
        Ok(())
    }

    /// `effect n5 after n1, n3`
    fn chain(&mut self, index: usize) -> Parsed<Option<Chain>> {
        if !self.take("effect") {
            return Ok(None);
        }
        let node = |parser: &mut Self| -> Parsed<usize> {
            let word = parser.word()?;
            let number = word.strip_prefix('n').and_then(|digits| digits.parse().ok());
            number.ok_or_else(|| format!("expected a node, got `{word}`"))
        };
        if node(self)? != index {
            return Err(format!("this is node n{index}"));
        }
        let mut after = SmallVec::new();
        if self.take("after") {
            loop {
                let before = node(self)?;
                if before >= index {
                    return Err(format!("n{before} is not before n{index}"));
                }
                after.push(NodeId(before as u32));
                if !self.take(",") {
                    break;
                }
            }
        }
        Ok(Some(Chain { after }))
    }

    /// The numbers of a constant, or the name by which it is found elsewhere.
    fn literal(&mut self) -> Parsed<Literal> {
        if self.take("@") {
            return Ok(Literal::Outside(self.word()?.to_owned()));
        }
        if !self.take("[") {
            return Ok(Literal::Numbers(vec![self.scalar()?]));
        }
        Ok(Literal::Numbers(self.list("]", |parser| {
            if parser.peek("...") {
                return Err("the constant is not all in the text; use `Graph::save` and `Graph::load`".to_owned());
            }
            parser.scalar()
        })?))
    }

    fn scalar(&mut self) -> Parsed<Scalar> {
        let text = self.span("a number", |c| c.is_alphanumeric() || matches!(c, '.' | '-' | '+'))?;
        Ok(match text {
            "true" => Scalar::Bool(true),
            "false" => Scalar::Bool(false),
            _ => match text.parse::<i128>() {
                Ok(number) => Scalar::Int(number),
                Err(_) => Scalar::Float(text.parse().map_err(|_| format!("`{text}` is no number"))?),
            },
        })
    }

    fn constant(&self, literal: Literal, ty: Option<&Type>) -> Parsed<Tensor> {
        let Some(Type::Tensor(ty)) = ty else { return Err("a constant is one tensor".to_owned()) };
        let Some(shape) = ty.shape.static_dims() else { return Err("the shape of a constant is static".to_owned()) };
        let shape = shape.into_iter().map(|dim| usize::try_from(dim).map_err(|_| "a negative dim".to_owned()));
        let shape = shape.collect::<Parsed<Vec<usize>>>()?;
        let tensor = match literal {
            Literal::Outside(name) => {
                (self.outside)(&name).ok_or_else(|| format!("there is no constant of the name `{name}`"))?
            }
            Literal::Numbers(numbers) => {
                tensor_of(&numbers, ty.dtype, &shape).ok_or_else(|| format!("the constant is no {ty}"))?
            }
        };
        if tensor.dtype() != ty.dtype || tensor.shape() != shape || !tensor.is_host() || !tensor.is_contiguous() {
            return Err(format!("the constant is {}{:?}, not {ty}", tensor.dtype(), tensor.shape()));
        }
        Ok(tensor)
    }

    /// Whether attributes follow, and not the graphs that the node runs.
    fn take_attributes(&mut self) -> bool {
        let at = self.at;
        if self.take("{") && !self.peek("graph") && !self.peek("}") {
            return true;
        }
        self.at = at;
        false
    }

    fn attributes(&mut self) -> Parsed<Attributes> {
        let mut all = Attributes::default();
        self.list("}", |parser| {
            let is_parameter = parser.take("param");
            let name = parser.word()?;
            parser.expect("=")?;
            if name == "axis" && !is_parameter {
                all.axis = Some(parser.number("axis")?);
                return Ok(());
            }
            parser.space();
            if parser.rest().starts_with('[') {
                parser.expect("[")?;
                match name {
                    "start" => {
                        all.starts = parser
                            .list("]", |parser| {
                                let start = parser.dim()?;
                                parser.expect("step")?;
                                Ok(SliceAxis { start, step: parser.number("step")? })
                            })?
                            .into();
                    }
                    _ => all.positions = parser.list("]", |parser| parser.number("position"))?.into(),
                }
                return Ok(());
            }
            let value = if parser.rest().starts_with('"') {
                ParamValue::from(parser.quoted()?)
            } else if parser.take("dim") {
                parser.expect("(")?;
                let dim = parser.dim()?;
                parser.expect(")")?;
                ParamValue::from(dim)
            } else {
                let at = parser.at;
                match parser.word().ok().and_then(|word| word.parse::<DType>().ok()) {
                    Some(dtype) => ParamValue::DType(dtype),
                    None => {
                        parser.at = at;
                        match parser.scalar()? {
                            Scalar::Int(number) => {
                                i64::try_from(number).map_err(|_| format!("{number} is too large"))?.into()
                            }
                            Scalar::Float(number) => number.into(),
                            Scalar::Bool(truth) => truth.into(),
                        }
                    }
                }
            };
            all.parameters = std::mem::take(&mut all.parameters).with(name.to_owned(), value);
            Ok(())
        })?;
        Ok(all)
    }
}

/// A constant in the text.
enum Literal {
    Numbers(Vec<Scalar>),
    Outside(String),
}

impl Default for Literal {
    fn default() -> Self {
        Literal::Numbers(Vec::new())
    }
}

/// What stands in braces behind the operands.
#[derive(Default)]
struct Attributes {
    axis: Option<usize>,
    positions: SmallVec<[usize; 4]>,
    starts: SliceAxes,
    parameters: Parameters,
}

impl Attributes {
    fn positions(&self, name: &str) -> Parsed<SmallVec<[usize; 4]>> {
        if self.positions.is_empty() { Err(format!("no `{name}`")) } else { Ok(self.positions.clone()) }
    }

    fn number(&self, name: &str) -> Parsed<i64> {
        match self.parameters.get(name) {
            Some(ParamValue::Int(number)) => Ok(*number),
            _ => Err(format!("no `{name}`")),
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        match self.parameters.get(name) {
            Some(ParamValue::String(text)) => Some(text.to_string()),
            _ => None,
        }
    }
}
