//! A kernel's signature and attribute as typed trees, and the rules across their parts.

pub mod ast;
pub mod attr;
pub mod check;
pub mod types;
