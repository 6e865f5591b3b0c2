//! Decoders: eager and in graphs, and over a cache.

use max::driver::{self, DeviceRef};
use max::dtype::DType;
use max::engine::{InferenceSession, Input, Model};
use max::functional as f;
use max::graph::{Graph, TensorType, Type, Value};
use max::nn::kv_cache::{
    KvCacheParams, PagedKvCacheInputs, PagedKvCacheManager, PagedKvCacheMemory, PagedKvCacheValues,
};
use max::nn::rope::{LongRoPEScalingParams, RotaryFrequencies};
use max::nn::transformer::{
    AttentionWithRope, ExpertGroups, GroupScore, MoE, ReturnLogits, ScoringFunc, Step, Transformer, TransformerBlock,
};
use max::nn::{self, Activation, Embedding, Forward, Linear, Mlp, ModuleExt, RmsNorm};
use max::tensor::Tensor;

type Outcome = Result<(), max::Error>;

fn near(a: &[f32], b: &[f32]) {
    let largest = b.iter().fold(1e-3f32, |largest, x| largest.max(x.abs()));
    let difference = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(a.len() == b.len() && difference < 1e-5 * largest, "{difference} of {largest}");
}

#[test]
fn experts_are_the_same_in_both_worlds() -> Outcome {
    for (experts, per_token, normed) in [(4, 2, true), (3, 1, false), (2, 2, true)] {
        let all = (0..experts).map(|_| Mlp::new(8, 12, Activation::Silu)).collect::<Result<_, _>>()?;
        let mut layer = MoE::new(Linear::new(8, experts)?, all, per_token, "layer_0")?;
        layer.norm_topk_prob = normed;
        let model = layer.compile(&TensorType::new(DType::F32, ("n", 8), DeviceRef::CPU))?;
        for rows in [0usize, 1, 7] {
            let x = max::random::normal([rows, 8], 0.0, 1.0)?;
            let in_graph = model.execute(&x.driver_tensor()?)?[0].to_vec::<f32>()?;
            near(&in_graph, &layer.forward(&x)?.to_vec::<f32>()?);
        }
        // The same weights behind each other, through one kernel.
        let mut stacked = layer.clone();
        assert!(stacked.stack_experts()? && stacked.experts.is_empty());
        let model = stacked.compile(&TensorType::new(DType::F32, ("n", 8), DeviceRef::CPU))?;
        for rows in [0usize, 1, 7, 40] {
            let x = max::random::normal([rows, 8], 0.0, 1.0)?;
            let expected = layer.forward(&x)?.to_vec::<f32>()?;
            near(&model.execute(&x.driver_tensor()?)?[0].to_vec::<f32>()?, &expected);
            near(&stacked.forward(&x)?.to_vec::<f32>()?, &expected);
        }
    }
    let odd = vec![Mlp::new(8, 8, Activation::Silu)?, Mlp::new(8, 9, Activation::Silu)?];
    assert!(!MoE::new(Linear::new(8, 2)?, odd, 1, "odd")?.stack_experts()?);
    let error = MoE::new(Linear::new(8, 1)?, vec![Mlp::new(8, 8, Activation::Silu)?], 2, "x").err().unwrap();
    assert!(error.to_string().contains("from 1 to the number of experts, 1"), "{error}");
    Ok(())
}

