//! The code of `docs/guide/13-ir-and-ptx.md`.

use max::prelude::*;

/// `x + value`.
#[kernel(op = "guide_add_value")]
fn add_value<T: Number>(x: T, #[param] value: i64) -> T {
    x + T::from_i64(value)
}

fn ir() -> String {
    add_value::def().ir_text(&[DType::F32], None)
}

fn ptx() -> Result<String, Box<dyn std::error::Error>> {
    let kernel = max::kernel::ir::parse(&ir())?;
    let target = max::kernel::ptx::Target { sm: 80, arch_specific: false };
    Ok(max::kernel::ptx::write(&kernel, max::kernel::ptx::Options::new(target))?.text)
}

/// The page shows what is printed, up to the lines of this file; of the PTX, parts of it.
#[test]
fn the_page_shows_what_is_printed() {
    let page = include_str!("../../docs/guide/13-ir-and-ptx.md");
    let positions_gone =
        |text: &str| text.split_whitespace().filter(|word| !word.starts_with('@')).collect::<Vec<_>>().join(" ");
    assert!(positions_gone(page).contains(&positions_gone(&ir())), "{}", ir());
    let ptx = ptx().unwrap();
    let shown = page.split("```text\n").find(|block| block.starts_with(".version")).unwrap();
    let parts = shown.split("```").next().unwrap().split("    …\n");
    for part in parts.filter(|part| !part.is_empty()) {
        assert!(ptx.contains(part), "{part} is not in\n{ptx}");
    }
}
