//! Patterns of work names: text in which `#` stands for a number and `*` for numbers with `x` between them.

/// The numbers in `name` if it has the form of `pattern`.
pub fn numbers(pattern: &str, name: &str) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    let mut rest = name;
    for part in pattern.chars() {
        match part {
            '#' => rest = number(rest, &mut found)?,
            '*' => {
                rest = number(rest, &mut found)?;
                while let Some(more) = rest.strip_prefix('x') {
                    rest = number(more, &mut found)?;
                }
            }
            literal => rest = rest.strip_prefix(literal)?,
        }
    }
    rest.is_empty().then_some(found)
}

/// The sizes of a shape such as `77x1000`.
pub fn shape(text: &str) -> Option<Vec<usize>> {
    numbers("*", text)
}

/// A shape such as `77x1000`; of rank 0, `1`.
pub fn shape_text(shape: &[usize]) -> String {
    if shape.is_empty() { "1".to_owned() } else { shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x") }
}

fn number<'a>(text: &'a str, found: &mut Vec<usize>) -> Option<&'a str> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    found.push(text[..end].parse().ok()?);
    Some(&text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_by_their_pattern() {
        assert_eq!(numbers("softmax_*", "softmax_77x1000"), Some(vec![77, 1000]));
        assert_eq!(numbers("relu_*", "relu_5"), Some(vec![5]));
        assert_eq!(numbers("top_k_#x#_k#", "top_k_64x50257_k8"), Some(vec![64, 50257, 8]));
        assert_eq!(numbers("attention_h#_s#_d#", "attention_h16_s1024_d64"), Some(vec![16, 1024, 64]));
        for wrong in ["softmax_", "softmax_7x", "softmax_x7", "softmax_7x7_", "softmax_-7", "softmax", "relu_7"] {
            assert_eq!(numbers("softmax_*", wrong), None, "{wrong}");
        }
        // More digits than a size can have.
        assert_eq!(numbers("relu_*", "relu_99999999999999999999999"), None);
    }

    #[test]
    fn shapes_are_written_as_they_are_read() {
        for text in ["5", "77x1000", "2x3x4"] {
            assert_eq!(shape(text).map(|shape| shape_text(&shape)).as_deref(), Some(text));
        }
        assert_eq!(shape_text(&[]), "1");
        assert_eq!(shape("f32"), None);
    }
}
