//! The works by name: operands, graphs, and the least that each needs.
//!
//! Names, sizes and costs are those by which other systems are timed, so that results stand side by side.

use std::collections::HashMap;

use max::driver::{Device, DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::InferenceSession;
use max::graph::ops::{self, ConvOptions, GeluApproximation};
use max::graph::quantization::QuantizationEncoding;
use max::graph::{Graph, GraphError, TensorType, TensorValue, Value};
use max::kernel::KernelLibrary;

use super::decoder;
use super::kernel_work::KernelWork;
use super::roof::Cost;
use crate::data;
use crate::error::{CliError, WorkError};
use crate::kernels::variant::VariantArgs;
use crate::memory;
use crate::name::numbers;

/// The works that run when none is named.
pub const LISTED: &[&str] = &[
    "relu_5",
    "add_256x256",
    "add_4096x4096",
    "chain5_256x256",
    "chain_gelu_tanh_4096x4096",
    "softmax_4096x4096",
    "softmax_64x50257",
    "softmax_cols_4096x4096",
    "logsoftmax_cols_4096x4096",
    "layer_norm_4096x4096",
    "rms_norm_4096x4096",
    "residual_norm_4096x4096",
    "masked_softmax_4096x4096",
    "sum_rows_4096x4096",
    "sum_cols_4096x4096",
    "var_rows_4096x4096",
    "var_cols_4096x4096",
    "argmax_4096x4096",
    "transpose_4096x4096",
    "cumsum_4096x4096",
    "cumsum_cols_4096x4096",
    "top_k_64x50257_k8",
    "top_k_64x50257_k1024",
    "gather_32000x1024_4096",
    "matmul_f32_256",
    "matmul_f32_512",
    "matmul_f32_1024",
    "matmul_f32_2048",
    "matmul_f32_1x4096x4096",
    "matmul_f32_8x4096x4096",
    "matmul_f32_127x1000x513",
    "matmul_bf16_1024",
    "matmul_bf16_2048",
    "matmul_bf16_1x4096x4096",
    "linear_f32_1x4096x4096",
    "linear_bf16_1x4096x4096",
    "linear_bf16_64x4096x4096",
    "qmatmul_q4_0_1x4096x4096",
    "qmatmul_q8_0_1x4096x4096",
    "qmatmul_q4_k_1x4096x4096",
    "qmatmul_q5_k_1x4096x4096",
    "qmatmul_q6_k_1x4096x4096",
    "qmatmul_q4_k_512x4096x4096",
    "batch_matmul_64x128x64x128",
    "mlp_gelu_256x1024x4096",
    "attention_h16_s1024_d64",
    "attention_bf16_h16_s1024_d64",
    "conv2d_1x56x56x64_3x3x64",
    "matmul_f64_1024",
    "matmul_f16_1024",
    "matmul_i8_1024",
    "attention_h32_kv8_q512_s512_d128",
    "attention_h32_kv8_q1_s512_d128",
    "attention_h256_kv64_q1_s512_d128",
    "attention_bf16_h32_kv8_q512_s512_d128",
    "attention_bf16_h32_kv8_q1_s4096_d128",
    "argsort_1048576",
    "load_graph_1",
    "load_graph_100",
];

/// What a work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Relu,
    Add,
    Chain5,
    ChainGeluTanh,
    Softmax,
    SoftmaxCols,
    LogsoftmaxCols,
    LayerNorm,
    RmsNorm,
    ResidualNorm,
    MaskedSoftmax,
    SumRows,
    SumCols,
    VarRows,
    VarCols,
    Argmax,
    Transpose,
    Cumsum,
    CumsumCols,
    TopK,
    Argsort,
    Gather,
    Matmul(DType),
    /// The product with the transpose of a weight `[out, in]`.
    Linear(DType),
    /// The product with packed weights `[out, bytes of in]`.
    Qmatmul(QuantizationEncoding),
    /// The products of rows, a part of them for each of some matrices `[out, in]`.
    GroupedMatmul,
    BatchMatmul,
    MlpGelu,
    Attention(DType),
    GroupedAttention(DType),
    Conv2d,
    /// The decoder of a Llama, in plain ops.
    Llama,
    LoadGraph,
}

