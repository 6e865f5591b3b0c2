//! What one computation costs as statements that are each computed, in a region, and as a graph: a chain of elementwise ops, and a
//! block of a transformer. `benches/peers/eager.py` runs it beside PyTorch.

use std::hint::black_box;
use std::time::Instant;

use max_nn::dtype::DType;
use max_nn::functional::{self as F, functional};
use max_nn::graph::TensorType;
use max_nn::nn::{self, Activation, Forward, Mlp, MultiHeadAttention, RmsNorm, RotaryEmbedding};
use max_nn::tensor::Tensor;
use max_nn::{Error, Result, random};

/// An op of the chain.
type Op<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

/// Something to be measured, with its name.
type Work<'a> = (&'a str, &'a dyn Fn() -> Result<(), Error>);

/// Twenty ops; `after` is called with the result of each.
fn chain(x: &Tensor, after: &dyn Fn(&Tensor) -> Result<()>) -> Result<Tensor> {
    let mut y = x.clone();
    for _ in 0..2 {
        let ops: [Op<'_>; 10] = [
            &|y| F::mul(y, 1.01),
            &|y| F::add(y, 0.5),
            &|y| F::relu(y),
            &|y| F::sub(y, 0.25),
            &|y| F::abs(y),
            &|y| F::mul(y, 0.5),
            &|y| F::negate(y),
            &|y| F::maximum(y, -3.0),
            &|y| F::add(y, x),
            &|y| F::minimum(y, 3.0),
        ];
        for op in ops {
            y = op(&y)?;
            after(&y)?;
        }
    }
    Ok(y)
}

/// For what is only measured.
fn dropped<T>(result: T) {
    drop(black_box(result));
}

/// The least and the median time in microseconds of each of these, which take turns.
fn measure(works: &[Work<'_>], rounds: usize) -> Result<(), Error> {
    let mut times = vec![Vec::new(); works.len()];
    for _ in 0..rounds {
        for ((_, work), times) in works.iter().zip(&mut times) {
            let start = Instant::now();
            work()?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    for ((name, _), times) in works.iter().zip(&mut times) {
        // What is packed and compiled in the first turns is not counted.
        let mut times = times.split_off(2.min(rounds - 1));
        times.sort_by(f64::total_cmp);
        println!("{name} {:.0} {:.0}", times[0], times[times.len() / 2]);
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    max_kernels::link();
    let x = random::normal([4096, 4096], 0.0, 1.0)?;
    let input = x.driver_tensor()?;
    let one = nn::compile("add", [x.ty()], |x| F::add(&x[0], 0.5))?;
    let all = nn::compile("chain", [x.ty()], |x| chain(&x[0], &|_| Ok(())))?;
    let each = |y: &Tensor| y.realize();
    measure(
        &[
            ("one_op", &|| Ok(one.execute(&input).map(dropped)?)),
            ("graph", &|| Ok(all.execute(&input).map(dropped)?)),
            ("region", &|| Ok(functional(|| chain(&x, &|_| Ok(()))).map(dropped)?)),
            ("statements", &|| Ok(chain(&x, &each).map(dropped)?)),
        ],
        12,
    )?;

    const HIDDEN: usize = 256;
    let mut attention = MultiHeadAttention::new(HIDDEN, 8, 4)?;
    attention.rope = Some(RotaryEmbedding::new(attention.head_dim, 10000.0, 512)?.interleaved(false));
    attention.causal = true;
    let mlp = Mlp::new(HIDDEN, 4 * HIDDEN, Activation::Silu)?;
    let norms = [RmsNorm::new(HIDDEN)?, RmsNorm::new(HIDDEN)?];
    let block = |x: &Tensor| -> Result<Tensor> {
        let x = F::add(x, attention.call(&norms[0].call(x)?)?)?;
        F::add(&x, mlp.call(&norms[1].call(&x)?)?)
    };
    let x = random::normal([1, 512, HIDDEN], 0.0, 1.0)?;
    let input = x.driver_tensor()?;
    let ty = TensorType::new(DType::F32, (1, "tokens", HIDDEN), x.device());
    let model = nn::compile("block", [ty], |x| block(&x[0]))?;
    measure(
        &[
            ("block_graph", &|| Ok(model.execute(&input).map(dropped)?)),
            ("block_region", &|| Ok(functional(|| block(&x)).map(dropped)?)),
            ("block_eager", &|| Ok(block(&x)?.realize()?)),
        ],
        40,
    )
}
