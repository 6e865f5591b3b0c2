//! Inlining, for kernel fusion: chains of elementwise kernels become one kernel ([`Chain::alone`]), or the prologue and
//! epilogue of a program kernel ([`fuse`]).
//!
//! It exists because a fused GPU kernel needs no round trip through memory. What goes from one kernel to the next is a
//! value, rounded to its dtype as memory would have rounded it.

use std::collections::HashMap;
use std::mem::take;

use super::{BinaryOp, Block, Builder, CmpOp, Kernel, Loc, Op, Operand, Param, ParamType, Type, Value, compute_dtype};
use crate::dtype::{DType, F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, bf16, f16};
use crate::kernel::abi::{Access, KernelKind, ParamBits, ParamKind};

/// Where an elementwise kernel finds an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The operand in memory of this position.
    Memory(usize),
    /// The value of this number, which no one else sees.
    Scratch(usize),
    /// What the program beside it reads or wrote.
    Program,
    /// The element that these are the bits of, as memory has it: the first bytes.
    Constant(u64),
}

/// Elementwise kernels, one after the other over the same elements, with their parameters bound.
#[derive(Clone)]
pub(crate) struct Chain {
    /// The kernels, with the place of each operand.
    pub kernels: Vec<(Kernel, Vec<Place>)>,
    /// What lies in memory.
    pub operands: Vec<Operand>,
}

/// What goes on at a place where a program reads or writes an operand.
#[derive(Clone)]
pub(crate) struct Side {
    /// The kernels.
    pub chain: Chain,
    /// The program's operand.
    pub operand: u32,
}

const AT: Loc = Loc { file: 0, line: 0, column: 0 };
const I64: Type = Type::Scalar(DType::I64);

fn scalar(dtype: DType) -> Type {
    Type::Scalar(compute_dtype(dtype))
}

fn push(b: &mut Builder, op: Op, ty: Type) -> Value {
    b.push(op, &[ty], AT)[0]
}

/// The value as memory of a dtype would keep it.
fn rounded(b: &mut Builder, dtype: DType, value: Value) -> Value {
    match compute_dtype(dtype) {
        same if same == dtype => value,
        compute => push(b, Op::Round(dtype, value), Type::Scalar(compute)),
    }
}

/// Copies the code of a kernel, whose elements are given, to where the builder stands; gives what it yields.
struct Copied<'a> {
    kernel: &'a Kernel,
    /// The number in the new kernel of each of the kernel's files.
    files: Vec<u32>,
    values: HashMap<Value, Value>,
}

impl<'a> Copied<'a> {
    fn code(b: &mut Builder, kernel: &'a Kernel, elements: &[Value]) -> Vec<Value> {
        let known = &mut b.kernel_mut().files;
        let files = kernel.files.iter().map(|file| {
            let found = known.iter().position(|name| name == file);
            found.unwrap_or_else(|| {
                known.push(file.clone());
                known.len() - 1
            }) as u32
        });
        let files = files.collect();
        let values = kernel.elements.iter().copied().zip(elements.iter().copied()).collect();
        let mut copied = Copied { kernel, files, values };
        copied.insts(b, &kernel.body);
        kernel.body.yields.iter().map(|&value| copied.value(b, value)).collect()
    }

    fn loc(&self, loc: Loc) -> Loc {
        Loc { file: self.files.get(loc.file as usize).copied().unwrap_or(0), ..loc }
    }

    fn value(&mut self, b: &mut Builder, value: Value) -> Value {
        let def = self.kernel.values[value.0 as usize];
        let loc = self.loc(def.loc);
        *self.values.entry(value).or_insert_with(|| b.value(def.ty, loc))
    }

    fn insts(&mut self, b: &mut Builder, block: &Block) {
        for inst in &block.insts {
            let mut op = inst.op.clone();
            let (values, blocks) = op.parts_mut();
            values.into_iter().for_each(|value| *value = self.value(b, *value));
            for block in blocks {
                let old = take(block);
                b.open_block();
                self.insts(b, &old);
                let yields = old.yields.iter().map(|&value| self.value(b, value)).collect();
                *block = b.close_block(yields);
            }
            let results = inst.results.iter().map(|&value| self.value(b, value)).collect();
            b.push_into(op, results, self.loc(inst.loc));
        }
    }
}