/// The forms of names: the pattern, the form in words, the work, and the fewest sizes.
const FORMS: &[(&str, &str, Kind)] = &[
    ("relu_*", "relu_RxC", Kind::Relu),
    ("add_*", "add_RxC", Kind::Add),
    ("chain5_*", "chain5_RxC", Kind::Chain5),
    ("chain_gelu_tanh_*", "chain_gelu_tanh_RxC", Kind::ChainGeluTanh),
    ("softmax_*", "softmax_RxC", Kind::Softmax),
    ("softmax_cols_*", "softmax_cols_RxC", Kind::SoftmaxCols),
    ("logsoftmax_cols_*", "logsoftmax_cols_RxC", Kind::LogsoftmaxCols),
    ("layer_norm_*", "layer_norm_RxC", Kind::LayerNorm),
    ("rms_norm_*", "rms_norm_RxC", Kind::RmsNorm),
    ("residual_norm_*", "residual_norm_RxC", Kind::ResidualNorm),
    ("masked_softmax_*", "masked_softmax_RxC", Kind::MaskedSoftmax),
    ("sum_rows_*", "sum_rows_RxC", Kind::SumRows),
    ("sum_cols_*", "sum_cols_RxC", Kind::SumCols),
    ("var_rows_*", "var_rows_RxC", Kind::VarRows),
    ("var_cols_*", "var_cols_RxC", Kind::VarCols),
    ("argmax_*", "argmax_RxC", Kind::Argmax),
    ("transpose_#x#", "transpose_RxC", Kind::Transpose),
    ("cumsum_*", "cumsum_RxC", Kind::Cumsum),
    ("cumsum_cols_*", "cumsum_cols_RxC", Kind::CumsumCols),
    ("top_k_#x#_k#", "top_k_RxC_kK", Kind::TopK),
    ("argsort_*", "argsort_N or argsort_NxC", Kind::Argsort),
    ("gather_#x#_#", "gather_VxD_N", Kind::Gather),
    ("matmul_f32_#", "matmul_f32_N", Kind::Matmul(DType::F32)),
    ("matmul_f32_#x#x#", "matmul_f32_MxKxN", Kind::Matmul(DType::F32)),
    ("matmul_bf16_#", "matmul_bf16_N", Kind::Matmul(DType::BF16)),
    ("matmul_bf16_#x#x#", "matmul_bf16_MxKxN", Kind::Matmul(DType::BF16)),
    ("matmul_f16_#", "matmul_f16_N", Kind::Matmul(DType::F16)),
    ("matmul_f16_#x#x#", "matmul_f16_MxKxN", Kind::Matmul(DType::F16)),
    ("matmul_f64_#", "matmul_f64_N", Kind::Matmul(DType::F64)),
    ("matmul_f64_#x#x#", "matmul_f64_MxKxN", Kind::Matmul(DType::F64)),
    ("matmul_i8_#", "matmul_i8_N", Kind::Matmul(DType::I8)),
    ("matmul_i8_#x#x#", "matmul_i8_MxKxN", Kind::Matmul(DType::I8)),
    ("linear_f32_#x#x#", "linear_f32_MxINxOUT", Kind::Linear(DType::F32)),
    ("linear_bf16_#x#x#", "linear_bf16_MxINxOUT", Kind::Linear(DType::BF16)),
    ("linear_f16_#x#x#", "linear_f16_MxINxOUT", Kind::Linear(DType::F16)),
    ("qmatmul_q4_0_#x#x#", "qmatmul_q4_0_MxINxOUT", Kind::Qmatmul(QuantizationEncoding::Q4_0)),
    ("qmatmul_q8_0_#x#x#", "qmatmul_q8_0_MxINxOUT", Kind::Qmatmul(QuantizationEncoding::Q8_0)),
    ("qmatmul_q4_k_#x#x#", "qmatmul_q4_k_MxINxOUT", Kind::Qmatmul(QuantizationEncoding::Q4_K)),
    ("qmatmul_q5_k_#x#x#", "qmatmul_q5_k_MxINxOUT", Kind::Qmatmul(QuantizationEncoding::Q5_K)),
    ("qmatmul_q6_k_#x#x#", "qmatmul_q6_k_MxINxOUT", Kind::Qmatmul(QuantizationEncoding::Q6_K)),
    ("qmatmul_gptq_128_#x#x#", "qmatmul_gptq_128_MxINxOUT", Kind::Qmatmul(QuantizationEncoding::Gptq128)),
    (
        "qmatmul_float8_e4m3fn_128_#x#x#",
        "qmatmul_float8_e4m3fn_128_MxINxOUT",
        Kind::Qmatmul(QuantizationEncoding::Float8E4M3FN128),
    ),
    ("grouped_matmul_#_#x#x#", "grouped_matmul_EXPERTS_MxINxOUT", Kind::GroupedMatmul),
    ("batch_matmul_#x#x#x#", "batch_matmul_BxMxKxN", Kind::BatchMatmul),
    ("mlp_gelu_#x#x#", "mlp_gelu_MxDxF", Kind::MlpGelu),
    ("attention_h#_s#_d#", "attention_hH_sS_dD", Kind::Attention(DType::F32)),
    ("attention_bf16_h#_s#_d#", "attention_bf16_hH_sS_dD", Kind::Attention(DType::BF16)),
    ("attention_f16_h#_s#_d#", "attention_f16_hH_sS_dD", Kind::Attention(DType::F16)),
    ("attention_h#_kv#_q#_s#_d#", "attention_hHEADS_kvKEYHEADS_qQUERIES_sKEYS_dD", Kind::GroupedAttention(DType::F32)),
    (
        "attention_bf16_h#_kv#_q#_s#_d#",
        "attention_bf16_hHEADS_kvKEYHEADS_qQUERIES_sKEYS_dD",
        Kind::GroupedAttention(DType::BF16),
    ),
    (
        "attention_f16_h#_kv#_q#_s#_d#",
        "attention_f16_hHEADS_kvKEYHEADS_qQUERIES_sKEYS_dD",
        Kind::GroupedAttention(DType::F16),
    ),
    ("conv2d_#x#x#x#_#x#x#", "conv2d_NxHxWxC_KhxKwxF", Kind::Conv2d),
    ("llama_l#_h#_d#_f#_t#", "llama_lLAYERS_hHEADS_dHEADDIM_fFEEDFORWARD_tTOKENS", Kind::Llama),
    ("load_graph_#", "load_graph_OPS", Kind::LoadGraph),
];

