//! Folders whose weights are quantized, as `quantization_config` says: floats of 8 bits with scales, and GPTQ.

use std::collections::BTreeMap;

use max_core::driver::Tensor;
use max_core::dtype::F8E4M3;
use max_pipelines::TextGenerationPipeline;
use serde_json::{Value, json};

use crate::folders::{Expected, difference};

type Weights = BTreeMap<String, Tensor>;

/// Replaces each projection by what `quantize` makes of its name, its values and its sizes, and loads that beside a folder of the
/// numbers that it says: logits are equal.
#[track_caller]
fn agrees(config: Value, quantize: impl Fn(&str, &[f32], [usize; 2]) -> (Vec<f32>, Weights)) {
    let model = Expected::new("llama");
    let mut numbers = Weights::new();
    model.write_config(|values| values["quantization_config"] = config);
    model.write_weights(|weights| {
        let names: Vec<String> = weights.keys().filter(|name| name.ends_with("_proj.weight")).cloned().collect();
        for name in names {
            let weight = weights.remove(&name).unwrap();
            let &[rows, columns] = weight.shape() else { unreachable!() };
            let (values, tensors) = quantize(&name, &weight.to_vec::<f32>().unwrap(), [rows, columns]);
            numbers.insert(name, Tensor::from_vec(values, [rows, columns]).unwrap());
            weights.extend(tensors);
        }
    });
    let found = model.pipeline().logits(&model.ids()).unwrap().to_vec::<f32>().unwrap();
    model.write_config(|_| {});
    model.write_weights(|weights| weights.extend(numbers));
    let expected = model.pipeline().logits(&model.ids()).unwrap().to_vec::<f32>().unwrap();
    assert!(difference(&found, &expected) < 1e-6);
    // It is the model, roughly: signs, order and scales are right.
    let error = difference(&found, &model.rows("logits"));
    assert!(error > 1e-4 && error < 0.5, "{error}");
}

/// Values as floats of 8 bits of scales for blocks of so many rows and columns.
fn float8(values: &[f32], [rows, columns]: [usize; 2], [high, wide]: [usize; 2]) -> (Vec<f32>, Tensor, Vec<f32>) {
    let blocks = [rows.div_ceil(high), columns.div_ceil(wide)];
    let block = |at: usize| at / columns / high * blocks[1] + at % columns / wide;
    let mut scales = vec![0.0f32; blocks[0] * blocks[1]];
    for (at, value) in values.iter().enumerate() {
        scales[block(at)] = scales[block(at)].max(value.abs() / 448.0);
    }
    let small: Vec<F8E4M3> = values
        .iter()
        .enumerate()
        .map(|(at, value)| F8E4M3::from_f64(f64::from(value / scales[block(at)]).clamp(-448.0, 448.0)))
        .collect();
    let numbers = small.iter().enumerate().map(|(at, value)| value.to_f64() as f32 * scales[block(at)]).collect();
    (numbers, Tensor::from_vec(small, [rows, columns]).unwrap(), scales)
}

#[test]
fn floats_of_8_bits_are_scaled() {
    agrees(json!({"quant_method": "fp8"}), |name, values, sizes| {
        let (numbers, weight, scale) = float8(values, sizes, sizes);
        let scale = Tensor::from_vec(scale, [1]).unwrap();
        let input = Tensor::full(1.0f32, [1]).unwrap();
        let (scale_name, input_name) = (format!("{name}_scale"), name.replace(".weight", ".input_scale"));
        (numbers, Weights::from([(name.into(), weight), (scale_name, scale), (input_name, input)]))
    });
    let rows = json!({"quant_method": "compressed-tensors", "format": "float-quantized"});
    agrees(rows, |name, values, [rows, columns]| {
        let (numbers, weight, scale) = float8(values, [rows, columns], [1, columns]);
        let scale = Tensor::from_vec(scale, [rows, 1]).unwrap();
        (numbers, Weights::from([(name.into(), weight), (format!("{name}_scale"), scale)]))
    });
    // Blocks that the sizes, 32, 16 and 48, are no multiples of.
    let blocks = json!({"quant_method": "fp8", "weight_block_size": [20, 24]});
    agrees(blocks, |name, values, [rows, columns]| {
        let (numbers, weight, scale) = float8(values, [rows, columns], [20, 24]);
        let scale = Tensor::from_vec(scale, [rows.div_ceil(20), columns.div_ceil(24)]).unwrap();
        (numbers, Weights::from([(name.into(), weight), (format!("{name}_scale_inv"), scale)]))
    });
}

