//! The examples, run: each checks its own results. And their kernels, written as PTX.

use std::process::Command;

use max::dtype::DType;
use max::kernel::{KernelLibrary, ir, ptx};

/// The examples: their kernels are compiled here once more, to be found in the library, and their programs are run.
macro_rules! examples {
    ($($name:ident: $path:literal;)*) => {
        $(
            #[allow(dead_code)]
            #[path = $path]
            mod $name;
        )*

        const NAMES: &[&str] = &[$(stringify!($name)),*];

        mod runs {
            $(
                #[test]
                fn $name() {
                    super::run(stringify!($name));
                }
            )*
        }
    };
}
examples! {
    add_constant: "../examples/add_constant.rs";
    custom_op: "../examples/custom_op.rs";
    eager: "../examples/eager.rs";
    external_crate: "../examples/external_crate.rs";
    fused_attention: "../examples/fused_attention.rs";
    grayscale: "../examples/grayscale.rs";
    histogram: "../examples/histogram.rs";
    inplace: "../examples/inplace.rs";
    life: "../examples/life.rs";
    linear_relu: "../examples/linear_relu.rs";
    mandelbrot: "../examples/mandelbrot.rs";
    mandelbrot_eager: "../examples/mandelbrot_eager.rs";
    matmul: "../examples/matmul.rs";
    mlp: "../examples/mlp.rs";
    moe: "../examples/moe.rs";
    own_quantization: "../examples/own_quantization.rs";
    quantized_matvec: "../examples/quantized_matvec.rs";
    selective_scan: "../examples/selective_scan.rs";
    softmax: "../examples/softmax.rs";
    top_k: "../examples/top_k.rs";
    transformer_block: "../examples/transformer_block.rs";
    vector_addition: "../examples/vector_addition.rs";
}

/// Runs an example, which cargo builds before it runs tests.
fn run(name: &str) {
    run_as(name, &[], None);
}

/// The same with arguments, in one form of kernels.
fn run_as(name: &str, arguments: &[&str], level: Option<&str>) {
    let mut path = std::env::current_exe().unwrap();
    // From `target/release/deps/examples-…` to `target/release/examples/…`.
    path.pop();
    path.set_file_name("examples");
    path.push(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(path.exists(), "{} is not there: `cargo build --examples`, in this profile, builds it", path.display());
    let mut command = Command::new(path);
    command.args(arguments).envs(level.map(|level| ("MAX_CPU_LEVEL", level)));
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} failed\n{out}{err}");
    assert!(!out.is_empty(), "{name} does not say what it did");
}

/// Those that check themselves at a size that is given.
#[test]
fn examples_of_any_size_are_right_in_every_form() {
    let levels = KernelLibrary::linked().levels();
    let levels: Vec<&str> = levels.iter().map(|level| level.name()).chain(["reference"]).collect();
    for (name, size) in [("life", "70"), ("moe", "96"), ("quantized_matvec", "96"), ("selective_scan", "20")] {
        levels.iter().for_each(|level| run_as(name, &[size], Some(level)));
    }
}

#[test]
fn examples_of_any_size_are_right_on_simulated_gpus() {
    for gpu in max::simulator::gpus().unwrap() {
        life::run(&gpu, 70).unwrap();
        moe::run(&gpu, 70, 40, 2).unwrap();
        quantized_matvec::run(&gpu, 9, 96).unwrap();
        selective_scan::run(&gpu, 3, 12).unwrap();
    }
}

#[test]
fn all_examples_are_here() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for path in paths.filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(NAMES.contains(&&*name), "{name} is not among the examples that tests run");
        let code = std::fs::read_to_string(&path).unwrap();
        assert!(code.lines().count() < 80, "{name} is longer than an example should be");
    }
}

#[test]
fn every_kernel_writes_ptx_for_every_dtype() {
    let kernels: Vec<_> =
        KernelLibrary::linked().iter().filter(|def| ["max-tests", "ops-crate"].contains(&def.krate.as_str())).collect();
    assert!(kernels.len() > 10, "{} kernels", kernels.len());
    for def in kernels {
        let generics = def.generics.as_slice();
        let codes = generics.first().map_or(vec![DType::F32 as u8], |generic| generic.dtypes.as_slice().to_vec());
        for dtype in codes.into_iter().filter_map(DType::from_code) {
            let what = || format!("{} for {dtype}", def.name.as_str());
            let kernel = ir::parse(&def.ir_text(&vec![dtype; generics.len()], None));
            let kernel = kernel.unwrap_or_else(|e| panic!("{}: {e}", what()));
            for target in [(80, false), (90, true), (100, false)] {
                let target = ptx::Target { sm: target.0, arch_specific: target.1 };
                let module = ptx::write(&kernel, ptx::Options::new(target));
                let module = module.unwrap_or_else(|e| panic!("{}: {e}", what()));
                assert!(module.text.contains(".entry"), "{}", what());
            }
        }
    }
}
