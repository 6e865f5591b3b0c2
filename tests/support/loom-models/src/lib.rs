//! Models of the protocols by which threads share work in `max-core`: loom runs each model in all orders in which its threads
//! can go on, up to a number of preemptions, and with all values that their atomics can then have.
//!
//! What is modelled is the library's own code, included by its path, with loom's atomics in place of the standard library's.
//! Loom takes `SeqCst` for `AcqRel`: it tries more orders than there are, so a model can demand no more than holds without.

#[cfg(test)]
mod kernel;