/// The forms of names, in words.
pub fn forms() -> impl Iterator<Item = &'static str> {
    FORMS.iter().map(|(_, form, _)| *form).chain(["kernel:NAME", "kernel:NAME:RxC", "kernel:NAME:x=RxC,y=RxC"])
}

/// A work.
pub enum Work {
    /// One of the forms.
    Named(NamedWork),
    /// A kernel by itself.
    Kernel(KernelWork),
}

/// A work of one of the forms.
pub struct NamedWork {
    name: String,
    kind: Kind,
    sizes: Vec<usize>,
    cost: Cost,
}

/// One run of a work.
pub type Prepared<'a> = Box<dyn FnMut(usize) -> Result<(), WorkError> + 'a>;

/// Runs so often, and waits for the device's end.
pub fn repeat<'a>(device: Device, mut once: impl FnMut() -> Result<(), WorkError> + 'a) -> Prepared<'a> {
    Box::new(move |runs| {
        for _ in 0..runs {
            once()?;
        }
        Ok(device.synchronize()?)
    })
}

impl Work {
    /// The work of that name.
    ///
    /// # Errors
    /// When the name has no known form, or sizes that no memory holds.
    pub fn find(name: &str, library: &KernelLibrary, variant: &VariantArgs) -> Result<Work, CliError> {
        if let Some(kernel) = name.strip_prefix("kernel:") {
            return KernelWork::find(name, kernel, library, variant).map(Work::Kernel);
        }
        let found = FORMS.iter().find_map(|(pattern, form, kind)| Some((form, *kind, numbers(pattern, name)?)));
        let Some((form, kind, sizes)) = found else {
            let mut near: Vec<(usize, &str)> = LISTED
                .iter()
                .copied()
                .chain(forms())
                .map(|known| (strsim::damerau_levenshtein(name, known), known))
                .filter(|(distance, known)| *distance <= known.len() / 2)
                .collect();
            near.sort_unstable();
            let near = near.into_iter().take(3).map(|(_, known)| known.to_owned()).collect();
            return Err(CliError::UnknownWork { name: name.to_owned(), near });
        };
        let problem = |problem| CliError::WorkSizes { name: name.to_owned(), problem, form };
        let cost = cost(kind, &sizes).ok_or_else(|| problem("no memory holds operands of these sizes"))?;
        Ok(Work::Named(NamedWork { name: name.to_owned(), kind, sizes, cost }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Work::Named(work) => &work.name,
            Work::Kernel(work) => work.name(),
        }
    }

    /// The least that it needs.
    pub fn cost(&self) -> Cost {
        match self {
            Work::Named(work) => work.cost,
            Work::Kernel(work) => work.cost(),
        }
    }

    /// Makes operands, builds the graph and loads it.
    ///
    /// # Errors
    /// When the graph cannot be built or loaded, or there is no memory for the operands.
    pub fn prepare<'a>(
        &'a self,
        session: &'a InferenceSession,
        library: &'a KernelLibrary,
    ) -> Result<Prepared<'a>, WorkError> {
        let needed = self.cost().bytes;
        if let Some(free) = memory::free().filter(|free| *free < needed) {
            return Err(WorkError::Memory { needed, free });
        }
        match self {
            Work::Kernel(work) => work.prepare(session, library),
            Work::Named(work) if work.kind == Kind::LoadGraph => {
                let ops = work.sizes[0];
                let device = session.devices()[0];
                Ok(repeat(device, move || {
                    session.load(&graph_of(ops, device)?)?;
                    Ok(())
                }))
            }
            Work::Named(work) => work.prepare(session),
        }
    }
}

