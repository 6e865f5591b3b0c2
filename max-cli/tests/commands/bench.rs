//! `max bench`: few runs of small works, because the times are not what is tested here.

use std::fs;

use serde_json::Value;

use crate::{Run, max, max_in};

/// Runs `max bench --json` with few samples.
fn bench(args: &[&str]) -> Run {
    let mut all = vec!["bench", "--json", "--runs", "3"];
    all.extend(args);
    max(&all)
}

#[track_caller]
fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"))).collect()
}

#[test]
fn the_list_names_every_work_and_every_form() {
    let list = max(&["bench", "--list"]).success();
    for line in ["relu_5", "matmul_f32_127x1000x513", "load_graph_100", "    softmax_RxC", "    kernel:NAME"] {
        assert!(list.lines().any(|l| l == line), "no {line:?} in:\n{list}");
    }
    assert!(list.contains("conv2d_1x56x56x64_3x3x64"), "{list}");
    let some = max(&["bench", "--list", "--filter", "softmax"]).success();
    assert!(
        some.starts_with("softmax_4096x4096\nsoftmax_64x50257\nsoftmax_cols_4096x4096\nlogsoftmax_cols_4096x4096\n"),
        "{some}"
    );
}

#[test]
fn a_sweep_draws_works_that_are_known() {
    let drawn = |seed: &str| max(&["bench", "--sweep", "--seed", seed, "--count", "60", "--list"]).success();
    let works = |text: &str| text.lines().take_while(|line| !line.is_empty()).count();
    assert_eq!(works(&drawn("4")), 60, "{}", drawn("4"));
    assert_eq!(drawn("4"), drawn("4"));
    assert_ne!(drawn("4"), drawn("5"));
    let small = objects(&bench(&["--sweep", "--count", "20", "--filter", "relu"]).success());
    assert_eq!(small.len(), 1);
    max(&["bench", "--seed", "4"]).failure(2);
    max(&["bench", "--sweep", "--count", "0"]).failure(2);
}

#[test]
fn a_result_is_one_object_with_all_its_figures() {
    let results = objects(&bench(&["softmax_7x100", "load_graph_1"]).success());
    assert_eq!(results.len(), 2);
    let softmax = &results[0];
    assert_eq!(
        (&softmax["work"], &softmax["bytes"], &softmax["flops"]),
        (&"softmax_7x100".into(), &5600.into(), &0.into())
    );
    let number = |key: &str| softmax[key].as_f64().unwrap_or_else(|| panic!("no {key} in {softmax}"));
    assert!(number("min_ns") > 0.0 && number("min_ns") <= number("median_ns"));
    assert!(number("floor_ns") > 0.0 && number("floor_ns") < number("median_ns"), "{softmax}");
    assert!(number("runs") >= 3.0 && number("threads") >= 1.0);
    assert!(["portable", "v2", "v3", "v4"].contains(&softmax["isa"].as_str().unwrap_or("")), "{softmax}");
    assert_eq!(results[1]["floor_ns"], 0.0);
}

#[test]
fn other_values_of_each_number_are_tried() {
    let trials = objects(&bench(&["--tune", "add_64x64"]).success());
    let of = |name: &str| -> Vec<u64> {
        let mine = trials.iter().filter(|trial| trial["parameter"] == name && trial["work"] == "add_64x64");
        mine.map(|trial| trial["value"].as_u64().unwrap()).collect()
    };
    assert_eq!(of("grain_elements"), [4096, 8192, 32768, 65536]);
    assert_eq!(of("tile_form"), [1, 2, 3, 4]);
    assert!(
        trials.iter().all(|trial| trial["ratio"].as_f64().unwrap() > 0.0 && trial["median_ns"].as_f64().unwrap() > 0.0)
    );
    let table = max(&["bench", "--tune", "--runs", "3", "relu_5"]).success();
    assert!(table.contains("grain_bytes: bytes that are worth another thread"), "{table}");
    assert_ne!(max(&["bench", "--tune", "nothing_3"]).code, 0);
}

