//! What two builds have to agree on before one reads a table of the other: where fields lie, what numbers mean, and the target.
//!
//! [`TABLE_VERSION`](super::TABLE_VERSION) is raised by hand, and can be forgotten; this cannot.

use std::mem::{align_of, offset_of, size_of};

use super::{
    Access, Binding, Condition, Contract, DTypeRef, ExtensionTable, GenericDef, GpuTile, GridAxis, GridOp, GridTerm,
    Instance, KernelDef, KernelKind, LaunchArgs, Level, List, OperandDef, Pack, PackForm, PackRoom, ParamDef,
    ParamKind, PartDim, RawTensor, Str, Variant,
};
use crate::dtype::DType;

/// Continues an FNV-1a hash, as [`hash_str`](super::hash_str), with the bytes of a number.
const fn number(mut hash: u64, n: usize) -> u64 {
    let mut shift = 0;
    while shift < 64 {
        hash = (hash ^ ((n as u64 >> shift) & 0xff)).wrapping_mul(0x0000_0100_0000_01b3);
        shift += 8;
    }
    hash
}

const fn text(hash: u64, s: &str) -> u64 {
    number(hash, super::hash_str(s) as usize)
}

macro_rules! fingerprint {
    (structs { $($name:ident $(<$of_type:ty>)? { $($field:tt)* })* } enums { $($of:ident { $($variant:ident)* })* }) => {
        /// The names and places of all fields of the table, the numbers of its enums, and the codes and sizes of dtypes.
        pub const LAYOUT: u64 = {
            let mut hash = 0xcbf2_9ce4_8422_2325;
            $({
                type This = $name $(<$of_type>)?;
                hash = text(hash, stringify!($name));
                hash = number(number(hash, size_of::<This>()), align_of::<This>());
                $( hash = number(text(hash, stringify!($field)), offset_of!(This, $field)); )*
            })*
            $( $( hash = number(text(hash, stringify!($of $variant)), $of::$variant as usize); )* )*
            let mut i = 0;
            while i < DType::ALL.len() {
                let dtype = DType::ALL[i];
                hash = number(number(hash, dtype.code() as usize), dtype.size_in_bytes());
                i += 1;
            }
            hash
        };

        // A field or a variant that is missing above does not compile.
        const _: () = {
            $( const _: fn(&$name $(<$of_type>)?) = |v| { let $name { $($field: _),* } = v; }; )*
            $( const _: fn($of) = |v| match v { $($of::$variant => {})* }; )*
        };
    };
}

fingerprint! {
    structs {
        Str { ptr len }
        List<u8> { ptr len of }
        DTypeRef { generic fixed }
        OperandDef { name access dtype rank zero_init written part }
        PartDim { axis dim tile size }
        GenericDef { name dtypes by_size }
        ParamDef { name kind dtype has_default default default_text choices }
        GridAxis { operand dim tile size }
        GridTerm { op index value }
        Instance { level dtypes tile variant run }
        Condition { operand dim max }
        Variant { conditions }
        GpuTile { sm generic dtypes conditions tile }
        RawTensor { ptr dims strides pack }
        Pack { tile tiles depth rooms }
        PackRoom { slot_bytes room states }
        LaunchArgs { tensors params grid order stream }
        Binding { dtypes tile params }
        KernelDef {
            version kind name krate file line doc signature optimized operands generics params may_hold_tiles
            tile_names gpu_tile gpu_tiles variants grid grid_terms nondeterministic columns transposed instances record reference contract
        }
        Contract { 0 }
        ExtensionTable { version layout target kernels }
    }
    enums {
        KernelKind { Elementwise Program }
        Access { In Out InOut }
        ParamKind { Int Bool String Float }
        GridOp { Number Dim Param Tile Add Sub Mul Div Min Max }
        Level { Portable V2 V3 V4 }
        PackForm { Panels Blocks }
    }
}

/// The most bytes of a target's name.
pub const TARGET_BYTES: usize = 48;

/// The target that this was compiled for, such as `x86_64 linux gnu 64-bit little-endian`, with zeros behind it.
pub const TARGET: [u8; TARGET_BYTES] = {
    let env = if cfg!(target_env = "gnu") {
        " gnu"
    } else if cfg!(target_env = "musl") {
        " musl"
    } else if cfg!(target_env = "msvc") {
        " msvc"
    } else {
        ""
    };
    let width = match size_of::<usize>() {
        8 => " 64-bit",
        4 => " 32-bit",
        _ => " 16-bit",
    };
    let endian = if cfg!(target_endian = "big") { " big-endian" } else { " little-endian" };
    let parts = [std::env::consts::ARCH, " ", std::env::consts::OS, env, width, endian];
    let (mut name, mut end, mut i) = ([0; TARGET_BYTES], 0, 0);
    while i < parts.len() {
        let (part, mut j) = (parts[i].as_bytes(), 0);
        while j < part.len() && end < TARGET_BYTES {
            name[end] = part[j];
            (end, j) = (end + 1, j + 1);
        }
        i += 1;
    }
    name
};

/// The name in the bytes of a target.
pub fn target_name(target: &[u8; TARGET_BYTES]) -> String {
    let name = String::from_utf8_lossy(target).trim_end_matches('\0').to_string();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_graphic() || c == ' ');
    if is_name { name } else { "a target without a name".to_string() }
}
