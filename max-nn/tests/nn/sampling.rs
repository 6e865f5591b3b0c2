//! Ops of sampling, in both worlds.

use max::driver::{self, DeviceRef};
use max::dtype::DType;
use max::engine::{InferenceSession, Input};
use max::functional as F;
use max::graph::{BufferType, BufferValue, Graph, TensorType, Type};
use max::nn::kernels::{
    Penalties, SamplingOptions, apply_penalties_to_logits, scatter_set_constant, topk_fused_sampling,
    update_frequency_data,
};
use max::tensor::Tensor;

type Outcome = Result<(), max::Error>;

/// How often each of `tokens` is drawn from the same logits under as many seeds.
fn shares(logits: &[f32], top_k: i64, options: &SamplingOptions) -> Result<Vec<f64>, max::Error> {
    const DRAWS: usize = 40_000;
    let x = F::broadcast_to(Tensor::from_slice(logits, [1, logits.len()])?, [DRAWS, logits.len()])?;
    let seeds: Vec<i64> = (0..DRAWS as i64).map(|i| i * 7 - 5000).collect();
    let options = SamplingOptions { seed: Tensor::from_slice(&seeds, [DRAWS])?.into(), ..options.clone() };
    let tokens = topk_fused_sampling(&x, top_k, &options)?.to_vec::<i64>()?;
    let count = |token: usize| tokens.iter().filter(|drawn| **drawn == token as i64).count() as f64 / DRAWS as f64;
    Ok((0..logits.len()).map(count).collect())
}

#[track_caller]
fn close(found: &[f64], expected: &[f64]) {
    for (found, share) in found.iter().zip(expected) {
        let deviation = (share * (1.0 - share) / 40_000.0).sqrt();
        assert!((found - share).abs() <= 4.5 * deviation, "{found} of {expected:?}");
    }
}

#[test]
fn tokens_are_drawn_by_their_shares() -> Outcome {
    let logits = [0.0, 2f32.ln(), 5f32.ln()];
    let all = SamplingOptions::default();
    close(&shares(&logits, -1, &all)?, &[0.125, 0.25, 0.625]);
    let cold = SamplingOptions { temperature: 0.5f32.into(), ..all.clone() };
    close(&shares(&logits, -1, &cold)?, &[1.0 / 30.0, 4.0 / 30.0, 25.0 / 30.0]);
    close(&shares(&logits, 2, &all)?, &[0.0, 2.0 / 7.0, 5.0 / 7.0]);
    close(&shares(&logits, 1, &all)?, &[0.0, 0.0, 1.0]);
    close(&shares(&logits, -1, &SamplingOptions { top_p: 0.6f32.into(), ..all.clone() })?, &[0.0, 0.0, 1.0]);
    close(
        &shares(&logits, -1, &SamplingOptions { top_p: 0.7f32.into(), ..all.clone() })?,
        &[0.0, 2.0 / 7.0, 5.0 / 7.0],
    );
    close(&shares(&logits, 0, &SamplingOptions { min_p: 0.3f32.into(), ..all.clone() })?, &[0.0, 2.0 / 7.0, 5.0 / 7.0]);
    // Of the two likeliest, one is enough.
    close(&shares(&logits, 2, &SamplingOptions { top_p: 0.65f32.into(), ..all })?, &[0.0, 0.0, 1.0]);
    Ok(())
}

/// A row among others has the token that it has alone, and greedy rows beside drawn ones the first of the largest.
#[test]
fn a_row_has_its_token_whatever_is_beside_it() -> Outcome {
    let (rows, vocab) = (13, 700);
    let logit = |i: usize| ((i * 7919 + 17) % 1009) as f32 / 150.0;
    let data: Vec<f32> = (0..rows * vocab).map(logit).collect();
    let top_k: Vec<i64> = (0..rows).map(|row| [-1, 50, 1][row % 3]).collect();
    let heat: Vec<f32> = (0..rows).map(|row| [1.0, 0.8, 0.0, 1.5][row % 4]).collect();
    let top_p: Vec<f32> = (0..rows).map(|row| [1.0, 0.9][row % 2]).collect();
    let seeds: Vec<i64> = (0..rows as i64).map(|row| row - 3).collect();
    let draw = |rows: std::ops::Range<usize>| {
        let count = rows.len();
        let logits = Tensor::from_slice(&data[rows.start * vocab..rows.end * vocab], [count, vocab])?;
        let options = SamplingOptions {
            temperature: Tensor::from_slice(&heat[rows.clone()], [count])?.into(),
            top_p: Tensor::from_slice(&top_p[rows.clone()], [count])?.into(),
            seed: Tensor::from_slice(&seeds[rows.clone()], [count])?.into(),
            ..SamplingOptions::default()
        };
        topk_fused_sampling(&logits, Tensor::from_slice(&top_k[rows], [count])?, &options)?.to_vec::<i64>()
    };
    let together = draw(0..rows)?;
    let alone = (0..rows).map(|row| Ok(draw(row..row + 1)?[0])).collect::<Result<Vec<i64>, max::Error>>()?;
    assert_eq!(together, alone);
    assert_eq!(together, draw(0..rows)?);
    for row in (0..rows).filter(|row| row % 3 == 2 || row % 4 == 2) {
        let logits = &data[row * vocab..][..vocab];
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(together[row], logits.iter().position(|v| *v == largest).unwrap() as i64);
    }
    Ok(())
}

