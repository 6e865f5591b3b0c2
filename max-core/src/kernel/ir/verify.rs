//! Checks that a kernel follows the rules of the IR. All violations are reported, not only the first.
//!
//! The rules, one [`Fault`] each:
//!
//! **Header.** Operand names and parameter names differ from each other. An elementwise kernel has no grid and operands
//! of rank 0; a program kernel has one to three grid axes, which name dims that are there or are constant. The elements
//! are one for each `In` and `InOut` operand, of its compute dtype.
//!
//! **Values.** Each value is defined once, and used only after that, in the block of its definition or in blocks nested
//! there. A variable is assigned in the same lane code (or in program code) that declares it.
//!
//! **Place.** Operations on lanes and tiles stand in program code, never in lane code. An elementwise kernel has no
//! program ids, dims, loads, stores and atomics. The `combine` of a fold or scan, which runs an unspecified number of
//! times, does not store.
//!
//! **Types.** Values hold compute dtypes. Every operand, result, block parameter and yield has the type that its
//! operation demands, and there are as many as it demands. Constants fit their dtype.
//!
//! **Memory.** Operands, dims, parameters and grid axes named by index exist. An index has one coordinate for each
//! dimension. Stores and atomics are to `Out` and `InOut` operands; of an `Out` operand a program loads what it stored.
//!
//! **Tiles.** No dimension is 0. The shapes of `dot`, of the inputs of `tile_map` (up to broadcasting), of casts and of
//! reductions agree with those of their results.

mod types;

use std::fmt::{self, Display, Formatter};

use super::text::access_name;
use super::{Block, Inst, Kernel, Loc, Op, Type, Value};
use crate::dtype::DType;
use crate::kernel::abi::{Access, GridAxis, GridOp, KernelKind, misshapen};

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entity {
    /// The kernel's header.
    Header,
    /// The instruction of that number, counted from 0 in the order of the text form.
    Inst(u32),
    /// The values that the kernel's body yields.
    Yields,
}

impl Display for Entity {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Entity::Header => f.write_str("header"),
            Entity::Inst(i) => write!(f, "inst{i}"),
            Entity::Yields => f.write_str("yields"),
        }
    }
}

/// One violation of a rule.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: kernel `{kernel}`, {entity}: {fault}{}", self.shown())]
#[non_exhaustive]
pub struct VerifyError {
    /// The kernel's name.
    pub kernel: String,
    /// The source file, or `?`.
    pub file: String,
    /// The line there; 0 where unknown.
    pub line: u32,
    /// What the error is about.
    pub entity: Entity,
    /// The first line of the instruction in text form; empty for the header and the yields.
    pub inst: String,
    /// What is wrong.
    pub fault: Fault,
}

impl VerifyError {
    fn shown(&self) -> String {
        if self.inst.is_empty() { String::new() } else { format!("\n    {}", self.inst) }
    }
}

/// All violations in one kernel, in the order of the text form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyErrors(pub Vec<VerifyError>);

