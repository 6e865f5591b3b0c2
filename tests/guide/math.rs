//! The code of `docs/guide/10-math.md`.

use max::prelude::*;

use crate::{close, f32s, run};

/// The derivative of the error function at `x`: `2 / √π * e^(-x²)`.
#[kernel(op = "guide_erf_slope")]
fn erf_slope<T: Float>(x: T) -> T {
    (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn slopes_of_the_error_function() {
    let x = [0.0f32, 0.5, -1.5, 4.0];
    let exact = x.map(|x| std::f32::consts::FRAC_2_SQRT_PI * (-x * x).exp());
    close(&run("guide_erf_slope", &[f32s(&x)], &[DType::F32], ())[0], &exact);
}

/// The errors on the page are the ones that the tests of the functions hold.
#[test]
fn the_page_states_the_tested_errors() {
    let page = include_str!("../../docs/guide/10-math.md");
    let tests = include_str!("../../max-core/tests/math/accuracy.rs");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split('|').map(|cell| cell.trim().trim_matches('`')).collect())
        .collect();
    assert!(rows.len() > 15);
    // `powf` takes two numbers; its errors are measured along fixed bases and exponents.
    for row in rows.into_iter().filter(|row| row[1] != "powf") {
        let function = row[1];
        let called = |kind: &str| tests.lines().find(|line| line.contains(&format!("{kind}(\"{function}\",")));
        if let Some(case) = called("of_two") {
            assert!(row[2] == row[3] && case.ends_with(&format!(", {}),", row[2])), "{row:?} is not {case}");
            continue;
        }
        let case = called("case");
        let case = case.unwrap_or_else(|| panic!("{} is not tested", row[1]));
        assert!(case.contains(&format!(", {}, {})", row[2], row[3])), "{row:?} is not {case}");
    }
}