/// The bits of an element in the dtype that computes, from those in memory.
fn widened(dtype: DType, bits: u64) -> u64 {
    let float = |value: f32| u64::from(value.to_bits());
    match dtype {
        DType::F16 => float(f16::from_bits(bits as u16).to_f32()),
        DType::BF16 => float(bf16::from_bits(bits as u16).to_f32()),
        DType::F8E4M3FN => float(F8E4M3::from_bits(bits as u8).to_f32()),
        DType::F8E4M3FNUZ => float(F8E4M3FNUZ::from_bits(bits as u8).to_f32()),
        DType::F8E5M2 => float(F8E5M2::from_bits(bits as u8).to_f32()),
        DType::F8E5M2FNUZ => float(F8E5M2FNUZ::from_bits(bits as u8).to_f32()),
        DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::F32 => bits,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::F64 => bits,
    }
}

/// A name that no operand and no parameter of a kernel has.
fn unused_name(kernel: &Kernel, mut name: String) -> String {
    let names = || kernel.operands.iter().map(|o| &o.name).chain(kernel.params.iter().map(|p| &p.name));
    while names().any(|known| *known == name) {
        name.push('_');
    }
    name
}

/// What kernels of a chain left where others find it.
struct Results {
    memory: Vec<Option<Value>>,
    program: Option<Value>,
}

impl Chain {
    /// The operands that are read before the chain writes them.
    fn reads(&self) -> Vec<usize> {
        let reads = |i: &usize| self.operands[*i].access == Access::In;
        (0..self.operands.len()).filter(reads).collect()
    }

    fn writes(&self) -> Vec<usize> {
        (0..self.operands.len()).filter(|&i| self.operands[i].access != Access::In).collect()
    }

    /// Whether a kernel of the chain writes the operand; what stands beside it may have written it already.
    fn is_written(&self, operand: usize) -> bool {
        let mut places = self.kernels.iter().flat_map(|(kernel, places)| kernel.operands.iter().zip(places));
        places.any(|(o, place)| o.access != Access::In && *place == Place::Memory(operand))
    }

    /// The operands that are constants, in order: their dtypes, and the bits of their elements.
    fn constants(&self) -> impl Iterator<Item = (DType, u64)> {
        let operands = self.kernels.iter().flat_map(|(kernel, places)| kernel.operands.iter().zip(places));
        operands.filter_map(|(operand, place)| match *place {
            Place::Constant(bits) => Some((operand.dtype, bits)),
            Place::Memory(_) | Place::Scratch(_) | Place::Program => None,
        })
    }

    /// The bits of the parameters that the chain adds to a kernel.
    ///
    /// Constants are parameters, and not part of the code: code that differs in nothing but its constants, as that of
    /// layers with scales of their own, is then written and loaded once. Nothing is lost by it, as parameters of a
    /// launch lie in memory for constants, which instructions take operands from; an operand would be a load, and have
    /// a row's place.
    pub fn params(&self) -> impl Iterator<Item = ParamBits> {
        self.constants().map(|(dtype, bits)| widened(dtype, bits))
    }

    /// Adds these parameters to a kernel; gives the number of the first one.
    fn add_params(&self, kernel: &mut Kernel) -> u32 {
        let first = kernel.params.len() as u32;
        for (dtype, _) in self.constants() {
            let ty = match dtype == DType::Bool {
                true => ParamType::Of(ParamKind::Bool),
                false => ParamType::Scalar(compute_dtype(dtype)),
            };
            let name = unused_name(kernel, format!("c{}", kernel.params.len()));
            kernel.params.push(Param { name, ty });
        }
        first
    }

