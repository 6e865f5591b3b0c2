//! Every kernel of the library against a naive reference, in every form that it has.
//!
//! A row of the [`table`] says what a kernel must compute; an [`engine`] is one way to run it: a level of compiled
//! code, the reference form, its PTX in the simulator. The tests in [`conformance`] run every row on every engine and
//! name neither kernels nor engines, so a new kernel needs one row, and a new engine nothing else.

mod barriers;
mod case;
mod conformance;
mod constants;
mod counts;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod disassembly;
#[path = "../../max-core/tests/ir/edit.rs"]
mod edit;
mod engine;
mod forms;
mod mutations;
mod number;
mod ops;
mod packing;
mod philox;
#[path = "../../max-core/tests/ir/ptxas.rs"]
mod ptxas;
mod quantized;
mod races;
mod random;
mod simulator;
mod split_bf16;
mod table;
mod tensor;
mod threads;