/// What a mixture of experts gives by its definition, each number in `f64`.
fn mixed(layer: &MoE, x: &[f32], hidden: usize) -> max::Result<Vec<f32>> {
    let count = layer.experts.len();
    let gate = layer.gate.weight.to_vec::<f32>()?;
    let bias = layer.e_score_correction_bias.as_ref().map_or(Ok(vec![0.0; count]), |bias| bias.to_vec::<f32>())?;
    let made: Vec<Vec<f32>> = layer
        .experts
        .iter()
        .map(|expert| expert.forward(&Tensor::from_slice(x, [x.len() / hidden, hidden])?)?.to_vec::<f32>())
        .collect::<max::Result<_>>()?;
    let mut results = Vec::new();
    for (token, row) in x.chunks(hidden).enumerate() {
        let dot = |of: &[f32]| of.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let mut scores: Vec<f64> = gate.chunks(hidden).map(dot).collect();
        match layer.scoring_func {
            ScoringFunc::Sigmoid => scores.iter_mut().for_each(|score| *score = 1.0 / (1.0 + (-*score).exp())),
            ScoringFunc::Softmax => {
                let sum: f64 = scores.iter().map(|score| score.exp()).sum();
                scores.iter_mut().for_each(|score| *score = score.exp() / sum);
            }
        }
        let by = |expert: usize| scores[expert] + f64::from(bias[expert]);
        let mut eligible: Vec<usize> = (0..count).collect();
        if let Some(ExpertGroups { n_group, topk_group, score }) = layer.groups {
            let size = count / n_group;
            let of_group = |group: usize| {
                let mut own: Vec<f64> = (group * size..(group + 1) * size).map(by).collect();
                own.sort_by(|a, b| b.total_cmp(a));
                own[..if score == GroupScore::Largest { 1 } else { 2 }].iter().sum::<f64>()
            };
            let mut groups: Vec<usize> = (0..n_group).collect();
            groups.sort_by(|a, b| of_group(*b).total_cmp(&of_group(*a)));
            eligible.retain(|expert| groups[..topk_group].contains(&(expert / size)));
        }
        eligible.sort_by(|a, b| by(*b).total_cmp(&by(*a)));
        let chosen = &eligible[..layer.num_experts_per_token];
        let sum: f64 = if layer.norm_topk_prob { chosen.iter().map(|expert| scores[*expert]).sum() } else { 1.0 };
        results.extend((0..hidden).map(|i| {
            let terms = chosen.iter().map(|expert| scores[*expert] * f64::from(made[*expert][token * hidden + i]));
            (terms.sum::<f64>() / sum * layer.routed_scaling_factor) as f32
        }));
    }
    Ok(results)
}

#[test]
fn experts_are_chosen_as_defined() -> Outcome {
    let of = |n_group, topk_group, score| Some(ExpertGroups { n_group, topk_group, score });
    for (scoring_func, biased, groups, norm_topk_prob, routed_scaling_factor) in [
        (ScoringFunc::Softmax, false, None, true, 1.0),
        (ScoringFunc::Softmax, false, of(3, 2, GroupScore::Largest), false, 16.0),
        (ScoringFunc::Sigmoid, false, None, true, 1.0),
        (ScoringFunc::Sigmoid, true, of(4, 2, GroupScore::TwoLargest), true, 2.5),
        (ScoringFunc::Sigmoid, true, of(1, 1, GroupScore::TwoLargest), false, 1.0),
    ] {
        let experts = (0..12).map(|_| Mlp::new(8, 6, Activation::Silu)).collect::<Result<_, _>>()?;
        let mut layer = MoE::new(Linear::new(8, 12)?.without_bias(), experts, 3, "layer_0")?;
        layer.gate.weight = max::random::normal([12, 8], 0.0, 0.7)?;
        layer.e_score_correction_bias = biased.then(|| max::random::normal([12], 0.0, 0.5)).transpose()?;
        (layer.scoring_func, layer.groups) = (scoring_func, groups);
        (layer.norm_topk_prob, layer.routed_scaling_factor) = (norm_topk_prob, routed_scaling_factor);
        let ty = TensorType::new(DType::F32, ("n", 8), DeviceRef::CPU);
        let mut stacked = layer.clone();
        assert!(stacked.stack_experts()?);
        let (model, stacked) = (layer.compile(&ty)?, stacked.compile(&ty)?);
        for rows in [0usize, 1, 50] {
            let x = max::random::normal([rows, 8], 0.0, 1.0)?;
            let expected = mixed(&layer, &x.to_vec::<f32>()?, 8)?;
            near(&layer.forward(&x)?.to_vec::<f32>()?, &expected);
            for model in [&model, &stacked] {
                near(&model.execute(&x.driver_tensor()?)?[0].to_vec::<f32>()?, &expected);
            }
        }
        for groups in [of(5, 2, GroupScore::Largest), of(12, 6, GroupScore::TwoLargest), of(6, 1, GroupScore::Largest)]
        {
            layer.groups = groups;
            let error = layer.forward(&Tensor::ones([1, 8])?).map(drop).unwrap_err().to_string();
            assert!(error.contains("12 experts") && error.contains("3 experts or more"), "{error}");
        }
    }
    Ok(())
}

