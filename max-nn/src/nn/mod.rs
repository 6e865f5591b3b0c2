//! Modules with named parameters, and layers: one file each, with formula, shapes and an example.
//!
//! A layer is written over [`Tensor`](crate::tensor::Tensor)s, so it runs in both worlds: on eager tensors it computes as you
//! write, on values of a graph it adds to the graph, and [`Forward::compile`] makes a model of it. New parameters have the
//! default dtype and device: see [`default_dtype`](crate::tensor::default_dtype).

mod activation;
mod attention;
mod conv;
mod embedding;
pub mod kernels;
pub mod kv_cache;
mod layer_list;
mod linear;
mod lora_linear;
mod mlp;
mod norm;
mod patch_embedding;
mod pool;
pub mod rope;
mod sequential;
pub mod transformer;

pub use crate::module::{
    Difference, Field, Forward, InputOrder, LoadError, LoadReport, Member, MemberMut, Mode, Module, ModuleExt,
    StateDict, Tree, add_layer_hook, clear_hooks, compare_activations, compile, record_activations, with_layer_hook,
};
pub use activation::Activation;
pub use attention::MultiHeadAttention;
pub use conv::{Conv1d, Conv2d, Conv3d, ConvTranspose2d};
pub use embedding::Embedding;
pub use layer_list::LayerList;
pub use linear::Linear;
pub use lora_linear::LoraLinear;
pub use max_macros::Module;
pub use mlp::Mlp;
pub use norm::{BatchNorm2d, GroupNorm, LayerNorm, RmsNorm};
pub use patch_embedding::PatchEmbedding;
pub use pool::{AvgPool2d, MaxPool2d};
pub use rope::RotaryEmbedding;
pub use sequential::Sequential;
