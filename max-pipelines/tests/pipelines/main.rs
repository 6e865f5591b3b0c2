//! Models of each architecture against what transformers computes, and pipelines on them.

mod architectures;
mod errors;
mod folders;
mod generation;
