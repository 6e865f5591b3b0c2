//! Random graphs with branches, loops, subgraphs, buffers and sizes that data decide: as they are compiled, with a fence behind
//! every op, read back from their text, and in the reference form, against an interpreter of what they say.

use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::InferenceSession;
use max::graph::{BufferType, BufferValue, Dim, Graph, GraphError, TensorType, TensorValue, Type, ops};

const GRAPHS: u64 = 10_000;

/// Numbers that are the same for a seed, everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % limit as u64) as usize
    }
}

/// What is added to the known values, which are vectors of one size, by their positions.
#[derive(Clone, Debug)]
enum Statement {
    Add(usize, usize),
    Sub(usize, usize),
    Mul(usize, usize),
    /// The sum, in every place.
    Sum(usize),
    /// Each element and those before it.
    Scan(usize),
    /// The last value of one of two blocks, as the sum of one value is greater than that of another.
    Cond(usize, usize, Vec<Statement>, Vec<Statement>),
    /// The last value of a block, which begins with the value, as often as the sum of another, modulo 4, says.
    Loop(usize, usize, Vec<Statement>),
    /// The last value of a block over two values alone.
    Call(usize, usize, Vec<Statement>),
    /// What is added to the buffer, and is in it then.
    Accumulate(usize),
    /// The sum of the positions of what is not zero, and their number, in every place.
    Places(usize),
    /// The value, and how many elements it has.
    Size(usize),
}

use Statement::*;

/// A block over so many known values.
fn block(random: &mut Random, mut known: usize, depth: usize, pure: bool) -> Vec<Statement> {
    let count = 1 + random.below(4);
    let mut statements = Vec::new();
    for _ in 0..count {
        let (a, b) = (random.below(known), random.below(known));
        statements.push(match random.below(if depth > 0 { 15 } else { 10 }) {
            0 | 1 => Add(a, b),
            2 => Sub(a, b),
            3 => Mul(a, b),
            4 => Sum(a),
            5 => Scan(a),
            6 if !pure => Accumulate(a),
            7 => Places(a),
            8 => Size(a),
            10 | 11 => Cond(a, b, block(random, known, depth - 1, pure), block(random, known, depth - 1, pure)),
            12 | 13 => Loop(a, b, block(random, known + 1, depth - 1, pure)),
            14 => Call(a, b, block(random, 2, depth - 1, true)),
            _ => Add(b, a),
        });
        known += 1;
    }
    statements
}

/// What statements say.
fn interpret(statements: &[Statement], known: &[Vec<i64>], buffer: &mut Vec<i64>) -> Vec<i64> {
    let mut known = known.to_vec();
    let sum = |v: &[i64]| v.iter().fold(0_i64, |sum, v| sum.wrapping_add(*v));
    for statement in statements {
        let binary = |a: usize, b: usize, f: fn(i64, i64) -> i64| -> Vec<i64> {
            known[a].iter().zip(&known[b]).map(|(a, b)| f(*a, *b)).collect()
        };
        let size = known[0].len();
        let value = match statement {
            Add(a, b) => binary(*a, *b, i64::wrapping_add),
            Sub(a, b) => binary(*a, *b, i64::wrapping_sub),
            Mul(a, b) => binary(*a, *b, i64::wrapping_mul),
            Sum(a) => vec![sum(&known[*a]); size],
            Scan(a) => (1..=size).map(|end| sum(&known[*a][..end])).collect(),
            Cond(a, b, then, otherwise) => {
                let chosen = if sum(&known[*a]) > sum(&known[*b]) { then } else { otherwise };
                interpret(chosen, &known, buffer)
            }
            Loop(a, b, body) => {
                let mut value = known[*a].clone();
                let rounds = sum(&known[*b]).wrapping_rem(4);
                for _ in 0..rounds.max(0) {
                    let inner = [&known[..], &[value]].concat();
                    value = interpret(body, &inner, buffer);
                }
                value
            }
            Call(a, b, body) => interpret(body, &[known[*a].clone(), known[*b].clone()], buffer),
            Accumulate(a) => {
                buffer.iter_mut().zip(&known[*a]).for_each(|(total, v)| *total = total.wrapping_add(*v));
                buffer.clone()
            }
            Places(a) => {
                let places: Vec<i64> = (0..size as i64).filter(|i| known[*a][*i as usize] != 0).collect();
                vec![sum(&places) + places.len() as i64; size]
            }
            Size(a) => known[*a].iter().map(|v| v.wrapping_add(size as i64)).collect(),
        };
        known.push(value);
    }
    known.pop().unwrap_or_default()
}

type Built = Result<TensorValue, GraphError>;

/// Where statements become ops.
struct Builder<'a> {
    graph: &'a Graph,
    buffer: Option<BufferValue>,
    /// Whether nothing is put together with what comes after it.
    fences: bool,
    names: std::cell::Cell<usize>,
}

