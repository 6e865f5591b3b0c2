//! How an execution runs: what is checked of its inputs, its memory and sizes, its steps and regions, and captures of it.

pub(super) mod capture;
mod checks;
mod control;
mod execute;
mod frame;
mod run;