#[test]
fn every_form_of_work_runs() {
    let names = [
        "relu_2x3x5",
        "add_7x9",
        "chain5_33",
        "chain_gelu_tanh_5x6",
        "softmax_1x1",
        "layer_norm_3x17",
        "rms_norm_3x17",
        "residual_norm_3x17",
        "masked_softmax_3x17",
        "sum_rows_3x17",
        "sum_cols_3x17",
        "argmax_3x17",
        "transpose_3x17",
        "cumsum_3x17",
        "top_k_3x17_k4",
        "gather_9x5_7",
        "matmul_f32_9",
        "matmul_f32_3x17x5",
        "matmul_bf16_3x17x5",
        "matmul_f16_8",
        "batch_matmul_2x3x4x5",
        "mlp_gelu_3x8x16",
        "attention_h2_s9_d16",
        "attention_h1_s3_d130",
        "load_graph_23",
    ];
    let run = bench(&names);
    let results = objects(&run.success());
    let done: Vec<&str> =
        results.iter().filter(|r| r["median_ns"].is_number()).filter_map(|r| r["work"].as_str()).collect();
    assert_eq!(done, names);
}

#[test]
fn a_convolution_is_a_work() {
    let results = objects(&bench(&["conv2d_1x5x5x2_3x3x2"]).success());
    assert_eq!(results[0]["flops"], 2 * 5 * 5 * 2 * 3 * 3 * 2);
}

#[test]
fn any_kernel_is_a_work() {
    let names = ["kernel:gelu:4x5", "kernel:softmax:bf16:7x100", "kernel:where:9", "kernel:matmul:c=2x4,a=2x3,b=3x4"];
    let results = objects(&bench(&names).success());
    let works: Vec<&str> = results.iter().filter_map(|result| result["work"].as_str()).collect();
    assert_eq!(works[..2], ["kernel:gelu:f32:4x5", "kernel:softmax:bf16:7x100"]);
    assert_eq!(works[3], "kernel:matmul:f32:c=2x4,a=2x3,b=3x4");
    assert_eq!(results[0]["bytes"], 160);
    let scaled = objects(&bench(&["kernel:attention:2x8x16", "--param", "scale=0.5", "--dtype", "bf16"]).success());
    assert_eq!(scaled[0]["work"], "kernel:attention:bf16:2x8x16");
}

#[test]
fn the_table_shows_the_roof_and_the_part_of_the_floor() {
    let table = max(&["bench", "add_64x64", "--runs", "3", "--threads", "1"]).success();
    assert!(table.contains(", 1 threads") && table.contains("GFLOP/s of f32"), "{table}");
    let (header, row) = (table.lines().nth(5).unwrap_or(""), table.lines().nth(6).unwrap_or(""));
    assert!(header.starts_with("work") && header.ends_with("of floor"), "{table}");
    assert!(row.starts_with("add_64x64") && row.ends_with('%'), "{table}");
}

#[test]
fn a_baseline_gives_ratios() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("before.json");
    let text = path.to_str().expect("a UTF-8 path");
    fs::write(&path, bench(&["relu_5"]).success()).expect("it can be written");
    let result = &objects(&bench(&["relu_5", "--baseline", text]).success())[0];
    assert!(result["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{result}");
    let table = max(&["bench", "relu_5", "--runs", "3", "--baseline", text]).success();
    assert!(table.contains("baseline  ratio"), "{table}");

    let missing = bench(&["relu_5", "--baseline", "no/such.json"]).failure(1);
    assert!(missing.contains("no/such.json: "), "{missing}");
    fs::write(&path, "relu_5 12\n").expect("it can be written");
    assert!(bench(&["relu_5", "--baseline", text]).failure(1).contains("line 1:"));
}