impl Display for VerifyErrors {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for VerifyErrors {}

/// What a rule of the IR has against a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Two operands or two parameters have one name.
    #[error("the name `{name}` is taken twice: names of operands, and those of parameters, differ")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// The header does not go with the kernel's kind.
    #[error("{what}")]
    Header {
        /// What the kind of kernel demands.
        what: &'static str,
    },
    /// A value outside [`Kernel::values`].
    #[error("{value} is not one of the kernel's values")]
    UnknownValue {
        /// The value.
        value: Value,
    },
    /// A value with two definitions.
    #[error("{value} is defined a second time")]
    Redefined {
        /// The value.
        value: Value,
    },
    /// A value used where it is not visible.
    #[error("{value} is not visible here: it is defined later, in a block that has ended, or nowhere")]
    NotVisible {
        /// The value.
        value: Value,
    },
    /// A variable of program code, or of other lane code, is assigned in lane code.
    #[error("the variable {variable} is assigned in lane code that does not declare it: use a fold instead")]
    AssignedInLanes {
        /// The variable.
        variable: Value,
    },
    /// An operation of program code in lane code.
    #[error("this operation stands in program code only, not in lane code")]
    ProgramOpInLanes,
    /// An operation that elementwise kernels do not have.
    #[error("an elementwise kernel does not see programs, dims or memory: it maps elements to elements")]
    NotElementwise,
    /// A store where code runs an unspecified number of times.
    #[error("`combine` does not store: it runs an unspecified number of times")]
    StoreInCombine,
    /// A value of a dtype that exists in memory only.
    #[error("{value} has dtype {}, which is for memory only: values are bool, integers, f32 or f64", dtype.short_name())]
    NotComputeDType {
        /// The value.
        value: Value,
        /// Its dtype.
        dtype: DType,
    },
    /// A value of the wrong type.
    #[error("{value} is {found}, but {expected} is needed here")]
    WrongType {
        /// The value.
        value: Value,
        /// What would be right.
        expected: String,
        /// Its type.
        found: Type,
    },
    /// A wrong number of values.
    #[error("{expected} {what} needed here, but there are {found}")]
    WrongCount {
        /// What is counted.
        what: &'static str,
        /// How many there should be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A constant with bits that its dtype does not have.
    #[error("the bits {bits:#x} do not fit dtype {}", dtype.short_name())]
    ConstantTooWide {
        /// The bits.
        bits: u64,
        /// The dtype.
        dtype: DType,
    },
    /// A dtype that is not for rounding to.
    #[error("rounding is to 16- and 8-bit floats, not to {}", dtype.short_name())]
    RoundDType {
        /// The dtype.
        dtype: DType,
    },
    /// Something named by an index that is not there.
    #[error("there is no {what} {index}: the kernel has {count}")]
    NoSuch {
        /// What is named.
        what: &'static str,
        /// Its index.
        index: u32,
        /// How many there are.
        count: usize,
    },
    /// A load from a result, or a store to an input.
    #[error("`{operand}` is an `{}` operand, which cannot be {verb}", access_name(*access))]
    WrongAccess {
        /// The operand's name.
        operand: String,
        /// What it is for.
        access: Access,
        /// What was tried.
        verb: &'static str,
    },
    /// An operation on an operand whose dtype does not have it.
    #[error("dtype {} of `{operand}` has no atomic {op}", dtype.short_name())]
    NoSuchAtomic {
        /// The operand's name.
        operand: String,
        /// Its dtype.
        dtype: DType,
        /// The operation.
        op: &'static str,
    },
    /// A tile operation on an operand with fewer than two dims.
    #[error("a tile is two-dimensional, but `{operand}` has rank {rank}")]
    TileRank {
        /// The operand's name.
        operand: String,
        /// Its rank.
        rank: u32,
    },
    /// A tile without elements.
    #[error("{value} is {found}: no dimension of a tile is 0")]
    EmptyTile {
        /// The value.
        value: Value,
        /// Its type.
        found: Type,
    },
}

/// Checks a kernel against all rules at the head of this file.
///
/// # Errors
/// All violations.
pub fn verify(kernel: &Kernel) -> Result<(), VerifyErrors> {
    let mut verifier = Verifier {
        kernel,
        scopes: vec![Scope::Undefined; kernel.values.len()],
        region: PROGRAM,
        regions: PROGRAM,
        in_combine: false,
        visible: Vec::new(),
        next_inst: 0,
        at: At { entity: Entity::Header, inst: None },
        errors: Vec::new(),
    };
    verifier.kernel();
    if verifier.errors.is_empty() { Ok(()) } else { Err(VerifyErrors(verifier.errors)) }
}

/// The dtype that an operand's elements have in the kernel's code.
pub fn compute_dtype(memory: DType) -> DType {
    match memory {
        DType::F16 | DType::BF16 => DType::F32,
        DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => DType::F32,
        DType::Bool | DType::F32 | DType::F64 => memory,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => memory,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => memory,
    }
}

/// The number of the program code among the regions of code.
const PROGRAM: u32 = 0;

/// Where a value can be used.
#[derive(Clone, Copy, PartialEq)]
enum Scope {
    Undefined,
    /// Visible; with the region of code (program code, or the lane code of that number) that defines it.
    Visible(u32),
    Ended,
}

/// What is being checked.
#[derive(Clone, Copy)]
struct At<'a> {
    entity: Entity,
    inst: Option<&'a Inst>,
}

struct Verifier<'a> {
    kernel: &'a Kernel,
    /// Of each value.
    scopes: Vec<Scope>,
    /// Program code, or the number of the lane code, that is being checked.
    region: u32,
    /// The highest number given to lane code.
    regions: u32,
    in_combine: bool,
    /// The values visible now, in the order of their definition.
    visible: Vec<Value>,
    next_inst: u32,
    at: At<'a>,
    errors: Vec<VerifyError>,
}

impl<'a> Verifier<'a> {
    fn fault(&mut self, fault: Fault) {
        let loc = self.at.inst.map_or(Loc::default(), |inst| inst.loc);
        self.errors.push(VerifyError {
            kernel: self.kernel.name.clone(),
            file: self.kernel.files.get(loc.file as usize).cloned().unwrap_or_else(|| "?".to_owned()),
            line: loc.line,
            entity: self.at.entity,
            inst: self.at.inst.map_or(String::new(), |inst| self.kernel.inst_text(inst)),
            fault,
        });
    }