#[test]
fn symbolic_rows_and_numbers_for_all_of_them() -> Outcome {
    let ty = TensorType::new(DType::BF16, ("rows", "vocabulary"), DeviceRef::CPU);
    let seed = TensorType::new(DType::U64, (), DeviceRef::CPU);
    let graph = Graph::build("sampler", [ty, seed], |_, inputs| {
        let options =
            SamplingOptions { seed: inputs[1].tensor()?.into(), top_p: 0.95.into(), ..SamplingOptions::default() };
        topk_fused_sampling(&inputs[0].tensor()?.into(), 5, &options)
    })?;
    let model = InferenceSession::new().load(&graph)?;
    let logits: Vec<f32> = (0..3 * 40).map(|i| (i * 31 % 40) as f32 / 4.0).collect();
    let logits = Tensor::from_slice(&logits, [3, 40])?;
    for seed in [0u64, 5, u64::MAX] {
        let narrow = logits.cast(DType::BF16)?.driver_tensor()?;
        let tokens = model.execute((&narrow, &driver::Tensor::scalar(seed)?))?[0].to_vec::<i64>()?;
        let options = SamplingOptions { seed: (seed as i64).into(), top_p: 0.95.into(), ..SamplingOptions::default() };
        assert_eq!(tokens, topk_fused_sampling(&logits, 5, &options)?.to_vec::<i64>()?);
    }
    let no = model.execute((
        &Tensor::from_slice(&[f32::NAN, 0.0, f32::INFINITY, 1.0], [2, 2])?.cast(DType::BF16)?.driver_tensor()?,
        &driver::Tensor::scalar(1u64)?,
    ))?;
    assert_eq!(no[0].to_vec::<i64>()?, [-1, -1]);
    Ok(())
}

/// What a graph makes of a buffer.
fn changed<T: max::dtype::Element>(
    data: &mut driver::Tensor,
    build: impl Fn(&BufferValue) -> Result<(), max::Error>,
) -> Result<Vec<T>, max::Error> {
    let dims: max::graph::Shape = data.shape().iter().map(|dim| max::graph::Dim::from(*dim)).collect();
    let graph = Graph::new("changed", [Type::from(BufferType::new(data.dtype(), dims, DeviceRef::CPU))]);
    build(graph.inputs()[0].buffer()?)?;
    graph.output(Vec::<max::graph::Value>::new())?;
    InferenceSession::new().load(&graph)?.execute([Input::from(&mut *data)])?;
    Ok(data.to_vec::<T>()?)
}

/// An eager tensor in the graph of a buffer.
fn beside(buffer: &BufferValue, x: Tensor) -> Result<Tensor, max::Error> {
    let graph = buffer.load()?.graph();
    Ok(max::graph::ops::constant(&graph, x.driver_tensor()?, x.dtype(), x.device())?.into())
}

#[test]
fn penalties_lower_what_came_before() -> Outcome {
    let mut logits = driver::Tensor::from_slice(&[4.0f32, -1.0, 3.0, 0.5, 4.0, -1.0, 3.0, 0.5], [2, 4])?;
    let found = changed::<f32>(&mut logits, |buffer| {
        // The second row has a token of its prompt, and an entry that is free.
        let data = beside(buffer, Tensor::constant([[0i32, 2], [1, 1], [2, 0], [-1, 0]])?)?;
        let offsets = beside(buffer, Tensor::constant([0u32, 2, 4])?)?;
        let penalties = Penalties {
            frequency_penalty: beside(buffer, Tensor::constant([0.5f32, 9.0])?)?.into(),
            presence_penalty: 0.25.into(),
            repetition_penalty: 2.into(),
        };
        Ok(apply_penalties_to_logits(buffer, &data, &offsets, &penalties)?)
    })?;
    assert_eq!(found, [4.0 / 2.0 - 1.25, -2.0 - 0.75, 3.0, 0.5, 4.0, -1.0, 1.5, 0.5]);
    Ok(())
}

