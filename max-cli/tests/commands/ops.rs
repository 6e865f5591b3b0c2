//! `max ops`.

use crate::max;

#[test]
fn the_list_has_a_row_for_every_kernel() {
    let list = max(&["ops"]).success();
    let row = |name: &str| list.lines().find(|line| line.split_whitespace().next() == Some(name));
    let relu = row("relu").expect("relu is there");
    assert!(relu.contains("float, int") && relu.contains("max-kernels") && relu.contains("larger of 0 and"), "{relu}");
    assert!(row("cumsum").is_some_and(|row| row.contains("exclusive, reverse")), "{list}");
    assert!(row("cast").is_some_and(|row| row.contains("T: ") && row.contains("; U: ")), "{list}");
    let count: usize = list.lines().last().and_then(|line| line.split(' ').next()?.parse().ok()).expect("a count");
    // Besides the kernels: the header, an empty line and the last one.
    assert_eq!(list.lines().count(), count + 3);
    assert!(count > 50);
    assert!(list.lines().all(|line| line == line.trim_end()), "spaces at the end of a line:\n{list}");
}

#[test]
fn one_kernel_is_described_in_full() {
    let text = max(&["ops", "cumsum"]).success();
    for part in [
        "cumsum<T: Number>(y: Out<T, 2>, x: In<T, 2>",
        "a grid of programs: y.dim(0)",
        "y: T, rank 2, written",
        "x: T, rank 2, read",
        "exclusive: bool, default false",
        "T = f16 bf16 f32 f64",
        "crate max-kernels, max-kernels/src/reduction/scan.rs:",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    let matmul = max(&["ops", "matmul"]).success();
    assert!(matmul.contains("tile on GPUs") && matmul.contains("BM = "), "{matmul}");
    assert!(matmul.contains("c.dim(0) / BM x c.dim(1) / BN"), "{matmul}");
}

#[test]
fn a_wrong_name_gives_the_nearest() {
    let error = max(&["ops", "softmx"]).failure(2);
    assert!(error.contains("no kernel is named `softmx` (nearest: `softmax`"), "{error}");
}

#[test]
fn json_has_one_object_a_line() {
    let lines = max(&["ops", "--json"]).success();
    let objects: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    let cumsum = objects.iter().find(|object| object["op"] == "cumsum").expect("cumsum is there");
    assert_eq!(cumsum["operands"][0]["access"], "out");
    assert_eq!(cumsum["params"][0]["name"], "exclusive");
    assert_eq!(cumsum["params"][0]["default"], "false");
    assert_eq!(cumsum["generics"][0]["dtypes"][0], "f16");
    assert_eq!(cumsum["kind"], "program");
}
