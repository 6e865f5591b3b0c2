//! `max check`.

use super::{max, max_in};

#[test]
fn kernels_are_compared_on_every_machine() {
    let text = max(&["check", "softmax:f32:5x64", "relu:bf16", "--device", "cpu"]).success();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["kernel", "dtypes", "operands"]);
    assert_eq!(lines[1][..3], ["softmax", "f32", "5x64"]);
    assert_eq!(lines[2..7].iter().map(|line| line[2]).collect::<Vec<_>>(), ["0", "1", "7", "257", "3x5x7"]);
    assert!(lines[2..7].iter().all(|line| line[3] == "same" && line.len() == 4), "{text}");
    assert!(text.contains("\n6 problems: "), "{text}");

    let text = max(&["check", "matmul:f32:33x33", "kernel:cumsum:i32:5x64"]).success();
    assert!(text.contains("2 problems: ") && text.contains(", sm_80, sm_90, sm_100 agree with"), "{text}");
}

#[test]
fn dtypes_shapes_and_parameters_can_be_chosen() {
    let text = max(&["check", "layer_norm:3x7", "--dtype", "f16", "--param", "epsilon=1e-5"]).success();
    assert!(text.contains("layer_norm  f16") && text.contains("1 problems: "), "{text}");
    let all = max(&["check", "relu:7", "--device", "cpu"]).success();
    assert!(all.contains("relu    bf16") && all.contains("relu    u8"), "{all}");
}

#[test]
fn what_differs_is_an_error() {
    // No result of a division is exact in both.
    let run = max(&["check", "softmax:f32:4x257", "--tolerance", "1e-12", "--device", "cpu"]);
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(run.err.contains("`y` at [") && run.err.contains("in the reference form"), "{}", run.err);
    assert!(run.err.ends_with("error: 1 of 1 problems were not solved alike everywhere\n"), "{}", run.err);
    assert!(run.out.contains("differs"), "{}", run.out);
}

#[test]
fn a_fault_on_a_device_is_an_error() {
    let run = max_in(&["check", "relu:f32:7"], &[("FAKE_CUDA_FAIL", "kernel=719@1")]);
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(run.err.contains("relu:f32:7 on sm_80: ") && run.out.contains("fails"), "{}{}", run.out, run.err);
}

#[test]
fn a_setting_of_simulated_gpus_without_sense_is_an_error() {
    let error = max_in(&["check", "relu:f32:7"], &[("FAKE_CUDA_MEMORY", "1GiB")]).failure(2);
    assert!(error.contains("FAKE_CUDA_MEMORY=1GiB: no number of 0 to "), "{error}");
}

#[test]
fn what_is_not_there_is_named() {
    assert!(max(&["check", "rellu"]).failure(2).contains("nearest: `relu`"));
    assert!(max(&["check"]).failure(2).contains("say which kernels, or `--all`"));
    assert!(max(&["check", "relu:7x", "--device", "cpu"]).failure(2).contains("`7x` is no shape"));
    assert!(max(&["check", "relu", "--device", "cpu:1"]).failure(2).contains("all processors are `cpu`"));
}