#[test]
fn wrong_names_and_sizes_are_errors() {
    assert!(bench(&["sofmax_7x7"]).failure(2).contains("there is no work `sofmax_7x7`"));
    assert!(bench(&["kernel:rellu"]).failure(2).contains("nearest: `relu`"));
    assert!(bench(&["kernel:attention"]).failure(2).contains("`--param scale=VALUE`"));
    assert!(bench(&["relu_5", "--threads", "0"]).failure(2).contains("0"));
    assert!(bench(&["relu_99999999999x99999999999"]).failure(2).contains("no memory"));
    for (name, part) in [("top_k_3x4_k9", "top_k"), ("relu_1000000x1000000", "bytes")] {
        let run = bench(&[name]);
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{}", run.err);
        assert!(run.err.contains(&format!("work `{name}` failed: ")) && run.err.contains(part), "{}", run.err);
        assert!(run.err.contains("error: 1 of 1 works could not be run"), "{}", run.err);
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let error = max(&["bench", "--device", "gpu:99", "relu_5"]).failure(2);
    assert!(error.starts_with("error: there is no accelerator 99"), "{error}");
    let error = max(&["bench", "--device", "cpu:1", "relu_5"]).failure(2);
    assert_eq!(error, "error: there is no device `cpu:1`: all processors are `cpu`\n");
    let error = max(&["bench", "--device", "tpu"]).failure(2);
    assert!(error.contains("unknown device `tpu`"), "{error}");
}

/// On a driver that simulates a GPU, in the place of the one that the loader would find.
#[cfg(target_os = "linux")]
#[test]
fn works_run_on_an_accelerator() {
    let folder = tempfile::tempdir().unwrap();
    let driver = std::env::current_exe().unwrap().with_file_name("libfake_cuda.so");
    std::os::unix::fs::symlink(driver, folder.path().join("libcuda.so.1")).unwrap();
    let works = [
        "relu_5",
        "softmax_7x100",
        "matmul_bf16_32",
        "attention_bf16_h1_s32_d32",
        "kernel:gelu:f32:64",
        "load_graph_1",
    ];
    let run = max_in(
        &[&["bench", "--json", "--runs", "1", "--device", "gpu"], &works[..]].concat(),
        &[("LD_LIBRARY_PATH", folder.path().to_str().unwrap())],
    );
    assert!(run.err.starts_with("Simulated GPU, sm_90, device gpu:0\ncopy  1 MiB "), "{}", run.err);
    assert!(!run.err.contains("peak"), "{}", run.err);
    let results = objects(&run.success());
    let names: Vec<&str> = results.iter().map(|result| result["work"].as_str().unwrap()).collect();
    assert_eq!(names, works);
    for result in results {
        assert_eq!((&result["device"], &result["isa"]), (&"gpu:0".into(), &"sm_90".into()), "{result}");
        assert!(result["median_ns"].as_f64().unwrap() > 0.0, "{result}");
    }
}

#[test]
fn new_processes_measure_loads_and_memory() {
    let text = max(&["bench", "--cold", "--json", "--runs", "1", "load_graph_3", "llama_l1_h2_d16_f32_t2"]).success();
    let results = objects(&text);
    assert_eq!((results[0]["ops"].as_u64(), results[0]["cold"]["weights"].as_u64()), (Some(3), Some(0)));
    let llama = &results[1]["cold"];
    let number = |key: &str| llama[key].as_f64().unwrap_or_else(|| panic!("no {key} in {llama}"));
    assert_eq!(number("weights"), f64::from(4 * (4 * 32 * 32 + 3 * 32 * 32 + 3 * 32)));
    for key in ["load_us", "second_load_us", "warm_up_ms", "first_ms", "later_ms", "activations"] {
        assert!(number(key) > 0.0, "{llama}");
    }
    let table = max(&["bench", "--cold", "--runs", "1", "load_graph_3"]).success();
    assert!(table.contains("first/later") && table.contains("load_graph_3"), "{table}");
    let error = max(&["bench", "--cold", "kernel:relu"]).failure(2);
    assert!(error.contains("kernel:relu"), "{error}");
}