    fn ty(&self, value: Value) -> Option<Type> {
        self.kernel.values.get(value.0 as usize).map(|def| def.ty)
    }

    fn kernel(&mut self) {
        let kernel = self.kernel;
        self.header();
        let wanted = |out: bool| {
            let picked = move |access| match access {
                Access::In => !out,
                Access::Out => out,
                Access::InOut => true,
            };
            let of = kernel.operands.iter().filter(move |o| picked(o.access));
            of.map(|o| Type::Scalar(compute_dtype(o.dtype))).collect::<Vec<_>>()
        };
        let (elements, yields) = match kernel.kind {
            KernelKind::Elementwise => {
                self.region = self.new_region();
                (wanted(false), wanted(true))
            }
            KernelKind::Program => (vec![], vec![]),
        };
        kernel.elements.iter().for_each(|&v| self.define(v));
        self.expect_all("elements", &kernel.elements, &elements);
        self.insts(&kernel.body);
        self.at = At { entity: Entity::Yields, inst: None };
        self.uses(&kernel.body.yields);
        self.expect_all("yields", &kernel.body.yields, &yields);
    }

    fn header(&mut self) {
        let kernel = self.kernel;
        let operands: Vec<&str> = kernel.operands.iter().map(|o| o.name.as_str()).collect();
        let params: Vec<&str> = kernel.params.iter().map(|p| p.name.as_str()).collect();
        for names in [operands, params] {
            for (i, name) in names.iter().enumerate() {
                if names[..i].contains(name) {
                    self.fault(Fault::DuplicateName { name: (*name).to_owned() });
                }
            }
        }
        let mut demand = |holds: bool, what| {
            if !holds {
                self.fault(Fault::Header { what });
            }
        };
        match kernel.kind {
            KernelKind::Elementwise => {
                demand(kernel.grid.is_empty(), "an elementwise kernel has no grid");
                let ranks = kernel.operands.iter().all(|o| o.rank == 0);
                demand(ranks, "operands of an elementwise kernel have no rank of their own");
            }
            KernelKind::Program => {
                demand((1..=3).contains(&kernel.grid.len()), "a program kernel has one to three grid axes");
            }
        }
        for term in &kernel.grid_terms {
            let params = kernel.params.len();
            match term.op {
                GridOp::Dim => self.axis(term.index, u32::try_from(term.value).unwrap_or(u32::MAX)),
                GridOp::Param if term.index as usize >= params => {
                    self.fault(Fault::Header { what: "a grid's parameter is one of the kernel" });
                }
                GridOp::Param if kernel.params[term.index as usize].ty.dtype() != DType::I64 => {
                    self.fault(Fault::Header { what: "a grid's parameter is an integer" });
                }
                GridOp::Tile => self.fault(Fault::Header { what: "tile constants of a grid are numbers" }),
                GridOp::Param | GridOp::Number | GridOp::Add | GridOp::Sub => {}
                GridOp::Mul | GridOp::Div | GridOp::Min | GridOp::Max => {}
            }
        }
        for axis in &kernel.grid {
            if axis.operand == GridAxis::EXPRESSION
                && let Some(what) = axis.terms(&kernel.grid_terms).map_or(Some("its terms are there"), misshapen)
            {
                self.fault(Fault::Header { what });
            }
            if let Ok(operand) = u32::try_from(axis.operand) {
                self.axis(operand, axis.dim);
                if axis.size == 0 {
                    self.fault(Fault::Header { what: "a grid axis is not divided by 0" });
                }
            }
        }
    }

    /// A region of lane code with a number of its own.
    fn new_region(&mut self) -> u32 {
        self.regions += 1;
        self.regions
    }

    fn define(&mut self, value: Value) {
        let Some(scope) = self.scopes.get_mut(value.0 as usize) else {
            return self.fault(Fault::UnknownValue { value });
        };
        if *scope != Scope::Undefined {
            return self.fault(Fault::Redefined { value });
        }
        *scope = Scope::Visible(self.region);
        self.visible.push(value);
        let Some(ty) = self.ty(value) else { return };
        let (dtype, shape) = match ty {
            Type::Scalar(d) | Type::Var(d) => (d, (1, 1)),
            Type::Tile(d, r, c) | Type::TileVar(d, r, c) => (d, (r, c)),
        };
        if compute_dtype(dtype) != dtype {
            self.fault(Fault::NotComputeDType { value, dtype });
        }
        if shape.0 == 0 || shape.1 == 0 {
            self.fault(Fault::EmptyTile { value, found: ty });
        }
    }