    /// Writes the code where the builder stands. `param` is the chain's first parameter, `load` gives the elements of
    /// operands that are read, `program` is the element of the program's operand.
    fn code(
        &self,
        b: &mut Builder,
        mut param: u32,
        program: Option<Value>,
        mut load: impl FnMut(&mut Builder, usize) -> Value,
    ) -> Results {
        let mut left = Results { memory: vec![None; self.operands.len()], program };
        let mut scratch: HashMap<usize, Value> = HashMap::new();
        for (kernel, places) in &self.kernels {
            let mut elements = Vec::new();
            let of = |access: fn(Access) -> bool| {
                kernel.operands.iter().zip(places).filter(move |(operand, _)| access(operand.access))
            };
            for (operand, place) in of(|access| access != Access::Out) {
                elements.extend(match *place {
                    Place::Memory(i) => Some(*left.memory[i].get_or_insert_with(|| load(b, i))),
                    Place::Scratch(slot) => scratch.get(&slot).copied(),
                    Place::Program => left.program,
                    Place::Constant(_) => {
                        param += 1;
                        Some(push(b, Op::Param(param - 1), scalar(operand.dtype)))
                    }
                });
            }
            let results = Copied::code(b, kernel, &elements);
            for ((operand, place), value) in of(|access| access != Access::In).zip(results) {
                let value = rounded(b, operand.dtype, value);
                match *place {
                    Place::Memory(i) => left.memory[i] = Some(value),
                    Place::Scratch(slot) => drop(scratch.insert(slot, value)),
                    Place::Program => left.program = Some(value),
                    // Nothing is written there.
                    Place::Constant(_) => {}
                }
            }
        }
        left
    }

    /// The chain as an elementwise kernel over its operands.
    pub fn alone(&self, name: &str) -> Kernel {
        let mut b = Builder::new(Kernel::new(name, KernelKind::Elementwise));
        b.kernel_mut().operands = self.operands.iter().map(|operand| Operand { rank: 0, ..operand.clone() }).collect();
        let mut elements = vec![None; self.operands.len()];
        for i in self.reads() {
            let element = b.value(scalar(self.operands[i].dtype), AT);
            elements[i] = Some(element);
            b.kernel_mut().elements.push(element);
        }
        let param = self.add_params(b.kernel_mut());
        let left =
            self.code(&mut b, param, None, |b, i| elements[i].unwrap_or_else(|| zero(b, self.operands[i].dtype)));
        let results = self.writes().into_iter().filter_map(|i| left.memory[i]).collect();
        b.finish(results)
    }
}

fn zero(b: &mut Builder, dtype: DType) -> Value {
    push(b, Op::Const(0), scalar(dtype))
}

/// A program with chains where it reads and writes operands. The operands of `before`, then those of `after`, stand
/// behind the program's own, have the dims of the operand that they stand for, and are read and written at its places.
///
/// An operand that is read is computed by `before` wherever the program reads it; that has to write
/// [`Place::Program`] and nothing else. What the program writes goes to `after`; it is written as well if `keep` holds.
pub(crate) fn fuse(mut program: Kernel, prologue: Option<Side>, epilogue: Option<Side>, stores: bool) -> Kernel {
    let mut first = program.operands.len() as u32;
    for side in [&prologue, &epilogue].into_iter().flatten() {
        let rank = program.operands[side.operand as usize].rank;
        for operand in &side.chain.operands {
            let name = unused_name(&program, format!("{}{}", operand.name, program.operands.len()));
            program.operands.push(Operand { name, rank, ..operand.clone() });
        }
    }
    let mut placed = |side: Side| {
        let start = first;
        first += side.chain.operands.len() as u32;
        let param = side.chain.add_params(&mut program);
        Attached { side, first: start, param }
    };
    let (prologue, epilogue) = (prologue.map(&mut placed), epilogue.map(&mut placed));
    let body = take(&mut program.body);
    let mut program = Program { b: Builder::new(program), prologue, epilogue, stores };
    let yields = program.insts(body);
    program.b.finish(yields)
}

/// A side, and the numbers of its first operand and of its first parameter.
struct Attached {
    side: Side,
    first: u32,
    param: u32,
}

struct Program {
    b: Builder,
    prologue: Option<Attached>,
    epilogue: Option<Attached>,
    stores: bool,
}