impl NamedWork {
    fn prepare<'a>(&self, session: &InferenceSession) -> Result<Prepared<'a>, WorkError> {
        let device = session.devices()[0];
        let Parts { graph, inputs, weights } = self.parts(device)?;
        let model = session.load_with_weights(&graph, &weights)?;
        Ok(repeat(device, move || {
            model.execute(&inputs)?;
            Ok(())
        }))
    }

    /// The bytes between layers and inside of one, of a decoder: what is alive at a time.
    pub fn activation_bytes(&self) -> u64 {
        let (Kind::Llama, &[_, heads, head_dim, ffn, tokens]) = (self.kind, &self.sizes[..]) else { return 0 };
        (tokens * (heads * head_dim * 6 + ffn * 2) * size_of::<f32>()) as u64
    }

    /// The graph, its inputs and its weights.
    ///
    /// # Errors
    /// When the graph cannot be built, or there is no memory for the operands.
    pub fn parts(&self, device: Device) -> Result<Parts, WorkError> {
        if self.kind == Kind::Llama {
            return self.decoder();
        }
        let mut types = Vec::new();
        let mut inputs: Vec<Tensor> = Vec::new();
        for (seed, (dtype, shape)) in (1..).zip(operands(self.kind, &self.sizes)) {
            types.push(TensorType::new(dtype, shape.as_slice(), DeviceRef::from(&device)));
            let tensor = match dtype {
                DType::I64 => data::indices(&shape, self.sizes[0], seed),
                _ => data::normal(dtype, &shape, seed),
            };
            inputs.push(tensor?.to(&device)?);
        }
        let graph = match self.kind {
            Kind::LoadGraph => graph_of(self.sizes[0], device)?,
            kind => Graph::build(self.name.as_str(), types, |_, values| build(kind, &self.sizes, values))?,
        };
        Ok(Parts { graph, inputs, weights: HashMap::new() })
    }

    fn decoder(&self) -> Result<Parts, WorkError> {
        let [layers, heads, head_dim, feed_forward, tokens] = [0, 1, 2, 3, 4].map(|i| self.sizes[i]);
        let [heads, head_dim, feed_forward] = [heads, head_dim, feed_forward].map(|size| size as i64);
        let sizes = decoder::Sizes { layers, heads, head_dim, feed_forward };
        let (hidden, half) = (sizes.hidden() as usize, sizes.head_dim as usize / 2);
        let shapes = [[tokens, hidden], [tokens, half], [tokens, half], [tokens, tokens]];
        let inputs = (1..).zip(shapes).map(|(seed, shape)| data::normal(DType::F32, &shape, seed));
        Ok(Parts {
            graph: decoder::decoder(sizes)?,
            inputs: inputs.collect::<Result<_, _>>()?,
            weights: decoder::weights(sizes)?,
        })
    }
}