    fn uses(&mut self, values: &[Value]) {
        for &value in values {
            match self.scopes.get(value.0 as usize) {
                None => self.fault(Fault::UnknownValue { value }),
                Some(Scope::Visible(_)) => {}
                Some(Scope::Undefined | Scope::Ended) => self.fault(Fault::NotVisible { value }),
            }
        }
    }

    /// The instructions of a block; what they define stays visible.
    fn insts(&mut self, block: &'a Block) {
        for inst in &block.insts {
            self.at = At { entity: Entity::Inst(self.next_inst), inst: Some(inst) };
            self.next_inst += 1;
            let at = self.at;
            self.uses(&inst.op.uses());
            self.place(&inst.op);
            self.types(inst);
            self.blocks(inst);
            self.at = at;
            inst.results.iter().for_each(|&v| self.define(v));
        }
    }

    /// The blocks inside an instruction, and what they yield.
    fn blocks(&mut self, inst: &'a Inst) {
        let at = self.at;
        let lane_code = matches!(inst.op, Op::Lanes { .. } | Op::Fold { .. } | Op::Scan { .. } | Op::TileMap { .. });
        let yields = self.block_yields(inst);
        let outer = (self.region, self.in_combine);
        for (i, (block, params)) in inst.op.blocks().into_iter().enumerate() {
            if lane_code {
                self.region = self.new_region();
                self.in_combine = i == 1;
            }
            let first = self.visible.len();
            // A scan's index is a parameter of two of its blocks.
            if let (Op::Scan { index, .. }, 2) = (&inst.op, i) {
                self.scopes.get_mut(index.0 as usize).into_iter().for_each(|s| *s = Scope::Undefined);
            }
            params.iter().for_each(|&v| self.define(v));
            self.insts(block);
            self.at = at;
            self.uses(&block.yields);
            if let Some(types) = yields.get(i) {
                self.expect_all("yields", &block.yields, types);
            }
            for value in self.visible.drain(first..) {
                self.scopes[value.0 as usize] = Scope::Ended;
            }
            (self.region, self.in_combine) = outer;
        }
    }

    /// Whether an instruction may stand here at all.
    fn place(&mut self, op: &Op) {
        let in_lanes = self.region != PROGRAM;
        let elementwise = self.kernel.kind == KernelKind::Elementwise;
        match op {
            Op::Lanes { .. } | Op::Fold { .. } | Op::Scan { .. } | Op::TileMap { .. } if in_lanes => {
                self.fault(Fault::ProgramOpInLanes);
            }
            Op::TileFull(_)
            | Op::TileLoad { .. }
            | Op::TileStore { .. }
            | Op::TileReduce(..)
            | Op::TileElement(..)
            | Op::Dot(..)
            | Op::TileCast(_)
            | Op::TileRound(..)
                if in_lanes =>
            {
                self.fault(Fault::ProgramOpInLanes);
            }
            Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } | Op::Load { .. } if elementwise => {
                self.fault(Fault::NotElementwise);
            }
            Op::Store { .. } | Op::Atomic { .. } => {
                if elementwise {
                    self.fault(Fault::NotElementwise);
                }
                if self.in_combine {
                    self.fault(Fault::StoreInCombine);
                }
            }
            Op::Set(variable, _) => {
                let declared = self.scopes.get(variable.0 as usize).copied();
                if let Some(Scope::Visible(region)) = declared
                    && region != self.region
                {
                    self.fault(Fault::AssignedInLanes { variable: *variable });
                }
            }
            Op::Get(a) | Op::Var(a) => {
                // A tile in lane code would be an operation on tiles there.
                if in_lanes && matches!(self.ty(*a), Some(Type::Tile(..) | Type::TileVar(..))) {
                    self.fault(Fault::ProgramOpInLanes);
                }
            }
            Op::Lanes { .. } | Op::Fold { .. } | Op::Scan { .. } | Op::TileMap { .. } => {}
            Op::TileFull(_) | Op::TileLoad { .. } | Op::TileStore { .. } | Op::TileReduce(..) | Op::Dot(..) => {}
            Op::TileElement(..) | Op::TileCast(_) | Op::TileRound(..) => {}
            Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } | Op::Load { .. } => {}
            Op::Const(_) | Op::Param(_) | Op::Unary(..) | Op::Binary(..) | Op::Cmp(..) | Op::Select(..) => {}
            Op::Fma(..) | Op::Cast(_) | Op::Bitcast(_) | Op::Round(..) => {}
            Op::FromBits(..) | Op::ToBits(..) | Op::Print { .. } => {}
            Op::If { .. } | Op::While { .. } | Op::For { .. } => {}
        }
    }
}