impl Program {
    fn insts(&mut self, block: Block) -> Vec<Value> {
        for mut inst in block.insts {
            for block in inst.op.parts_mut().1 {
                self.b.open_block();
                let yields = self.insts(take(block));
                *block = self.b.close_block(yields);
            }
            let Program { b, prologue, epilogue, stores } = self;
            let is_written = match (&inst.op, &*prologue, &*epilogue) {
                (Op::Load { operand, index, pad }, Some(prologue), _) if *operand == prologue.side.operand => {
                    prologue.load(b, index, *pad, inst.results);
                    continue;
                }
                (Op::TileLoad { operand, batch, origin, transpose }, Some(prologue), _)
                    if *operand == prologue.side.operand =>
                {
                    prologue.tile_load(b, batch, *origin, *transpose, inst.results);
                    continue;
                }
                (Op::Store { operand, index, value, .. }, _, Some(epilogue)) if *operand == epilogue.side.operand => {
                    epilogue.store(b, index, *value);
                    *stores
                }
                (Op::TileStore { operand, batch, origin, value }, _, Some(epilogue))
                    if *operand == epilogue.side.operand =>
                {
                    epilogue.tile_store(b, batch, *origin, *value);
                    *stores
                }
                _ => true,
            };
            if is_written {
                b.push_into(inst.op, inst.results, inst.loc);
            }
        }
        block.yields
    }
}

/// Whether `0 <= index < dim` for each index, with the operand's dims from `axis` on.
fn inside(b: &mut Builder, operand: u32, axis: u32, index: &[Value]) -> Value {
    let bool = Type::Scalar(DType::Bool);
    let mut all = push(b, Op::Const(1), bool);
    let zero = push(b, Op::Const(0), I64);
    for (axis, &index) in (axis..).zip(index) {
        let dim = push(b, Op::Dim { operand, axis }, I64);
        for (op, bound) in [(CmpOp::Ge, zero), (CmpOp::Lt, dim)] {
            let holds = push(b, Op::Cmp(op, index, bound), bool);
            all = push(b, Op::Binary(BinaryOp::And, all, holds), bool);
        }
    }
    all
}

impl Attached {
    fn memory(&self, b: &Builder, i: usize) -> (u32, DType) {
        let operand = self.first + i as u32;
        (operand, b.kernel().operands[operand as usize].dtype)
    }

    /// The dtype of the program's operand.
    fn dtype(&self, b: &Builder) -> DType {
        b.kernel().operands[self.side.operand as usize].dtype
    }

    /// Reads an operand of the chain.
    fn read(&self, b: &mut Builder, i: usize, index: &[Value]) -> Value {
        let (operand, dtype) = self.memory(b, i);
        push(b, Op::Load { operand, index: index.to_vec(), pad: None }, scalar(dtype))
    }

    /// What the program would read, computed.
    fn load(&self, b: &mut Builder, index: &[Value], pad: Option<Value>, results: Vec<Value>) {
        let inside = inside(b, self.side.operand, 0, index);
        let left = self.side.chain.code(b, self.param, None, |b, i| self.read(b, i, index));
        let pad = pad.unwrap_or_else(|| zero(b, self.dtype(b)));
        let value = left.program.unwrap_or(pad);
        b.push_into(Op::Select(inside, value, pad), results, AT);
    }

    /// The tile that the program would read, computed.
    fn tile_load(&self, b: &mut Builder, batch: &[Value], origin: [Value; 2], transpose: bool, results: Vec<Value>) {
        let Some(ty) = results.first().map(|result| b.ty(*result)) else { return };
        let (own, dtype) = (self.side.operand, self.dtype(b));
        let tiles = self.tiles(b, ty, batch, origin, transpose);
        let position = [b.value(I64, AT), b.value(I64, AT)];
        let (elements, body) = self.over(b, &tiles, |b, elements| {
            let [row, column] = if transpose { [position[1], position[0]] } else { position };
            let index = [(origin[0], row), (origin[1], column)]
                .map(|(origin, place)| push(b, Op::Binary(BinaryOp::Add, origin, place), I64));
            let inside = inside(b, own, batch.len() as u32, &index);
            let left = self.side.chain.code(b, self.param, None, |_, i| elements[&i]);
            let pad = zero(b, dtype);
            push(b, Op::Select(inside, left.program.unwrap_or(pad), pad), scalar(dtype))
        });
        let inputs = tiles.into_iter().map(|(_, tile)| tile).collect();
        b.push_into(Op::TileMap { inputs, position, elements, body }, results, AT);
    }

