//! What is said of each of many mistakes: `mistakes.txt`, which `MAX_BLESS=1` writes.

use std::path::Path;

use super::*;
use crate::graph::ops::{
    ConvOptions, FoldOptions, GeluApproximation, InterpolationMode, Normalization, PadMode, PoolOptions,
};
use crate::graph::quantization::{QuantizationConfig, QuantizationEncoding::*};
use crate::graph::weights::ShardingStrategy;

/// The calls and their errors, without the place of this file.
macro_rules! mistakes {
    ($($call:expr;)+) => {{
        let mut texts = Vec::new();
        $({
            let call = stringify!($call).split_whitespace().collect::<Vec<_>>().join(" ");
            texts.push(explained(&call, $call.err()));
        })+
        texts
    }};
}

/// A call and what was said of it; a line with `BUG` where that is nothing, or of another line than the caller's.
fn explained(call: &str, error: Option<GraphError>) -> String {
    let Some(error) = error else { return format!("{call}\n    BUG: no error\n") };
    let at = format!(" at {}", error.location());
    let place = if at.contains("tests/mistakes.rs") { "" } else { "BUG: another line: " };
    format!("{call}\n    {place}{}\n", error.to_string().replace(&at, "").replace('\n', "\n    "))
}

#[test]
fn each_mistake_is_explained() {
    let ty = |dtype, shape: &[i64]| TensorType::new(dtype, shape, DeviceRef::CPU);
    let (graph, [x, y, n, ints, flags, gpu, image, filter, bytes, f8, seed, scalar]) = inputs([
        f32_type((2, 3)),
        f32_type((4, 5)),
        f32_type(("n", 3)),
        ty(DType::I32, &[2, 3]),
        ty(DType::Bool, &[2, 3]),
        TensorType::new(DType::F32, (2, 3), DeviceRef::gpu(0)),
        f32_type((1, 8, 8, 4)),
        f32_type((3, 3, 4, 6)),
        ty(DType::U8, &[2, 145]),
        ty(DType::F8E4M3FN, &[2, 64]),
        ty(DType::I64, &[]),
        f32_type(()),
    ]);
    let (_, [foreign]) = inputs([f32_type((2, 3))]);
    let (x, y, n) = (&x, &y, &n);
    let conv = ConvOptions::<2>::default();
    let pool = PoolOptions::default();
    let config =
        QuantizationConfig { quant_method: "gptq".into(), bits: 4, group_size: 128, desc_act: false, sym: true };
    let weight = |shape: &[i64]| Weight::new("w", DType::F32, shape, DeviceRef::CPU);
    let open = Graph::new("open", [f32_type((2,))]);
    let texts = mistakes! {
        ops::add(x, y);
        ops::sub(x, &gpu);
        ops::mul(x, &foreign);
        ops::add(1.0, 2.0);
        ops::add(&ints, x.cast(DType::F16).unwrap());
        ops::logical_and(x, &flags);
        ops::logical_not(&ints);
        ops::pow(&flags, 2);
        ops::div(&flags, &flags);
        ops::exp(&ints);
        ops::rsqrt(&ints);
        ops::gelu(&ints, GeluApproximation::None);
        ops::where_(x, x, x);
        ops::where_(&flags, x, y);
        ops::where_(&flags, 1.0, 2.0);
        ops::matmul(x, y);
        ops::matmul(x, &scalar);
        ops::matmul(&flags, &flags);
        ops::softmax(x, 2);
        ops::softmax(&ints, -1);
        ops::logsoftmax(x, -3);
        ops::cumsum(&flags, 0, false, false);
        ops::sum(x, 5);
        ops::mean(&flags, 0);
        ops::argmax(&scalar, 0);
        ops::layer_norm(x, y, y, 1e-5);
        ops::rms_norm(x, &scalar, 1e-5);
        ops::group_norm(&image, x, x, 3, 1e-5);
        ops::top_k(x, 4, -1);
        ops::bottom_k(x, 1, 2);
        ops::argsort(&scalar, true);
        ops::gather(x, x, 0);
        ops::gather(x, &ints, 2);
        ops::gather_nd(x, &ints, 0);
        ops::scatter(x, y, &ints, 0);
        ops::scatter_nd(x, y, &ints);
        ops::masked_scatter(x, &ints, y);
        ops::reshape(x, (4, 2));
        ops::reshape(x, (-1, -1));
        ops::reshape(x, (4, -1));
        ops::reshape(n, ("m", 3));
        ops::transpose(x, 0, 2);
        ops::permute(x, [0, 0]);
        ops::broadcast_to(x, (4, 3));
        ops::flatten(x, 1, 0);
        ops::squeeze(x, 0);
        ops::unsqueeze(x, 4);
        ops::rebind(x, (2, 4), "");
        ops::rebind(x, (6,), "");
        ops::concat([x, y], 0);
        ops::concat([x, x], 2);
        ops::concat(Vec::<TensorValue>::new(), 0);
        ops::stack([x, y], 0);
        ops::split(x, [1, 1], 1);
        ops::chunk(x, 2, 1);
        ops::slice_tensor(x, [DimSlice::from(0..1), DimSlice::from(0..1), DimSlice::from(0..1)]);
        ops::slice_tensor(x, [DimSlice::Range { start: None, stop: None, step: 0 }]);
        ops::tile(x, (2,));
        ops::repeat_interleave(x, 0, None);
        ops::as_interleaved_complex(x);
        ops::pad(x, [1, 1], PadMode::Edge);
        ops::pad(x, [0, 0, 3, 3], PadMode::Reflect);
        ops::range(&graph, 0, 10, 0, DType::I32, DeviceRef::CPU);
        ops::band_part(&scalar, None, None, false);
        ops::hann_window(&graph, 4, DeviceRef::CPU, true, DType::I32);
        ops::constant(&graph, [1.5f64], DType::I32, DeviceRef::CPU);
        ops::constant(&graph, 300, DType::U8, DeviceRef::CPU);
        ops::conv2d(&image, y, None, conv);
        ops::conv2d(&image, &filter, None, ConvOptions { stride: [0, 1], ..conv });
        ops::conv2d(&image, &filter, None, ConvOptions { groups: 3, ..conv });
        ops::conv2d(&image, &filter, Some(y), conv);
        ops::conv2d_transpose(&image, &filter, None, conv, [0, 0]);
        ops::max_pool2d(&image, [9, 9], pool);
        ops::avg_pool2d(x, [2, 2], pool, true);
        ops::resize(&image, (1, 8, 8), InterpolationMode::Bilinear);
        ops::fold(x, (4, 4), [2, 2], FoldOptions::default());
        ops::irfft(&ints, None, -1, Normalization::Backward, false);
        ops::irfft(x, None, -1, Normalization::Backward, true);
        ops::attention(x, x, x, Default::default());
        ops::dequantize(Q4_K, &bytes);
        ops::dequantize(Q4_0, x);
        ops::qmatmul(Q8_0, None, x, [&bytes]);
        ops::qmatmul(Q4_0, Some(&config), x, [&bytes]);
        ops::qmatmul(Q4_0, None, x, [&bytes, &bytes]);
        ops::cast_saturating(x, DType::F16);
        ops::quantize_dynamic_scaled_float8(x, 1.0, 2, DType::F8E4M3FN, DType::F32);
        ops::dynamic_scaled_matmul(&f8, x, x, x, DType::F32);
        ops::dynamic_scaled_matmul(&f8, &f8, x, x, DType::F32);
        ops::random::uniform(&seed, f32_type((2,)), 1.0..0.0);
        ops::random::gaussian(x, f32_type((2,)), 0.0, 1.0);
        ops::cond(x, [f32_type((2, 3))], || Ok(x.clone()), || Ok(x.clone()));
        ops::cond(x.sum(0).unwrap().slice_tensor([0, 0]).unwrap().gt(0.0).unwrap(), [f32_type((2, 3))], || Ok(x.clone()), || Ok(y.clone()));
        ops::custom("no such kernel", DeviceRef::CPU, [x], [f32_type((2, 3))], ());
        ops::allreduce([x, y], Vec::<&BufferValue>::new());
        ops::transfer_to(&foreign, DeviceRef::gpu(0)).and_then(|there| ops::add(there, x));
        graph.name_inputs(["a", "b"]);
        open.name_inputs([""]);
        graph.add_weight(&weight(&[-1]));
        graph.add_weight(&weight(&[2])).and_then(|_| graph.add_weight(&weight(&[3])));
        weight(&[5, 2]).with_sharding_strategy(ShardingStrategy::rowwise(2)).shard([DeviceRef::CPU, DeviceRef::gpu(0)]);
        weight(&[4, 2]).with_sharding_strategy(ShardingStrategy::rowwise(2)).shard([DeviceRef::CPU]);
        graph.output([&foreign]);
        graph.output([x]).and_then(|()| graph.output([x]));
        Graph::build("none", [f32_type(("n + 1",))], |_, inputs| Ok(inputs[0].clone()));
        Graph::parse("graph g(%0: float32[2]) { return %1 }");
    };
    assert!(texts.len() >= 80, "{} mistakes", texts.len());
    let wrong: Vec<&String> = texts.iter().filter(|text| text.contains("BUG")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/graph/tests/mistakes.txt");
    // The sources are named from the package of the tests.
    let said = texts.join("\n").replace(file!(), "max-core/src/graph/tests/mistakes.rs");
    if std::env::var_os("MAX_BLESS").is_some() {
        std::fs::write(&path, &said).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    for (said, kept) in said.split("\n\n").zip(kept.split("\n\n")) {
        assert_eq!(said, kept, "MAX_BLESS=1 accepts the change");
    }
    assert_eq!(said, kept);
}