/// A graph, and what it is executed on.
pub struct Parts {
    /// The graph.
    pub graph: Graph,
    /// Its inputs.
    pub inputs: Vec<Tensor>,
    /// Its weights by name.
    pub weights: HashMap<String, Tensor>,
}

/// The dtypes and shapes of a work's operands.
fn operands(kind: Kind, n: &[usize]) -> Vec<(DType, Vec<usize>)> {
    let f32 = |shape: &[usize]| (DType::F32, shape.to_vec());
    let row = n[n.len() - 1];
    match (kind, n) {
        (Kind::Add | Kind::MaskedSoftmax, _) => vec![f32(n), f32(n)],
        (Kind::ResidualNorm, _) => vec![f32(n), f32(n), f32(&[row])],
        (Kind::LayerNorm, _) => vec![f32(n), f32(&[row]), f32(&[row])],
        (Kind::RmsNorm, _) => vec![f32(n), f32(&[row])],
        (Kind::TopK, _) => vec![f32(&n[..2])],
        (Kind::Gather, &[v, d, n]) => vec![f32(&[v, d]), (DType::I64, vec![n])],
        (Kind::Matmul(dtype), _) => {
            let [m, k, c] = matmul_sizes(n);
            vec![(dtype, vec![m, k]), (dtype, vec![k, c])]
        }
        (Kind::Linear(dtype), &[m, k, c]) => vec![(dtype, vec![m, k]), (dtype, vec![c, k])],
        (Kind::Qmatmul(encoding), &[m, k, c]) => {
            let bytes = (k / encoding.elements_per_block()).saturating_mul(encoding.block_size());
            vec![f32(&[m, k]), (DType::U8, vec![c, bytes])]
        }
        (Kind::GroupedMatmul, &[e, m, k, c]) => vec![f32(&[m, k]), f32(&[e, c, k])],
        (Kind::BatchMatmul, &[b, m, k, c]) => vec![f32(&[b, m, k]), f32(&[b, k, c])],
        (Kind::MlpGelu, &[m, d, f]) => vec![f32(&[m, d]), f32(&[d, f]), f32(&[f]), f32(&[f, d])],
        (Kind::Attention(dtype), _) => vec![(dtype, n.to_vec()); 3],
        (Kind::GroupedAttention(dtype), &[h, kv, q, s, d]) => {
            [[h, q, d], [kv, s, d], [kv, s, d]].map(|shape| (dtype, shape.to_vec())).to_vec()
        }
        (Kind::LoadGraph, _) => vec![f32(&[SIDE, SIDE]); 2],
        (Kind::Conv2d, &[b, h, w, c, kh, kw, f]) => vec![f32(&[b, h, w, c]), f32(&[kh, kw, c, f])],
        _ => vec![f32(n)],
    }
}

/// The dtype that a matrix product is added in and has.
fn sums(dtype: DType) -> DType {
    if dtype == DType::I8 { DType::I32 } else { dtype }
}

fn matmul_sizes(n: &[usize]) -> [usize; 3] {
    match *n {
        [m, k, c] => [m, k, c],
        _ => [n[0]; 3],
    }
}