/// As GPTQ lays integers of so many bits out, of groups of 16 inputs, which come in another order with `order`.
fn gptq(bits: u32, offset: u32, order: bool) -> impl Fn(&str, &[f32], [usize; 2]) -> (Vec<f32>, Weights) {
    move |name, values, [rows, columns]| {
        let (groups, per_word, most) = (columns / 16, (32 / bits) as usize, (1u32 << bits) - 1);
        let group = |column: usize| if order { (column * 7 + 3) % columns / 16 } else { column / 16 };
        let zero = |group: usize, row: usize| (most / 2 + (group + row) as u32 % 2).max(offset);
        let largest = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let scale = |group: usize, row: usize| largest / (most / 2) as f32 * (1.0 + 0.01 * (group + row) as f32);
        let mut words = vec![0u32; columns / per_word * rows];
        let mut numbers = vec![0.0f32; rows * columns];
        for (at, value) in values.iter().enumerate() {
            let (row, column) = (at / columns, at % columns);
            let (scale, zero) = (scale(group(column), row), zero(group(column), row));
            let quantized = ((value / scale).round() + zero as f32).clamp(0.0, most as f32) as u32;
            words[column / per_word * rows + row] |= quantized << (bits * (column % per_word) as u32);
            numbers[at] = scale * (quantized as f32 - zero as f32);
        }
        let mut zeros = vec![0u32; groups * rows / per_word];
        for at in 0..groups * rows {
            let (group, row) = (at / rows, at % rows);
            let word = &mut zeros[group * (rows / per_word) + row / per_word];
            *word |= (zero(group, row) - offset) << (bits * (row % per_word) as u32);
        }
        let scales = (0..groups * rows).map(|at| scale(at / rows, at % rows)).collect::<Vec<_>>();
        let integers = |words: Vec<u32>, shape: [usize; 2]| {
            Tensor::from_vec(words.into_iter().map(u32::cast_signed).collect::<Vec<i32>>(), shape).unwrap()
        };
        let layer = name.strip_suffix(".weight").unwrap();
        let mut tensors = Weights::from([
            (format!("{layer}.qweight"), integers(words, [columns / per_word, rows])),
            (format!("{layer}.qzeros"), integers(zeros, [groups, rows / per_word])),
            (format!("{layer}.scales"), Tensor::from_vec(scales, [groups, rows]).unwrap()),
        ]);
        if order {
            let groups: Vec<i32> = (0..columns).map(|column| group(column) as i32).collect();
            tensors.insert(format!("{layer}.g_idx"), Tensor::from_vec(groups, [columns]).unwrap());
        }
        (numbers, tensors)
    }
}

#[test]
fn gptq_is_read() {
    agrees(json!({"quant_method": "gptq", "bits": 4, "group_size": 16}), gptq(4, 1, false));
    agrees(json!({"quant_method": "gptq", "bits": 8, "group_size": 16, "desc_act": true}), gptq(8, 1, true));
    let second = json!({"quant_method": "gptq", "bits": 4, "group_size": 16, "checkpoint_format": "gptq_v2"});
    agrees(second, gptq(4, 0, true));
}

#[test]
fn what_is_not_known_is_refused() {
    let model = Expected::new("llama");
    let fails = |config: Value, message: &str| {
        model.write_config(|values| values["quantization_config"] = config);
        let error = TextGenerationPipeline::new(&model.config()).err().unwrap().to_string();
        assert!(error.contains(message), "{error}\ndoes not contain `{message}`");
    };
    fails(json!({"quant_method": "awq"}), "`quantization_config.quant_method` is `awq`; fp8");
    fails(json!({"quant_method": "gptq", "bits": 3}), "`quantization_config.bits` is 3; 2, 4 and 8");
    fails(json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "x"}), "`x`; `gptq` and `gptq_v2`");
    fails(json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}), "is `pack-quantized`");
    fails(json!({"quant_method": "fp8", "weight_block_size": [128]}), "is [128.0], not rows and columns");
    // Scales and groups that do not fit.
    let name = "model.layers.0.mlp.down_proj";
    let scaled = |shape: &[usize]| {
        model.write_weights(|weights| {
            let weight = Tensor::full(F8E4M3::from_f64(1.0), [32, 48]).unwrap();
            weights.insert(format!("{name}.weight"), weight);
            weights.insert(format!("{name}.weight_scale"), Tensor::full(1.0f32, shape).unwrap());
        });
    };
    scaled(&[3]);
    fails(
        json!({"quant_method": "fp8"}),
        "down_proj.weight_scale is [3]; model.layers.0.mlp.down_proj.weight is [32, 48]",
    );
    scaled(&[1, 1]);
    fails(json!({"quant_method": "gptq", "bits": 4}), "weight_scale");
    model.write_weights(|weights| {
        weights.remove(&format!("{name}.weight"));
        for (part, shape) in [("qweight", [6, 32]), ("qzeros", [1, 4])] {
            weights.insert(format!("{name}.{part}"), Tensor::full(0i32, shape).unwrap());
        }
        weights.insert(format!("{name}.scales"), Tensor::full(1.0f32, [1, 32]).unwrap());
    });
    let groups = "the groups of model.layers.0.mlp.down_proj are not 48 numbers below 1";
    fails(json!({"quant_method": "gptq", "bits": 4, "group_size": 16}), groups);
}