    /// Goes on with an element that the program writes.
    fn store(&self, b: &mut Builder, index: &[Value], value: Value) {
        let chain = &self.side.chain;
        let value = rounded(b, self.dtype(b), value);
        let left = chain.code(b, self.param, Some(value), |b, i| self.read(b, i, index));
        for (i, value) in chain.writes().into_iter().filter_map(|i| Some((i, left.memory[i]?))) {
            let (operand, index) = (self.memory(b, i).0, index.to_vec());
            b.push(Op::Store { operand, index, value, scatter: false }, &[], AT);
        }
    }

    /// Goes on with a tile that the program writes.
    fn tile_store(&self, b: &mut Builder, batch: &[Value], origin: [Value; 2], value: Value) {
        let (chain, dtype, ty) = (&self.side.chain, self.dtype(b), b.ty(value));
        let value = match compute_dtype(dtype) == dtype {
            true => value,
            false => push(b, Op::TileRound(dtype, value), ty),
        };
        let mut tiles = self.tiles(b, ty, batch, origin, false);
        tiles.push((chain.operands.len(), value));
        for i in chain.writes().into_iter().filter(|i| chain.is_written(*i)) {
            let (operand, result) = self.memory(b, i);
            let position = [b.value(I64, AT), b.value(I64, AT)];
            let (elements, body) = self.over(b, &tiles, |b, elements| {
                let program = elements[&chain.operands.len()];
                let left = chain.code(b, self.param, Some(program), |_, i| elements[&i]);
                left.memory[i].unwrap_or(program)
            });
            let inputs = tiles.iter().map(|(_, tile)| *tile).collect();
            let ty = match ty {
                Type::Tile(_, rows, columns) => Type::Tile(compute_dtype(result), rows, columns),
                Type::Scalar(_) | Type::Var(_) | Type::TileVar(..) => ty,
            };
            let value = push(b, Op::TileMap { inputs, position, elements, body }, ty);
            b.push(Op::TileStore { operand, batch: batch.to_vec(), origin, value }, &[], AT);
        }
    }

    /// Tiles of the operands that are read, of the shape of a tile of the program's operand.
    fn tiles(
        &self,
        b: &mut Builder,
        ty: Type,
        batch: &[Value],
        origin: [Value; 2],
        transpose: bool,
    ) -> Vec<(usize, Value)> {
        let Type::Tile(_, rows, columns) = ty else { return Vec::new() };
        let load = |i: usize| {
            let (operand, dtype) = self.memory(b, i);
            let op = Op::TileLoad { operand, batch: batch.to_vec(), origin, transpose };
            (i, push(b, op, Type::Tile(compute_dtype(dtype), rows, columns)))
        };
        self.side.chain.reads().into_iter().map(load).collect()
    }

    /// The elements of tiles by their number, in order, and a block over them.
    fn over(
        &self,
        b: &mut Builder,
        tiles: &[(usize, Value)],
        body: impl FnOnce(&mut Builder, &HashMap<usize, Value>) -> Value,
    ) -> (Vec<Value>, Block) {
        let element = |&(i, tile): &(usize, Value)| match b.ty(tile) {
            Type::Tile(dtype, ..) | Type::TileVar(dtype, ..) | Type::Scalar(dtype) | Type::Var(dtype) => {
                (i, b.value(Type::Scalar(dtype), AT))
            }
        };
        let elements: Vec<(usize, Value)> = tiles.iter().map(element).collect();
        b.open_block();
        let result = body(b, &elements.iter().copied().collect());
        let body = b.close_block(vec![result]);
        (elements.into_iter().map(|(_, element)| element).collect(), body)
    }
}