/// The least arithmetic and memory traffic; `None` if that exceeds what can be counted.
fn cost(kind: Kind, n: &[usize]) -> Option<Cost> {
    let product = |sizes: &[usize]| sizes.iter().try_fold(1u64, |all, size| all.checked_mul(*size as u64));
    let moved = operands(kind, n).into_iter().try_fold(0u64, |all, (dtype, shape)| {
        all.checked_add(product(&shape)?.checked_mul(dtype.size_in_bytes() as u64)?)
    })?;
    let elements = product(n)?;
    let both = elements.checked_mul(8)?;
    let (flops, bytes) = match (kind, n) {
        (Kind::Relu, _) => (elements, both),
        (Kind::Add, _) => (elements, elements.checked_mul(12)?),
        (Kind::MaskedSoftmax, _) => (0, elements.checked_mul(12)?),
        (Kind::ResidualNorm, _) => (0, elements.checked_mul(16)?),
        (Kind::Chain5, _) => (elements.checked_mul(5)?, both),
        (Kind::SumRows | Kind::SumCols | Kind::Argmax, _) => (elements, moved),
        (Kind::VarRows | Kind::VarCols, _) => (elements.checked_mul(4)?, moved),
        (Kind::TopK, _) => (0, moved),
        (Kind::Argsort, _) => (0, elements.checked_mul(12)?),
        (Kind::Gather, &[_, d, n]) => (0, product(&[8, n, d])?),
        (Kind::Matmul(dtype) | Kind::Linear(dtype), _) => {
            let [m, k, c] = matmul_sizes(n);
            let result = product(&[sums(dtype).size_in_bytes(), m, c])?;
            (product(&[2, m, k, c])?, moved.checked_add(result)?)
        }
        (Kind::Qmatmul(_), &[m, k, c]) => (product(&[2, m, k, c])?, moved.checked_add(product(&[4, m, c])?)?),
        (Kind::GroupedMatmul, &[_, m, k, c]) => (product(&[2, m, k, c])?, moved.checked_add(product(&[4, m, c])?)?),
        (Kind::BatchMatmul, &[b, m, _, c]) => (elements.checked_mul(2)?, moved.checked_add(product(&[4, b, m, c])?)?),
        (Kind::MlpGelu, &[m, d, f]) => {
            (elements.checked_mul(4)?, product(&[8, m, d])?.checked_add(product(&[8, d, f])?)?)
        }
        (Kind::Attention(dtype), &[h, s, d]) => {
            (product(&[4, h, s, s, d])?, moved.checked_add(product(&[dtype.size_in_bytes(), h, s, d])?)?)
        }
        (Kind::GroupedAttention(dtype), &[h, _, q, s, d]) => {
            (product(&[4, h, q, s, d])?, moved.checked_add(product(&[dtype.size_in_bytes(), h, q, d])?)?)
        }
        (Kind::Conv2d, &[b, h, w, _, _, _, f]) => {
            (elements.checked_mul(2)?, moved.checked_add(product(&[4, b, h, w, f])?)?)
        }
        (Kind::Llama, &[layers, heads, head_dim, ffn, tokens]) => {
            let hidden = heads.checked_mul(head_dim)?;
            let of_layer = product(&[4, hidden, hidden])?.checked_add(product(&[3, hidden, ffn])?)?;
            let weights = of_layer.checked_mul(layers as u64)?;
            let scores = product(&[4, layers, tokens, tokens, hidden])?;
            let flops = product(&[2, tokens])?.checked_mul(weights)?.checked_add(scores)?;
            (flops, weights.checked_mul(4)?.checked_add(product(&[8, tokens, hidden])?)?)
        }
        (Kind::LoadGraph, _) => (0, 0),
        _ => (0, both),
    };
    let reads_only =
        matches!(kind, Kind::SumRows | Kind::SumCols | Kind::VarRows | Kind::VarCols | Kind::Argmax | Kind::TopK);
    let dtype = match kind {
        Kind::Matmul(dtype) | Kind::Linear(dtype) | Kind::Attention(dtype) | Kind::GroupedAttention(dtype) => dtype,
        _ => DType::F32,
    };
    Some(Cost { flops, bytes, reads_only, dtype })
}

