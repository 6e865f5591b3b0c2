//! Eager tensors and modules on a simulated GPU, which is this process's only one.

extern crate max_nn as max;

#[path = "../support/golden.rs"]
mod golden;

use std::sync::Once;

use max::driver::{self, Device, DeviceRef, replace_cuda_driver};
use max::dtype::DType;
use max::engine::{InferenceSession, Input};
use max::functional::{self as F, functional};
use max::graph::{Graph, TensorType, Type, Value};
use max::nn::kernels::{
    KeysOrValues, RaggedAttentionOptions, SamplingOptions, flash_attention_ragged, kv_cache_ragged_store,
    topk_fused_sampling,
};
use max::nn::kv_cache::{
    KvCacheParams, PagedKvCacheInputs, PagedKvCacheManager, PagedKvCacheMemory, PagedKvCacheValues,
};
use max::nn::{Forward, Linear, ModuleExt};
use max::random;
use max::tensor::{Tensor, default_device, default_dtype, defaults};

use golden::{Arguments, FUNCTIONS, apply, cases, difference};

const GPU: DeviceRef = DeviceRef::gpu(0);

fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        max_kernels::link();
        cuda_sim::devices(&[80]);
        // SAFETY: each function is checked against the driver's interface where it is defined, and does what it promises.
        unsafe { replace_cuda_driver(cuda_sim::find) }.expect("nobody has asked for a GPU before");
    });
}