#[test]
fn tokens_are_counted_where_there_is_room() -> Outcome {
    let mut data = driver::Tensor::from_slice(&[5i32, 1, -1, 0, 7, 2, 8, 1, 3, 1], [5, 2])?;
    for (tokens, want) in [
        ([5i64, 8, 3], [5i32, 2, -1, 0, 7, 2, 8, 2, 3, 2]),
        ([6, 9, -1], [5, 2, 6, 1, 7, 2, 8, 2, 3, 2]),
        ([4, 7, 3], [5, 2, 6, 1, 7, 3, 8, 2, 3, 3]),
    ] {
        let found = changed::<i32>(&mut data, |buffer| {
            let offsets = beside(buffer, Tensor::constant([0u32, 2, 4, 5])?)?;
            Ok(update_frequency_data(buffer, &offsets, &beside(buffer, Tensor::from_slice(&tokens, [3, 1])?)?)?)
        })?;
        assert_eq!(found, want);
    }
    Ok(())
}

#[test]
fn constants_are_written_where_indices_say() -> Outcome {
    let mut logits = driver::Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    let found = changed::<f32>(&mut logits, |buffer| {
        let indices = beside(buffer, Tensor::constant([[0i64, 1], [-1, -2], [0, 9]])?)?;
        Ok(scatter_set_constant(buffer, &indices, f64::NEG_INFINITY)?)
    })?;
    assert_eq!(found, [1.0, f32::NEG_INFINITY, f32::NEG_INFINITY, 4.0]);
    // Of other ranks, and numbers that a float would round.
    let mut cube = driver::Tensor::from_slice(&[0i64; 8], [2, 2, 2])?;
    let found = changed::<i64>(&mut cube, |buffer| {
        let indices = beside(buffer, Tensor::constant([[0i32, 1, 0], [1, 1, 1]])?)?;
        Ok(scatter_set_constant(buffer, &indices, i64::MAX)?)
    })?;
    assert_eq!(found, [0, 0, i64::MAX, 0, 0, 0, 0, i64::MAX]);
    Ok(())
}

#[test]
fn mistakes_name_the_op_the_types_and_the_line() -> Outcome {
    let logits = Tensor::ones([2, 8])?;
    let options = SamplingOptions::default();
    let three = SamplingOptions { top_p: Tensor::ones([3])?.into(), ..options.clone() };
    let (line, error) = (line!(), topk_fused_sampling(&logits, 4, &three).map(drop).unwrap_err().to_string());
    for part in ["`topk_fused_sampling`", "top_p", "float32[3]", "[2]", "sampling.rs", &format!(":{line}")] {
        assert!(error.contains(part), "{part} in {error}");
    }
    for (error, parts) in [
        (topk_fused_sampling(&logits, 0.5, &options).map(drop).unwrap_err(), ["top_k", "0.5", "integers"]),
        (
            topk_fused_sampling(&logits.cast(DType::I32)?, 4, &options).map(drop).unwrap_err(),
            ["logits", "int32[2, 8]", "float"],
        ),
        (
            topk_fused_sampling(&Tensor::ones([8])?, 4, &options).map(drop).unwrap_err(),
            ["logits", "float32[8]", "[rows"],
        ),
    ] {
        let error = error.to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?} in {error}");
    }
    let mut buffer = driver::Tensor::from_slice(&[0.0f32; 4], [2, 2])?;
    let error = changed::<f32>(&mut buffer, |buffer| {
        Ok(scatter_set_constant(buffer, &beside(buffer, Tensor::constant([[0i64], [1]])?)?, 0.0)?)
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("`scatter_set_constant`") && error.contains("[count, 2]"), "{error}");
    let error = changed::<f32>(&mut buffer, |buffer| {
        let data = beside(buffer, Tensor::constant([[0i32, 1]])?)?;
        Ok(apply_penalties_to_logits(
            buffer,
            &data,
            &beside(buffer, Tensor::constant([0u32, 1])?)?,
            &Penalties::default(),
        )?)
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("frequency_offsets") && error.contains("uint32, [3]"), "{error}");
    Ok(())
}