/// The graph of a work.
fn build(kind: Kind, n: &[usize], values: &[Value]) -> Result<Vec<TensorValue>, GraphError> {
    let x = values.iter().map(Value::tensor).collect::<Result<Vec<_>, _>>()?;
    let one = |value: TensorValue| Ok(vec![value]);
    match kind {
        Kind::Relu => one(ops::relu(x[0])?),
        Kind::Add => one(ops::add(x[0], x[1])?),
        Kind::Chain5 => one(ops::relu(x[0] * 2.0 + 1.0)? * x[0] - x[0]),
        Kind::ChainGeluTanh => one(ops::tanh(ops::gelu(x[0] * 2.0 + 1.0, GeluApproximation::None)?)? * x[0]),
        Kind::Softmax => one(ops::softmax(x[0], -1)?),
        Kind::SoftmaxCols => one(ops::softmax(x[0], 0)?),
        Kind::LogsoftmaxCols => one(ops::logsoftmax(x[0], 0)?),
        Kind::LayerNorm => one(ops::layer_norm(x[0], x[1], x[2], 1e-5)?),
        Kind::RmsNorm => one(ops::rms_norm(x[0], x[1], 1e-6)?),
        Kind::ResidualNorm => {
            let sum = x[0] + x[1];
            Ok(vec![ops::rms_norm(&sum, x[2], 1e-6)?, sum])
        }
        Kind::MaskedSoftmax => one(ops::softmax(x[0] * 0.125 + x[1], -1)?),
        Kind::SumRows => one(ops::sum(x[0], -1)?),
        Kind::SumCols => one(ops::sum(x[0], 0)?),
        Kind::VarRows => one(x[0].var(-1)?),
        Kind::VarCols => one(x[0].var(0)?),
        Kind::Argmax => one(ops::argmax(x[0], -1)?),
        Kind::Transpose => one(ops::transpose(x[0], 0, 1)?),
        Kind::Cumsum => one(ops::cumsum(x[0], -1, false, false)?),
        Kind::CumsumCols => one(ops::cumsum(x[0], 0, false, false)?),
        Kind::TopK => ops::top_k(x[0], n[2], -1).map(|(values, positions)| vec![values, positions]),
        Kind::Argsort => one(ops::argsort(x[0], true)?),
        Kind::Gather => one(ops::gather(x[0], x[1], 0)?),
        Kind::Matmul(DType::I8) => {
            let [m, _, c] = matmul_sizes(n);
            let device = x[0].device();
            let ty = TensorType::new(sums(DType::I8), [m, c], device);
            let out = ops::custom("matmul_integer", device, &x[..], [ty], ())?;
            out.iter().map(|value| value.tensor().cloned()).collect()
        }
        Kind::Linear(_) => one(ops::matmul(x[0], ops::transpose(x[1], 0, 1)?)?),
        Kind::Qmatmul(encoding) => one(ops::qmatmul(encoding, None, x[0], [x[1]])?),
        Kind::Matmul(_) | Kind::BatchMatmul => one(ops::matmul(x[0], x[1])?),
        Kind::GroupedMatmul => {
            let [experts, rows, _, columns] = *n else { return Ok(Vec::new()) };
            let graph = x[0].graph();
            let offsets: Vec<u32> = (0..=experts).map(|g| (rows * g / experts.max(1)) as u32).collect();
            let ids: Vec<i32> = (0..experts as i32).collect();
            let offsets = ops::constant(&graph, &offsets, DType::U32, x[0].device())?;
            let ids = ops::constant(&graph, &ids, DType::I32, x[0].device())?;
            let ty = TensorType::new(DType::F32, [rows, columns], x[0].device());
            let out = ops::custom("grouped_matmul_ragged", x[0].device(), [x[0], x[1], &offsets, &ids], [ty], ())?;
            out.iter().map(|value| value.tensor().cloned()).collect()
        }
        Kind::MlpGelu => {
            let hidden = ops::gelu(ops::matmul(x[0], x[1])? + x[2], GeluApproximation::None)?;
            one(ops::matmul(hidden, x[3])?)
        }
        Kind::Attention(_) | Kind::GroupedAttention(_) => {
            Ok(vec![ops::attention(x[0], x[1], x[2], ops::AttentionOptions::default())?])
        }
        Kind::Conv2d => {
            // As many zeros on either side, so that with odd taps the result is as large.
            let padding = [n[4], n[5]].map(|taps| [(taps as i64 - 1) / 2; 2]);
            one(ops::conv2d(x[0], x[1], None, ConvOptions { padding, ..ConvOptions::default() })?)
        }
        // They have graphs of their own.
        Kind::Llama | Kind::LoadGraph => Ok(Vec::new()),
    }
}

/// Rows and columns of the matrices of [`graph_of`].
const SIDE: usize = 64;