#[test]
fn experts_are_chosen_by_what_is_not_rounded() -> Outcome {
    // Rounded to bf16, both scores are 1, and the first of equal scores is chosen.
    let x = Tensor::constant([[1.0f32, 1.001]])?;
    let gate = Linear::of(Tensor::constant([[1.0f32, 0.0], [0.0, 1.0]])?);
    let expert = |scale: f32| -> max::Result<Mlp> {
        let mut mlp = Mlp::new(2, 2, Activation::Relu)?;
        for layer in [&mut mlp.gate_proj, &mut mlp.up_proj, &mut mlp.down_proj] {
            layer.weight = f::cast(Tensor::constant([[scale, 0.0], [0.0, scale]])?, DType::BF16)?;
        }
        Ok(mlp)
    };
    let mut layer = MoE::new(gate, vec![expert(1.0)?, expert(2.0)?], 1, "layer_0")?;
    for stacked in [false, true] {
        assert!(!stacked || layer.stack_experts()?);
        assert_eq!(layer.forward_rounded(&x, DType::BF16)?.to_vec::<f32>()?, [8.0, 8.0]);
        let rounded = layer.forward(&f::cast(&x, DType::BF16)?)?;
        assert_eq!(f::cast(rounded, DType::F32)?.to_vec::<f32>()?, [1.0, 1.0]);
    }
    Ok(())
}

