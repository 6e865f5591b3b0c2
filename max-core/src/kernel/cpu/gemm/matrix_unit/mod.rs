//! GEMM on matrix units, over blocks that are packed as they are read: AMX, and AVX-512's dot-product instructions (VNNI).

#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 multiply what is packed"))]
pub(in crate::kernel::cpu) mod amx;
#[cfg(target_arch = "x86_64")]
pub(super) mod bf16_epilogue;
#[cfg(target_arch = "x86_64")]
pub(super) mod blocked;
#[cfg(target_arch = "x86_64")]
pub(in crate::kernel::cpu) mod split_bf16;
#[cfg(target_arch = "x86_64")]
pub(in crate::kernel::cpu) mod vnni;
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 multiply what is packed"))]
pub(in crate::kernel::cpu) mod vnni_packing;