/// A graph of that many ops of different kinds, on square matrices.
fn graph_of(count: usize, device: Device) -> Result<Graph, GraphError> {
    let ty = TensorType::new(DType::F32, [SIDE, SIDE], DeviceRef::from(&device));
    Graph::build("load_graph", [&ty, &ty], |_, inputs| {
        let (mut x, w) = (inputs[0].tensor()?.clone(), inputs[1].tensor()?);
        for i in 0..count {
            x = match i % 10 {
                0 => ops::relu(&x)?,
                1 => ops::add(&x, w)?,
                2 => ops::softmax(&x, -1)?,
                3 => ops::matmul(&x, w)?,
                4 => ops::tanh(&x)?,
                5 => ops::reshape(&x, [SIDE * SIDE])?,
                6 => ops::exp(&x)?,
                7 => ops::reshape(&x, [SIDE, SIDE])?,
                8 => ops::mul(&x, w)?,
                _ => ops::transpose(&x, 0, 1)?,
            };
        }
        Ok(x)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str) -> Result<Work, CliError> {
        Work::find(name, &KernelLibrary::linked(), &VariantArgs::default())
    }

    #[track_caller]
    fn cost_of(name: &str) -> (u64, u64) {
        let cost = find(name).map(|work| work.cost()).unwrap_or_else(|error| panic!("{error}"));
        (cost.flops, cost.bytes)
    }

    #[test]
    fn every_listed_work_has_a_form() {
        for name in LISTED {
            assert_eq!(find(name).unwrap_or_else(|error| panic!("{error}")).name(), *name);
        }
    }

    #[test]
    fn costs_are_the_least_that_a_work_needs() {
        assert_eq!(cost_of("relu_5"), (5, 40));
        assert_eq!(cost_of("add_256x256"), (65536, 786_432));
        assert_eq!(cost_of("chain5_256x256"), (327_680, 524_288));
        assert_eq!(cost_of("softmax_77x1000"), (0, 616_000));
        assert_eq!(cost_of("softmax_cols_77x1000"), (0, 616_000));
        assert_eq!(cost_of("sum_rows_64x32"), (2048, 8192));
        assert_eq!(cost_of("var_cols_64x32"), (8192, 8192));
        assert_eq!(cost_of("top_k_64x50257_k8"), (0, 12_865_792));
        assert_eq!(cost_of("gather_32000x1024_4096"), (0, 33_554_432));
        assert_eq!(cost_of("matmul_f32_256"), (33_554_432, 786_432));
        assert_eq!(cost_of("matmul_bf16_8x16x32"), (8192, 1792));
        assert_eq!(cost_of("qmatmul_q4_0_1x64x3"), (2 * 64 * 3, 64 * 4 + 3 * 36 + 3 * 4));
        assert_eq!(cost_of("batch_matmul_64x128x64x128"), (134_217_728, 8_388_608));
        assert_eq!(cost_of("mlp_gelu_256x1024x4096"), (4_294_967_296, 35_651_584));
        assert_eq!(cost_of("attention_h16_s1024_d64"), (4_294_967_296, 16_777_216));
        assert_eq!(cost_of("attention_bf16_h16_s1024_d64"), (4_294_967_296, 8_388_608));
        assert_eq!(cost_of("attention_h32_kv8_q1_s512_d128"), (8_388_608, 4_227_072));
        assert_eq!(cost_of("conv2d_1x56x56x64_3x3x64"), (231_211_008, 1_753_088));
        assert_eq!(cost_of("llama_l2_h4_d16_f96_t3"), (417_792 + 4608, 278_528 + 1536));
        assert_eq!(cost_of("load_graph_100"), (0, 0));
    }

    #[test]
    fn names_without_a_form_are_errors() {
        let error = |name: &str| find(name).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error("softmax_4096x409x").contains("no work `softmax_4096x409x`"), "{}", error("softmax_4096x409x"));
        assert!(error("sofmax_4096x4096").contains("nearest: `softmax_4096x4096`"), "{}", error("sofmax_4096x4096"));
        assert!(error("relu_4000000000x4000000000").contains("no memory"), "{}", error("relu_4000000000x4000000000"));
        assert!(error("relu_4000000000x4000000000").contains("relu_RxC"));
    }
}
