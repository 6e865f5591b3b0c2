//! A file of that package, with blocks of random bits and what the package makes of them.

use std::path::PathBuf;

use max::driver::DeviceRef;
use max::dtype::DType;
use max::graph::Weight;
use max::graph::quantization::QuantizationEncoding;
use max::graph::weights::{
    GgufWeights, MetadataValue, WeightOptions, WeightType, WeightsFormat, WeightsRegistry, load_weights,
};

fn path() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "weights/blocks.gguf"].iter().collect()
}

/// Read, and mapped.
fn both() -> [GgufWeights; 2] {
    // SAFETY: the file is of this repository, and no test changes it.
    [GgufWeights::open([path()]).unwrap(), unsafe { GgufWeights::mmap([path()]) }.unwrap()]
}

#[test]
fn blocks_are_those_of_the_package() {
    for weights in both() {
        for encoding in QuantizationEncoding::ALL.iter().filter(|encoding| encoding.is_gguf()) {
            let data = weights.data(encoding.name()).unwrap();
            assert_eq!(data.quantization_encoding, Some(*encoding));
            let (elements, bytes) = (2 * encoding.elements_per_block(), 2 * encoding.block_size());
            assert_eq!(
                (data.dtype(), data.data.shape(), data.logical_shape()),
                (DType::U8, &[3, bytes][..], vec![3, elements])
            );
            let expected = weights.tensor(&format!("{encoding}.expected")).unwrap();
            let floats = data.astype(DType::F32).unwrap();
            assert_eq!((floats.data.shape(), floats.quantization_encoding), (&[3, elements][..], None));
            assert_eq!(floats.data.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap(), "{encoding}");
        }
    }
}

#[test]
fn metadata_has_types() {
    let weights = GgufWeights::open([path()]).unwrap();
    let told = |name: &str| weights.metadata().get(name).unwrap_or_else(|| panic!("no `{name}`"));
    assert_eq!(told("general.architecture").as_str(), Some("llama"));
    assert_eq!(told("llama.context_length").as_usize(), Some(2048));
    assert_eq!(told("test.epsilon").as_f64(), Some(f64::from(1e-5f32)));
    assert_eq!(told("test.flag"), &MetadataValue::Bool(true));
    assert_eq!((told("test.negative").as_usize(), told("test.negative").as_f64()), (None, Some(-5.0)));
    let tokens = told("tokenizer.ggml.tokens").as_array().unwrap();
    assert_eq!(tokens.iter().filter_map(MetadataValue::as_str).collect::<Vec<_>>(), ["<s>", "a", "é"]);
}

#[test]
fn any_format_is_found() {
    let weights = load_weights([path()]).unwrap();
    assert_eq!((weights.format(), WeightsFormat::of(path()).unwrap()), (WeightsFormat::Gguf, WeightsFormat::Gguf));
    // The last size is that of what lies side by side.
    assert_eq!(weights.ty("half").unwrap(), WeightType { dtype: DType::F16, shape: vec![2, 3] });
    let half = weights.data("half").unwrap();
    assert_eq!(half.astype(DType::BF16).unwrap().data.shape(), [2, 3]);
    assert_eq!(half.astype(DType::F64).unwrap().data.to_vec::<f64>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let error = half.astype(DType::I32).unwrap_err().to_string();
    assert_eq!(error, "weight `half`: it cannot be made int32, only a float; cast it in the graph");
    let declared = weights.weight("q4_k", DeviceRef::CPU).unwrap();
    assert_eq!(declared.to_string(), "q4_k: uint8[3, 288]");
    // As another format it is refused by name.
    let refused = max::graph::weights::SafetensorWeights::open([path()]).unwrap_err().to_string();
    assert!(refused.ends_with("the file is damaged, or no safetensors file"), "{refused}");
    let missing = weights.tensor("q4_0.expeced").unwrap_err().to_string();
    assert!(missing.contains("did you mean `q4_0.expected`"), "{missing}");
}

#[test]
fn what_is_allocated_is_checked() {
    let weights = GgufWeights::open([path()]).unwrap();
    let allocate = |name: &str, options: WeightOptions| weights.allocate(name, &options, DeviceRef::CPU);
    let any = WeightOptions::new;
    let q4 = any().dtype(DType::U8).shape([3, 512]).quantization_encoding(QuantizationEncoding::Q4_K);
    let weight = allocate("q4_k", q4.clone()).unwrap();
    assert_eq!((weight.ty.to_string(), weight.align()), ("uint8[3, 288]".to_owned(), 1));
    assert_eq!(weight.quantization_encoding(), Some(QuantizationEncoding::Q4_K));
    let (dtype, shape) = weight.original_dtype_and_shape();
    assert_eq!((dtype, shape.to_string()), (DType::F32, "[3, 512]".to_owned()));

    let text = |weight: Result<Weight, _>| {
        let error: max::graph::weights::WeightsError = weight.unwrap_err();
        error.to_string().replace(path().to_str().unwrap(), "FILE")
    };
    assert_eq!(
        text(allocate("half", q4)),
        "weight `half` of FILE is not quantized, but q4_k was asked for; ask for what the file has, or convert it"
    );
    assert_eq!(
        text(allocate("q6_k", any().quantization_encoding(QuantizationEncoding::Q4_0))),
        "weight `q6_k` of FILE is quantized as q6_k, but q4_0 was asked for; ask for what the file has, or convert it"
    );
    assert_eq!(
        text(allocate("half", any().dtype(DType::F32))),
        "weight `half` of FILE is float16[2, 3], but float32[2, 3] was declared; declare it as float16, and cast it in the graph"
    );
    assert_eq!(
        text(allocate("q4_k", any().shape([3, 511]))),
        "weight `q4_k` of FILE is uint8[3, 512], but uint8[3, 511] was declared; is it another model's?"
    );

    let bytes = weights.allocate_as_bytes("half", DeviceRef::CPU).unwrap();
    assert_eq!(bytes.ty.to_string(), "uint8[2, 6]");
    assert_eq!(
        text(allocate("half", any())),
        "weight `half` was allocated as bytes before; use one of both for all graphs that these weights are for"
    );
    assert_eq!(WeightsRegistry::weight(&weights, "half").unwrap().unwrap().shape(), [2, 6]);
    let allocated = weights.allocated_weights().unwrap();
    assert_eq!(allocated.keys().collect::<Vec<_>>(), ["half", "q4_k"]);
    assert_eq!(allocated["half"].dtype(), DType::U8);
}