impl Builder<'_> {
    fn done(&self, value: TensorValue) -> Built {
        if self.fences { ops::fence(&value)?[0].tensor().cloned() } else { Ok(value) }
    }

    fn sum(&self, value: &TensorValue) -> Built {
        ops::sum(value, 0)
    }

    fn everywhere(&self, value: TensorValue, like: &TensorValue) -> Built {
        ops::broadcast_to(value, like.shape())
    }

    fn build(&self, statements: &[Statement], known: &[TensorValue]) -> Built {
        let mut known = known.to_vec();
        for statement in statements {
            let value = match statement {
                Add(a, b) => ops::add(&known[*a], &known[*b])?,
                Sub(a, b) => ops::sub(&known[*a], &known[*b])?,
                Mul(a, b) => ops::mul(&known[*a], &known[*b])?,
                Sum(a) => self.everywhere(self.sum(&known[*a])?, &known[*a])?,
                Scan(a) => ops::cumsum(&known[*a], 0, false, false)?,
                Cond(a, b, then, otherwise) => {
                    let chosen = ops::greater(self.sum(&known[*a])?, self.sum(&known[*b])?)?;
                    let branch = |statements| self.build(statements, &known);
                    ops::cond(chosen, known[*a].ty(), || branch(then), || branch(otherwise))?.remove(0)
                }
                Loop(a, b, body) => {
                    let rounds = ops::mod_(self.sum(&known[*b])?, 4)?;
                    let zero = ops::sub(&rounds, &rounds)?;
                    let results = ops::while_loop(
                        (zero, &known[*a]),
                        |v| ops::greater(&rounds, &v[0]),
                        |v| {
                            let inner = [&known[..], &v[1..]].concat();
                            Ok((ops::add(&v[0], 1)?, self.build(body, &inner)?))
                        },
                    )?;
                    results[1].clone()
                }
                Call(a, b, body) => {
                    let ty = TensorType::new(DType::I64, ("called",), DeviceRef::CPU);
                    let called = self.graph.add_subgraph("called", [&ty, &ty], |graph, inputs| {
                        let inner = Builder { graph, buffer: None, fences: self.fences, names: self.names.clone() };
                        let values = [inputs[0].tensor()?.clone(), inputs[1].tensor()?.clone()];
                        inner.build(body, &values)
                    })?;
                    ops::call(&called, [&known[*a], &known[*b]], "")?[0].tensor()?.clone()
                }
                Accumulate(a) => {
                    let Some(buffer) = &self.buffer else { return Ok(known.remove(0)) };
                    buffer.store(ops::add(buffer.load()?, &known[*a])?)?;
                    buffer.load()?
                }
                Places(a) => {
                    let name = format!("found{}", self.names.replace(self.names.get() + 1));
                    let places = ops::reshape(ops::nonzero(&known[*a], name.as_str())?, (-1,))?;
                    let total = ops::add(self.sum(&places)?, Dim::from(name))?;
                    self.everywhere(total, &known[*a])?
                }
                Size(a) => ops::add(&known[*a], &known[*a].shape()[0])?,
            };
            known.push(self.done(value)?);
        }
        Ok(known.pop().expect("a value"))
    }
}

fn graph(statements: &[Statement], fences: bool) -> Graph {
    let ty = TensorType::new(DType::I64, ("n",), DeviceRef::CPU);
    let buffer = BufferType::new(DType::I64, ("n",), DeviceRef::CPU);
    Graph::build("random", [Type::Tensor(ty.clone()), ty.into(), buffer.into()], |graph, inputs| {
        let buffer = Some(inputs[2].buffer()?.clone());
        let builder = Builder { graph, buffer, fences, names: std::cell::Cell::new(0) };
        builder.build(statements, &[inputs[0].tensor()?.clone(), inputs[1].tensor()?.clone()])
    })
    .unwrap_or_else(|error| panic!("{error}\n{statements:#?}"))
}

#[test]
fn random_graphs_compute_what_they_say() {
    let (session, reference) = (InferenceSession::new(), InferenceSession::new().reference(true));
    let mut regions = 0;
    for seed in 0..GRAPHS {
        let mut random = Random(seed);
        let statements = block(&mut random, 2, 3, false);
        let size = random.below(6);
        let vector = |random: &mut Random| -> Vec<i64> { (0..size).map(|_| random.below(7) as i64 - 2).collect() };
        let (x, y, start) = (vector(&mut random), vector(&mut random), vector(&mut random));
        let mut expected_buffer = start.clone();
        let expected = interpret(&statements, &[x.clone(), y.clone()], &mut expected_buffer);
        let plain = graph(&statements, false);
        let text = plain.to_string();
        regions += usize::from(text.contains("random."));
        let read = Graph::parse(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        assert_eq!(read.to_string(), text, "seed {seed}");
        let ways =
            [("fused", &session, plain), ("fenced", &session, graph(&statements, true)), ("read", &session, read)];
        let also = (seed % 10 == 0).then(|| ("reference", &reference, graph(&statements, false)));
        for (way, session, graph) in ways.into_iter().chain(also) {
            let fail = |error: &dyn std::fmt::Display| -> ! { panic!("seed {seed}, {way}: {error}\n{graph}") };
            let model = session.load(&graph).unwrap_or_else(|error| fail(&error));
            let tensor = |v: &[i64]| Tensor::from_slice(v, [size]).unwrap();
            let mut buffer = tensor(&start);
            let results = model.execute((&tensor(&x), &tensor(&y), &mut buffer)).unwrap_or_else(|error| fail(&error));
            let (found, left) = (results[0].to_vec::<i64>().unwrap(), buffer.to_vec::<i64>().unwrap());
            assert_eq!((&found, &left), (&expected, &expected_buffer), "seed {seed}, {way}\n{graph}");
        }
    }
    assert!(regions > GRAPHS as usize / 3, "{regions} graphs have regions");
}
