//! Shape rules and mistakes of attention.

use super::*;
use crate::graph::ops::AttentionOptions;

fn shown(types: [TensorType; 3], options: AttentionOptions) -> String {
    let (_, [q, k, v]) = inputs(types);
    match ops::attention(&q, &k, &v, options) {
        Ok(value) => value.shape().to_string(),
        Err(error) => {
            assert!(error.location().to_string().contains("tests/attention.rs"), "{error}");
            error.kind().to_string()
        }
    }
}

#[test]
fn heads_share_keys_and_values_may_be_wider() {
    let shape = |q: Shape, k: Shape, v: Shape| shown([q, k, v].map(f32_type), AttentionOptions::default());
    assert_eq!(shape((4, 9, 8).into(), (4, 7, 8).into(), (4, 7, 8).into()), "[4, 9, 8]");
    assert_eq!(shape(("b", 4, 1, 8).into(), ("b", 2, "n", 8).into(), ("b", 2, "n", 5).into()), "[b, 4, 1, 5]");
    assert_eq!(shape(("h", "m", 8).into(), ("h", "n", 8).into(), ("h", "n", 8).into()), "[h, m, 8]");
    let options = AttentionOptions { scale: Some(1.0), causal: true, ..Default::default() };
    let types = [("b", 6, "m", "d"), ("b", 2, "m", "d"), ("b", 2, "m", "d")].map(f32_type);
    assert_eq!(shown(types, options), "[b, 6, m, d]");
}

#[test]
fn mistakes_say_what_does_not_fit() {
    let case = |q: Shape, k: Shape, v: Shape, part: &str| {
        let text = shown([q, k, v].map(f32_type), AttentionOptions::default());
        assert!(text.contains(part), "{text}");
    };
    let k = || Shape::from((2, 7, 8));
    case((9, 8).into(), (7, 8).into(), (7, 8).into(), "the query has rank 2, but must have at least 3 axes");
    case((2, 9, 8).into(), (1, 2, 7, 8).into(), k(), "the key has rank 4, but must have 3 axes");
    case((2, 9, 16).into(), k(), k(), "the head sizes of query and key must be equal, got 16 and 8");
    case((2, 9, 8).into(), k(), (1, 7, 8).into(), "the heads of key and value must be equal, got 2 and 1");
    case((2, 9, 8).into(), k(), (2, 6, 8).into(), "the numbers of keys and of values must be equal, got 7 and 6");
    case((3, 9, 8).into(), k(), k(), "the number of heads is 3, but must be a multiple of the number of key heads");
    case(("h", 9, 8).into(), k(), k(), "the number of heads is h");
    case((2, 9, "d").into(), (2, 7, "d").into(), (2, 7, "d").into(), "the head size is d, but must be static where no");
    let batches = [(3, 2, 9, 8), (4, 2, 9, 8), (4, 2, 9, 8)].map(f32_type);
    assert!(shown(batches, AttentionOptions::default()).contains("of query and key must be equal, got 3 and 4"));
    let wide = [(); 3].map(|()| TensorType::new(DType::F64, (2, 9, 8), DeviceRef::CPU));
    assert!(shown(wide, AttentionOptions::default()).contains("dtype float64, but the op takes float16, bfloat16"));
}
