//! Eager tensors, functional ops and modules, on real kernels.

// What the macros write names this crate `max`, as in a user's crate.
extern crate max_nn as max;

mod eager;
mod errors;
mod foreign;
mod functional;
#[path = "../support/golden.rs"]
mod golden;
mod latent_attention;
mod layers;
mod modules;
mod paged_attention;
mod sampling;
mod transformer;
mod uncached_attention;
mod worlds;