/// The table of functions says so.
#[test]
fn functions_compute_on_gpus_what_they_do_on_the_host() -> Result<(), max::Error> {
    start();
    let (mut failed, mut passed) = (Vec::new(), 0);
    let cases = cases();
    for name in FUNCTIONS.split_whitespace() {
        // The smallest case, since each element is simulated.
        let of_name = cases.iter().filter(|case| case.json["op"] == name);
        let Some(case) = of_name.min_by_key(|case| case.inputs.iter().map(|x| x.num_elements()).sum::<usize>()) else {
            continue;
        };
        let x = case.inputs.iter().map(|x| Tensor::from(x).to(GPU)).collect::<max::Result<Vec<Tensor>>>()?;
        let results = apply(name, &Arguments(&case.json["params"], GPU), &x).and_then(|results| {
            let results = results.unwrap_or_default();
            assert!(results.iter().all(|y| y.device() == GPU), "{name}");
            results.iter().map(|y| y.to(DeviceRef::CPU)?.driver_tensor()).collect::<max::Result<Vec<_>>>()
        });
        let tolerance = |key: &str| case.json[key].as_f64().expect("a tolerance");
        match results {
            Err(error) => failed.push(format!("{name}: {error}")),
            Ok(results) => {
                let far = |(got, want)| difference(got, want, tolerance("rtol"), tolerance("atol"));
                passed += 1;
                failed.extend(results.iter().zip(&case.wanted).find_map(far).map(|far| format!("{name}: {far}")));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(passed > 80, "{passed}");
    Ok(())
}

#[test]
fn tensors_move_and_are_made_there() -> Result<(), max::Error> {
    start();
    let x = Tensor::from(max::driver::Tensor::from_slice(&[1.0f32, -2.0, 3.0], [3])?);
    let there = x.to(GPU)?;
    assert_eq!((there.device(), there.driver_tensor()?.device().into()), (GPU, GPU));
    let y = functional(|| F::relu(&there * 2.0 + 0.5))?;
    assert_eq!((y.device(), y.to_vec::<f32>()?), (GPU, vec![2.5, 0.0, 6.5]));
    assert_eq!(
        y.to(DeviceRef::CPU)?.to_string(),
        Tensor::from(y.driver_tensor()?.to(&max::driver::Device::cpu())?).to_string()
    );
    assert!(y.to_string().contains("float32[3] on gpu:0") && y.to_string().contains("6.5"), "{y}");
    // Two devices meet only by a transfer.
    let error = F::add(&x, &there).map(drop).unwrap_err().to_string();
    assert!(error.contains("`add`") && error.contains("transfer_to"), "{error}");
    let mut changed = there.clone();
    changed.store_slice((1..,), 9.0)?;
    assert_eq!((changed.to_vec::<f32>()?, there.to_vec::<f32>()?), (vec![1.0, 9.0, 9.0], vec![1.0, -2.0, 3.0]));

    // With a GPU, that is where new tensors are, as `bfloat16`; unless something else is said.
    assert_eq!(defaults(None, None), (DType::BF16, GPU));
    assert_eq!(defaults(Some(DType::F16), None), (DType::F16, GPU));
    assert_eq!(Tensor::ones([2])?.ty(), &TensorType::new(DType::BF16, (2,), GPU));
    default_device(DeviceRef::CPU, || {
        assert_eq!(defaults(None, None), (DType::F32, DeviceRef::CPU));
        default_dtype(DType::F64, || assert_eq!(defaults(None, None), (DType::F64, DeviceRef::CPU)));
        default_device(GPU, || assert_eq!(defaults(None, None), (DType::BF16, GPU)));
        assert_eq!(defaults(None, Some(GPU)), (DType::BF16, GPU));
    });
    // Scopes end with panics as well.
    let scope = std::panic::catch_unwind(|| default_dtype(DType::I8, || -> () { panic!("inside") }));
    assert!(scope.is_err());
    assert_eq!(defaults(None, None), (DType::BF16, GPU));
    Ok(())
}

#[test]
fn random_numbers_and_modules_are_those_of_the_host() -> Result<(), max::Error> {
    start();
    let draw = |device| random::uniform_like(TensorType::new(DType::F32, (64,), device), -1.0..1.0)?.to_vec::<f32>();
    // Another test may draw in between.
    let same = (0..20).any(|_| {
        let draws = [DeviceRef::CPU, GPU].map(|device| {
            random::set_seed(3);
            draw(device).unwrap_or_default()
        });
        draws[0] == draws[1] && draws[0].len() == 64
    });
    assert!(same);
    let mut layer = default_device(DeviceRef::CPU, || Linear::new(4, 3))?;
    let x = Tensor::from(max::driver::Tensor::from_slice(&[0.5f32, -1.0, 2.0, 1.0], [1, 4])?);
    let want = layer.forward(&x)?.to_vec::<f32>()?;
    layer.to(GPU)?;
    assert!(layer.state_dict().iter().all(|(_, tensor)| tensor.device() == GPU));
    let got = layer.forward(&x.to(GPU)?)?;
    assert_eq!(got.device(), GPU);
    assert!(got.to_vec::<f32>()?.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-5), "{got} for {want:?}");
    let model = layer.compile(&TensorType::new(DType::F32, ("rows", 4), GPU))?;
    let compiled = Tensor::from(&model.execute(&x.to(GPU)?.driver_tensor()?)?[0]);
    assert_eq!((compiled.device(), compiled.to_vec::<f32>()?), (GPU, got.to_vec::<f32>()?));
    layer.to(DeviceRef::CPU)?;
    assert_eq!(layer.forward(&x)?.to_vec::<f32>()?, want);
    Ok(())
}

/// The attention of tokens that a paged cache on the GPU does not have, behind those that it has.
#[test]
fn blocks_of_a_cache_go_to_the_host_and_come_back() -> Result<(), max::Error> {
    start();
    let gpu = Device::accelerator(0)?;
    let layer = KvCacheParams { page_size: 4, ..KvCacheParams::new(DType::F32, 2, 8) };
    let mut types: Vec<Type> = vec![TensorType::new(DType::F32, ("tokens", 2, 8), GPU).into(); 3];
    types.extend(PagedKvCacheValues::input_types(&[layer], GPU));
    let graph = Graph::new("attention", types);
    let inputs = graph.inputs();
    let cache = PagedKvCacheValues::new(&inputs[3..])?;
    let [q, k, v] = [0, 1, 2].map(|i| inputs[i].tensor().map(Tensor::from));
    kv_cache_ragged_store(&cache, 0, KeysOrValues::Keys, &k?)?;
    kv_cache_ragged_store(&cache, 0, KeysOrValues::Values, &v?)?;
    let y: Value = (&flash_attention_ragged(&cache, 0, &q?, RaggedAttentionOptions::default())?).into();
    graph.output(y)?;
    let model = InferenceSession::with_devices([gpu]).load(&graph)?;
    let mut manager = PagedKvCacheManager::new(3, 4, true).host_blocks(2);
    let mut memory = PagedKvCacheMemory::on(&[layer], &gpu)?;
    // Queries, keys and values of a token are numbers of it and its place.
    let mut attend = |name: u64, text: &[u32]| -> Result<(usize, Vec<f32>), max::Error> {
        manager.claim(name).unwrap();
        let cached = manager.reuse(name, text).unwrap();
        let transfers = manager.reserve(name, text.len()).unwrap();
        memory.grow(manager.touched_blocks(), manager.total_blocks())?;
        memory.grow_host(manager.touched_host_blocks(), 2)?;
        memory.transfer(&transfers)?;
        let (table, columns) = manager.lookup_table(&[name]).unwrap();
        let paging = PagedKvCacheInputs::new(&[(cached, text.len() - cached)], table, columns)?;
        let number = |part: usize, at: usize, i: usize| ((text[at] as usize * 31 + at * 7 + part * 5 + i) % 13) as f32;
        let new = [0, 1, 2].map(|part| {
            let numbers = (cached..text.len()).flat_map(|at| (0..16).map(move |i| number(part, at, i) / 7.0 - 1.0));
            driver::Tensor::from_vec(numbers.collect(), [text.len() - cached, 2, 8])
        });
        let mut tensors = new.into_iter().collect::<Result<Vec<_>, _>>()?;
        tensors.extend_from_slice(paging.tensors());
        let tensors = tensors.iter().map(|tensor| tensor.to(&gpu)).collect::<Result<Vec<_>, _>>()?;
        let mut inputs: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
        inputs.extend(memory.tensors_mut().iter_mut().map(Input::from));
        let y = model.execute(inputs)?[0].to(&Device::cpu())?.to_vec::<f32>()?;
        manager.step(name, text).unwrap();
        manager.release(name).unwrap();
        Ok((cached, y[y.len() - 16..].to_vec()))
    };
    let texts: [Vec<u32>; 2] = [1, 2].map(|first| (0..9).map(|i| first + i * first).collect());
    let first = [attend(0, &texts[0])?, attend(1, &texts[1])?];
    assert_eq!((first[0].0, first[1].0), (0, 0));
    // The two blocks that each of them fills come back in turn: the last token sees what it saw.
    for (name, i) in [(2, 0), (3, 1), (4, 0)] {
        let (cached, y) = attend(name, &texts[i])?;
        assert_eq!(cached, 8);
        assert!(y.iter().zip(&first[i].1).all(|(a, b)| (a - b).abs() < 1e-6), "{y:?} for {:?}", first[i].1);
    }
    let metrics = manager.metrics();
    assert_eq!((metrics.swapped_in_blocks, metrics.host_evicted_blocks), (6, 0), "{metrics:?}");
    Ok(())
}

/// Tokens are the same to the last one: nothing is added up whose order would matter.
#[test]
fn rows_have_the_same_tokens_on_both_devices() -> Result<(), max::Error> {
    start();
    let logits: Vec<f32> = (0..4 * 300).map(|i| ((i * 7919 + 17) % 1009) as f32 / 150.0).collect();
    let logits = max::driver::Tensor::from_slice(&logits, [4, 300])?;
    let top_k = max::driver::Tensor::from_slice(&[-1i64, 20, 1, -1], [4])?;
    let top_p = max::driver::Tensor::from_slice(&[1.0f32, 0.9, 1.0, 0.7], [4])?;
    let draw = |device: DeviceRef| {
        let there = |x: &max::driver::Tensor| Tensor::from(x).to(device);
        let options = SamplingOptions { top_p: there(&top_p)?.into(), seed: 42.into(), ..SamplingOptions::default() };
        let tokens = topk_fused_sampling(&there(&logits)?, there(&top_k)?, &options)?;
        assert_eq!(tokens.device(), device);
        tokens.to_vec::<i64>()
    };
    assert_eq!(draw(GPU)?, draw(DeviceRef::CPU)?);
    Ok(())
}

/// Attention of a batch over a cache of random keys and values, on a device: its result, and whether keys are divided there.
fn attention(
    device: DeviceRef,
    [key_heads, group]: [usize; 2],
    sequences: &[(usize, usize)],
) -> Result<(Vec<f32>, bool), max::Error> {
    const PAGE: usize = 4;
    const SIZE: usize = 6;
    let layer = KvCacheParams { page_size: PAGE, ..KvCacheParams::new(DType::F32, key_heads, SIZE) };
    let numbers = |seed: usize, count: usize| -> Vec<f32> {
        (0..count).map(|i| (((i + 1) * (2 * seed + 7919)) % 2003) as f32 / 1001.5 - 1.0).collect()
    };
    let tokens: usize = sequences.iter().map(|(_, new)| new).sum();
    // Each sequence has pages of its own.
    let columns = sequences.iter().map(|(cached, new)| (cached + new).div_ceil(PAGE)).max().unwrap_or(0);
    let table: Vec<u32> = (0..(sequences.len() * columns) as u32).rev().collect();
    let q = numbers(1, tokens * key_heads * group * SIZE);
    let q = max::driver::Tensor::from_vec(q, [tokens, key_heads * group, SIZE])?;
    let [shape, _] = layer.cache_shapes(table.len());
    let memory = |seed| max::driver::Tensor::from_vec(numbers(seed, shape.iter().product()), shape);
    let mut types = vec![TensorType::new(DType::F32, ("tokens", key_heads * group, SIZE), device).into()];
    types.extend(PagedKvCacheValues::input_types(&[layer], device));
    let graph = Graph::new("attention", types);
    let (q_value, cache) = (graph.inputs()[0].tensor()?.clone(), PagedKvCacheValues::new(&graph.inputs()[1..])?);
    let options = RaggedAttentionOptions { scale: Some(0.7), ..RaggedAttentionOptions::default() };
    let y = flash_attention_ragged(&cache, 0, &Tensor::from(q_value), options)?;
    graph.output([Value::from(&y)])?;
    let divides = graph.to_string().contains("flash_attention_ragged_combine");

    let on = if device == GPU { max::driver::Device::accelerator(0)? } else { max::driver::Device::cpu() };
    let paging = PagedKvCacheInputs::new(sequences, table, columns)?;
    let tensors = std::iter::once(&q).chain(paging.tensors()).map(|x| x.to(&on)).collect::<Result<Vec<_>, _>>()?;
    let mut buffers = [memory(3)?.to(&on)?, memory(5)?.to(&on)?];
    let mut inputs: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
    inputs.extend(buffers.iter_mut().map(Input::from));
    let results = InferenceSession::with_devices([on]).load(&graph)?.execute(inputs)?;
    Ok((results[0].to(&max::driver::Device::cpu())?.to_vec()?, divides))
}

/// Heads of keys and queries of each, and of each sequence how many tokens are cached and how many new.
type Batch = ([usize; 2], &'static [(usize, usize)]);

/// Where there are few queries, programs divide their keys; either way the result is the host's.
#[test]
fn attention_divides_the_keys_of_few_queries() -> Result<(), max::Error> {
    start();
    let batches: [Batch; 3] =
        [([2, 3], &[(30, 1), (9, 1), (0, 1)]), ([1, 2], &[(13, 20), (0, 0)]), ([70, 1], &[(5, 1), (0, 2)])];
    for (heads, sequences) in batches {
        let [(want, on_host), (got, on_gpu)] =
            [attention(DeviceRef::CPU, heads, sequences)?, attention(GPU, heads, sequences)?];
        assert!(on_gpu && !on_host);
        let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(got.len() == want.len() && far < 2e-6, "{far}: {heads:?}, {sequences:?}");
    }
    Ok(())
}