#[test]
fn layers_of_halves_add_up_in_float32() -> Outcome {
    for (dtype, tolerance) in [(DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        let mut model = max::tensor::default_dtype(dtype, decoder)?;
        assert_eq!(model.kv_params()[0].dtype, dtype);
        // Beyond what float16 has.
        model.embedding_multiplier = 1e6;
        let halves = eager(&model, &[3, 1, 4, 1, 5, 9])?;
        model.cast(DType::F32)?;
        let singles = eager(&model, &[3, 1, 4, 1, 5, 9])?;
        let largest = singles.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        for (half, single) in halves.iter().zip(&singles) {
            assert!((half - single).abs() <= tolerance * largest, "{dtype}: {half} for {single}, of {largest}");
        }
    }
    Ok(())
}

/// A decoder of two layers, one of which sees a window, with embeddings that switch at a length of 6.
fn decoder() -> max::Result<Transformer> {
    let scaling = LongRoPEScalingParams {
        short_factor: vec![1.0, 1.5],
        long_factor: vec![2.0, 3.0],
        original_max_position: 6,
        max_position_embeddings: 24,
    };
    let rope = vec![RotaryFrequencies::new(4, 100.0)?, RotaryFrequencies::long(4, 100.0, &scaling)?];
    let block = |i: usize| {
        let mut attention = AttentionWithRope::new(8, 4, 2, 4)?;
        attention.q_norm = Some(RmsNorm::new(4)?);
        let mlp = Box::new(Mlp::new(8, 16, Activation::Silu)?);
        let mut block = TransformerBlock::new(attention, mlp, RmsNorm::new(8)?, RmsNorm::new(8)?);
        block.rope = i;
        block.sliding_window = (i == 0).then_some(3);
        Ok(block)
    };
    let layers = (0..2).map(block).collect::<max::Result<_>>()?;
    Ok(Transformer::new(Embedding::new(16, 8)?, layers, RmsNorm::new(8)?, None, rope))
}

/// The logits of a whole sequence, eager.
fn eager(model: &Transformer, tokens: &[i64]) -> Result<Vec<f32>, max::Error> {
    let positions: Vec<i64> = (0..tokens.len() as i64).collect();
    let step = Step {
        tokens: Tensor::from_slice(tokens, [tokens.len()])?,
        positions: Tensor::from_slice(&positions, [tokens.len()])?,
        rows: None,
        cache: None,
    };
    Ok(model.logits(&step)?.to_vec::<f32>()?)
}

/// A graph of steps over a paged cache, whose logits are those of `model`.
fn compiled(model: &Transformer, layers: &[KvCacheParams]) -> Result<Model, max::Error> {
    let mut types: Vec<Type> = vec![TensorType::new(DType::I64, ("tokens",), DeviceRef::CPU).into(); 2];
    types.extend(PagedKvCacheValues::input_types(layers, DeviceRef::CPU));
    let graph = Graph::new("step", types);
    let inputs = graph.inputs();
    let step = Step {
        tokens: inputs[0].tensor()?.into(),
        positions: inputs[1].tensor()?.into(),
        rows: None,
        cache: Some(PagedKvCacheValues::new(&inputs[2..])?),
    };
    let logits: Value = (&model.logits(&step)?).into();
    graph.output(logits)?;
    Ok(InferenceSession::new().load(&graph)?)
}

#[test]
fn sequences_over_one_cache_are_each_alone() -> Outcome {
    let model = decoder()?;
    let layers: Vec<KvCacheParams> =
        model.kv_params().into_iter().map(|params| KvCacheParams { page_size: 4, ..params }).collect();
    let compiled = compiled(&model, &layers)?;
    let texts: [Vec<i64>; 3] = [vec![3, 1, 4, 1, 5, 9, 2, 6, 5], vec![2, 7, 1, 8], vec![3, 1, 4, 1, 5, 3]];
    let mut manager = PagedKvCacheManager::new(16, 4, false);
    let mut memory = PagedKvCacheMemory::new(&layers)?;
    (0..3).for_each(|name| manager.claim(name).unwrap());
    // The first sequence is long from its first step on; the second grows by two steps, and then has nothing new; the last one
    // comes later, when the others take a token each.
    let steps = [[0..7, 0..3, 0..0], [7..8, 3..4, 0..4], [8..9, 4..4, 4..5], [9..9, 4..4, 5..6]];
    for parts in steps {
        let (mut tokens, mut positions, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (name, (text, part)) in (0..).zip(texts.iter().zip(&parts)) {
            tokens.extend_from_slice(&text[part.clone()]);
            positions.extend(part.clone().map(|position| position as i64));
            expected.extend_from_slice(&eager(&model, &text[..part.end])?[part.start * 16..]);
            assert_eq!(manager.reserve(name, part.end).unwrap(), []);
        }
        memory.grow(manager.touched_blocks(), manager.total_blocks())?;
        let (table, columns) = manager.lookup_table(&[0, 1, 2]).unwrap();
        let sequences: Vec<(usize, usize)> = parts.iter().map(|part| (part.start, part.len())).collect();
        let paging = PagedKvCacheInputs::new(&sequences, table, columns)?;
        let shared = [tokens, positions].map(|ids| driver::Tensor::from_slice(&ids, [ids.len()]).unwrap());
        let mut inputs: Vec<Input<'_>> = shared.iter().chain(paging.tensors()).map(Input::from).collect();
        inputs.extend(memory.tensors_mut().iter_mut().map(Input::from));
        near(&compiled.execute(inputs)?[0].to_vec::<f32>()?, &expected);
        for (name, part) in (0..).zip(parts) {
            manager.step(name, &vec![0; part.end]).unwrap();
        }
    }
    // Blocks in use have memory, and the cache is larger.
    assert!((manager.touched_blocks()..=16).contains(&memory.blocks()));
    assert_eq!(memory.num_bytes(), memory.blocks() * PagedKvCacheManager::bytes_per_block(&layers));
    Ok(())
}

#[test]
fn outputs_are_of_the_tokens_that_are_asked_for() -> Outcome {
    let model = decoder()?;
    let layers: Vec<KvCacheParams> =
        model.kv_params().into_iter().map(|params| KvCacheParams { page_size: 4, ..params }).collect();
    let texts: [Vec<i64>; 2] = [vec![3, 1, 4, 1, 5], vec![2, 7]];
    let all = [eager(&model, &texts[0])?, eager(&model, &texts[1])?].concat();
    let rows = |rows: &[usize]| rows.iter().flat_map(|row| all[row * 16..][..16].to_vec()).collect::<Vec<f32>>();
    for (return_logits, wanted, offsets) in [
        (ReturnLogits::LastToken, None, None),
        (ReturnLogits::Variable(2), Some(rows(&[3, 4, 5, 6])), Some([0i64, 2, 4])),
        (ReturnLogits::All, Some(all.clone()), Some([0, 5, 7])),
    ] {
        let mut types: Vec<Type> = vec![TensorType::new(DType::I64, ("tokens",), DeviceRef::CPU).into(); 2];
        types.extend(PagedKvCacheValues::input_types(&layers, DeviceRef::CPU));
        let graph = Graph::new("outputs", types);
        let inputs = graph.inputs();
        let step = Step {
            tokens: inputs[0].tensor()?.into(),
            positions: inputs[1].tensor()?.into(),
            rows: None,
            cache: Some(PagedKvCacheValues::new(&inputs[2..])?),
        };
        let outputs = model.outputs(&step, return_logits)?;
        let results = [&outputs.next_token_logits, &outputs.hidden_states].into_iter();
        let results = results.chain(&outputs.logits).chain(&outputs.logit_offsets);
        graph.output(results.map(Value::from).collect::<Vec<_>>())?;
        let mut manager = PagedKvCacheManager::new(16, 4, false);
        let mut memory = PagedKvCacheMemory::new(&layers)?;
        for (name, text) in (0..).zip(&texts) {
            manager.claim(name).unwrap();
            manager.reserve(name, text.len()).unwrap();
        }
        memory.grow(manager.touched_blocks(), manager.total_blocks())?;
        let (table, columns) = manager.lookup_table(&[0, 1]).unwrap();
        let paging = PagedKvCacheInputs::new(&[(0, 5), (0, 2)], table, columns)?;
        let shared = [texts.concat(), vec![0, 1, 2, 3, 4, 0, 1]].map(|x| driver::Tensor::from_slice(&x, [7]).unwrap());
        let mut inputs: Vec<Input<'_>> = shared.iter().chain(paging.tensors()).map(Input::from).collect();
        inputs.extend(memory.tensors_mut().iter_mut().map(Input::from));
        let found = InferenceSession::new().load(&graph)?.execute(inputs)?;
        near(&found[0].to_vec::<f32>()?, &rows(&[4, 6]));
        assert_eq!(found[1].shape(), [7, 8]);
        assert_eq!(found.len(), if wanted.is_some() { 4 } else { 2 });
        if let (Some(wanted), Some(offsets)) = (wanted, offsets) {
            near(&found[2].to_vec::<f32>()?, &wanted);
            assert_eq!(found[3].to_vec::<i64>()?, offsets);
        }
    }
    // Without a cache all tokens are one sequence, and hidden states make the logits.
    let step = Step {
        tokens: Tensor::from_slice(&texts[0], [5])?,
        positions: Tensor::from_slice(&[0i64, 1, 2, 3, 4], [5])?,
        rows: None,
        cache: None,
    };
    let outputs = model.outputs(&step, ReturnLogits::Variable(3))?;
    near(&outputs.next_token_logits.to_vec::<f32>()?, &rows(&[4]));
    near(&outputs.logits.expect("logits").to_vec::<f32>()?, &rows(&[2, 3, 4]));
    assert_eq!(outputs.logit_offsets.expect("offsets").to_vec::<i64>()?, [0, 3]);
    let normed = model.norm.forward(&outputs.hidden_states)?;
    near(&f::matmul(normed, f::transpose(&model.embed_tokens.weight, 0, 1)?)?.to_vec::<f32>()?, &all[..80]);
    for count in [0, usize::MAX] {
        let error = model.outputs(&step, ReturnLogits::Variable(count)).err().unwrap().to_string();
        assert!(error.contains("return_logits") && error.contains(&format!("{count} tokens")), "{error}");
    }
    Ok(())
}

#[test]
fn sections_of_pairs_are_rotated_by_positions_of_their_own() -> Outcome {
    let plain = RotaryFrequencies::new(12, 100.0)?;
    let rope = plain.clone().mrope_section(&[1, 2, 3])?;
    let positions = [[4i64, 0, 7, 1], [2, 2, 5, 0], [9, 1, 1, 3]];
    let found = rope.angles(&Tensor::constant(positions)?, 4)?;
    let found = found.tables().map(|table| table.to_vec::<f32>());
    for (i, found) in found.into_iter().enumerate() {
        let found = found?;
        let of = positions.map(|row| plain.angles(&Tensor::constant(row)?, 4)?.tables()[i].to_vec::<f32>());
        for (section, (of, pairs)) in of.into_iter().zip([0..1, 1..3, 3..6]).enumerate() {
            let of = of?;
            for token in 0..4 {
                let at = token * 6 + pairs.start..token * 6 + pairs.end;
                assert_eq!(found[at.clone()], of[at], "{section}, {token}");
            }
        }
    }
    for (error, text) in [
        (plain.clone().mrope_section(&[1, 2, 2]).err(), "6 pairs together"),
        (plain.clone().mrope_section(&[0, 6]).err(), "above 0"),
        (plain.clone().mrope_section(&[usize::MAX, 7]).err(), "6 pairs together"),
        (rope.angles(&Tensor::constant([1i64, 2])?, 2).err(), "[3, n]"),
        (plain.angles(&Tensor::constant(positions)?, 4).err(), "[n]"),
    ] {
        let error = error.unwrap().to_string();
        assert!(error.contains(text) && error.contains("tests/nn/transformer.rs:"), "{text}: {error}");
    }
    Ok(())
}

#[test]
fn angles_depend_on_the_length_where_they_should() -> Outcome {
    let positions = Tensor::from_slice(&[0i64, 3, 5], [3])?;
    let x = max::random::normal([3, 2, 6], 0.0, 1.0)?;
    let dynamic = RotaryFrequencies::dynamic(4, 10000.0, 2.0, 8)?;
    let turned = |rope: &RotaryFrequencies, length: i64| -> Result<Vec<f32>, max::Error> {
        Ok(rope.angles(&positions, length)?.apply(&x)?.to_vec::<f32>()?)
    };
    let plain = turned(&RotaryFrequencies::new(4, 10000.0)?, 99)?;
    near(&turned(&dynamic, 8)?, &plain);
    // The base grows by (2 · 16 / 8 - 1)² for heads of 4.
    near(&turned(&dynamic, 16)?, &turned(&RotaryFrequencies::new(4, 90000.0)?, 0)?);
    // What is behind the rotated part stays.
    let before = x.to_vec::<f32>()?;
    assert!(before.chunks(6).zip(plain.chunks(6)).all(|(a, b)| a[4..] == b[4..]));
    // In a graph, where the length is a dim.
    let ty = TensorType::new(DType::I64, ("n",), DeviceRef::CPU);
    let all: Vec<i64> = (0..16).collect();
    let model = nn::compile("angles", &ty, |inputs| {
        let length = inputs[0].shape().num_elements();
        let ones = Tensor::ones([1, 1, 4])?;
        let wide = f::mul(f::cast(f::unsqueeze(f::unsqueeze(&inputs[0], 1)?, 1)?, DType::F32)? * 0.0 + 1.0, ones)?;
        dynamic.angles(&inputs[0], length)?.apply(&wide)
    })?;
    let found = model.execute(&driver::Tensor::from_slice(&all, [16])?)?[0].to_vec::<f32>()?;
    let whole = dynamic.angles(&Tensor::from_slice(&all, [16])?, 16)?.apply(&Tensor::ones([16, 1, 4])?)?;
    near(&found, &whole.to_vec::<f32>()?);
    Ok(())
}
