//! No kernel touches what is not its own, whatever it indexes: every access method of the language, with indices over the whole of
//! `i64`, in every form of a kernel, against a model in 128 bits. Operands lie between guards, which nobody may read or write.

extern crate max_core as max;

#[cfg(feature = "ndarray")]
mod arrays;
mod audit;
mod loops;
mod model;
mod products;
mod reads;
mod stacks;
mod support;
mod writes;
