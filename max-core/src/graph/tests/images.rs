//! Shape rules and mistakes of convolutions, pooling, padding, repetition and sequences.

use super::*;
use crate::graph::ops::{ConvInputLayout, ConvOptions, FilterLayout, PadMode, PoolOptions};

fn shown(value: Result<TensorValue, GraphError>) -> String {
    match value {
        Ok(value) => value.shape().to_string(),
        Err(error) => {
            assert!(error.location().to_string().contains("tests/images.rs"), "{error}");
            error.kind().to_string()
        }
    }
}

#[test]
fn convolutions_have_shapes_and_mistakes() {
    let (_, [x, w, wide, tall]) = inputs([
        f32_type(("n", 7, 9, 8)),
        f32_type((3, 2, 4, 6)),
        f32_type(("n", 7, "w", 4)),
        f32_type(("n", "h", 9, 4)),
    ]);
    let one = ConvOptions::<2>::default();
    let groups = ConvOptions { groups: 2, ..one };
    assert_eq!(shown(ops::conv2d(&x, &w, None, groups)), "[n, 5, 8, 6]");
    let padding = [[1, 0], [2, 3]];
    let all = ConvOptions { stride: [2, 3], dilation: [2, 1], padding, groups: 2, ..one };
    assert_eq!(shown(ops::conv2d(&x, &w, None, all)), "[n, 2, 5, 6]");
    assert_eq!(shown(ops::conv2d(&wide, &w, None, one)), "[n, 5, w - 1, 6]");

    let case = |options, part: &str| {
        let text = shown(ops::conv2d(&x, &w, None, options));
        assert!(text.contains(part), "{text}");
    };
    case(one, "the input's channels and the filter's, times the groups must be equal, got 8 and 4");
    case(ConvOptions { groups: 4, ..one }, "`groups` is 4, but must be a divisor of the filter's 6 features");
    case(ConvOptions { groups: 0, ..one }, "`groups` is 0");
    case(ConvOptions { stride: [1, 0], ..groups }, "`stride` is [1, 0], but must be at least 1");
    case(ConvOptions { dilation: [-1, 1], ..groups }, "`dilation` is [-1, 1]");
    case(
        ConvOptions { padding: [[0, -1], [0, 0]], ..groups },
        "`padding` is [[0, -1], [0, 0]], but must be at least 0",
    );
    case(ConvOptions { dilation: [4, 1], ..groups }, "the padded input");
    assert_eq!(shown(ops::conv2d(&tall, &w, None, one)), "[n, h - 2, 8, 6]");
    // Steps and paddings of any size, whose windows end past every integer.
    for (stride, padding, dilation) in [(i64::MAX / 8, i64::MAX / 4, 1), (1, i64::MAX / 2, 1), (1, 0, i64::MAX)] {
        let far = ConvOptions { stride: [1, stride], padding: [[0, 0], [padding; 2]], dilation: [1, dilation], ..one };
        assert!(ops::conv2d(&tall, &w, None, far).is_err(), "{far:?}");
    }
    let wider = ops::conv2d(&wide, &w, None, ConvOptions { stride: [1, 2], ..one });
    assert_eq!(shown(wider), "[n, 5, w / 2, 6]");
    let pool = PoolOptions { stride: [2, 2], padding: [1, 1], ..PoolOptions::default() };
    assert_eq!(shown(ops::max_pool2d(&wide, [3, 3], pool)), "[n, 4, (w + 1) / 2, 4]");
    let text = shown(ops::max_pool2d(&wide, [1, 1], PoolOptions { ceil_mode: true, ..pool }));
    assert!(text.contains("static, as with `ceil_mode` the last window could begin outside"), "{text}");
    let symbolic_filter = ops::rebind(&w, ("r", 2, 4, 6), "").unwrap();
    assert!(
        shown(ops::conv2d(&wide, &symbolic_filter, None, one))
            .contains("a size of the filter is r, but must be static")
    );
    // The layouts of PyTorch.
    let planes = ConvOptions { input_layout: ConvInputLayout::Nchw, filter_layout: FilterLayout::Fcrs, ..one };
    let (image, filter) = (x.permute([0, 3, 1, 2]).unwrap(), w.permute([3, 2, 0, 1]).unwrap());
    assert_eq!(shown(ops::conv2d(&image, &filter, None, ConvOptions { groups: 2, ..planes })), "[n, 6, 5, 8]");
    let wrong = ConvOptions { filter_layout: FilterLayout::Fcqrs, ..one };
    assert!(shown(ops::conv2d(&x, &w, None, wrong)).contains("5 axes, as its layout Fcqrs"));
    let pool = PoolOptions { input_layout: ConvInputLayout::Nchw, ..PoolOptions::default() };
    assert_eq!(shown(ops::max_pool2d(&image, [2, 3], pool)), "[n, 8, 6, 7]");
    assert_eq!(shown(ops::avg_pool2d(&image, [2, 3], pool, true)), "[n, 8, 6, 7]");
    let text = shown(ops::conv2d(w.reshape((3, 2, 24)).unwrap(), &w, None, one));
    assert!(text.contains("the input has rank 3") || text.contains("4 axes"), "{text}");
    assert!(ops::conv2d(&x, &w, Some(&w), groups).is_err());
    assert!(ops::conv2d(x.cast(DType::I32).unwrap(), w.cast(DType::I32).unwrap(), None, groups).is_err());
}

#[test]
fn volumes_and_transposed_convolutions_have_shapes_and_mistakes() {
    let (_, [x, w, image, filter]) = inputs([
        f32_type(("n", 5, 6, 7, 3)),
        f32_type((3, 3, 3, 3, 4)),
        f32_type(("n", 4, 5, 3)),
        f32_type((3, 3, 6, 3)),
    ]);
    let options = ConvOptions::<3> { stride: [2, 1, 1], padding: [[1, 1]; 3], ..ConvOptions::default() };
    assert_eq!(shown(ops::conv3d(&x, &w, None, options)), "[n, 3, 6, 7, 4]");
    assert!(ops::conv3d(&image, &w, None, options).is_err());

    let options = ConvOptions::<2> { stride: [2, 2], ..ConvOptions::default() };
    assert_eq!(shown(ops::conv2d_transpose(&image, &filter, None, options, [0, 1])), "[n, 9, 12, 6]");
    let cut = ConvOptions { padding: [[1, 0], [0, 2]], ..options };
    assert_eq!(shown(ops::conv2d_transpose(&image, &filter, None, cut, [0, 0])), "[n, 8, 9, 6]");
    let case = |options, output_paddings, part: &str| {
        let text = shown(ops::conv2d_transpose(&image, &filter, None, options, output_paddings));
        assert!(text.contains(part), "{text}");
    };
    case(ConvOptions { padding: [[5, 5], [0, 0]], ..options }, [0, 0], "`padding` is 10, but must be at most 9");
    let divisor = "`groups` is 2, but must be at least 1, and a divisor of the filter's channels, 3";
    case(ConvOptions { groups: 2, ..options }, [0, 0], divisor);
    let groups = ConvOptions { groups: 3, ..options };
    assert_eq!(shown(ops::conv2d_transpose(&image, &filter, None, groups, [0, 0])), "[n, 9, 11, 18]");
    case(options, [-1, 0], "`output_paddings` is [-1, 0]");
}

#[test]
fn pooling_has_shapes_and_mistakes() {
    let (_, [x, symbolic]) = inputs([f32_type(("n", 8, 9, 4)), f32_type(("n", 8, "w", 4))]);
    let pool = |options| shown(ops::max_pool2d(&x, [3, 2], options));
    let one = PoolOptions::default();
    assert_eq!(pool(one), "[n, 6, 8, 4]");
    assert_eq!(pool(PoolOptions { stride: [2, 2], ..one }), "[n, 3, 4, 4]");
    assert_eq!(pool(PoolOptions { stride: [2, 2], ceil_mode: true, ..one }), "[n, 4, 5, 4]");
    assert_eq!(pool(PoolOptions { dilation: [2, 3], padding: [1, 0], ..one }), "[n, 6, 6, 4]");
    for (options, part) in [
        (PoolOptions { dilation: [4, 1], ..one }, "the size of the padded axis"),
        (PoolOptions { stride: [0, 1], ..one }, "`stride` is [0, 1], but must be at least 1"),
        (PoolOptions { padding: [0, -1], ..one }, "`padding` is [0, -1], but must be at least 0"),
    ] {
        let text = pool(options);
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(shown(ops::max_pool2d(&symbolic, [2, 2], one)), "[n, 7, w - 1, 4]");
    assert!(shown(ops::max_pool2d(&x, [0, 2], one)).contains("`kernel_size` is [0, 2]"));
    assert!(ops::avg_pool2d(x.cast(DType::I32).unwrap(), [2, 2], one, true).is_err());
    assert!(ops::max_pool2d(x.reshape(("n", 8, 36)).unwrap(), [2, 2], one).is_err());
}

#[test]
fn padding_has_shapes_and_mistakes() {
    let (_, [x]) = inputs([f32_type(("n", 3))]);
    let zero = PadMode::Constant(0.0.into());
    assert_eq!(shown(ops::pad(&x, [1, 0, 2, 2], zero)), "[n + 1, 7]");
    assert_eq!(shown(ops::pad(&x, [0, 0, 2, 2], PadMode::Reflect)), "[n, 7]");
    assert_eq!(shown(ops::pad(&x, [0; 4], PadMode::Edge)), "[n, 3]");
    assert!(shown(ops::pad(&x, [0, 0, 3, 0], PadMode::Reflect)).contains("`paddings` is 3"));
    assert!(shown(ops::pad(&x, [1, 2], zero)).contains("two numbers of at least 0 for each of 2 axes"));
    assert!(shown(ops::pad(&x, [0, 0, 0, -1], zero)).contains("at least 0"));
    assert!(ops::pad(x.cast(DType::U8).unwrap(), [0; 4], PadMode::Constant(0.5.into())).is_ok());
    assert!(ops::pad(x.cast(DType::U8).unwrap(), [0, 0, 0, 1], PadMode::Constant(0.5.into())).is_err());
}

#[test]
fn repetition_has_shapes_and_mistakes() {
    let (_, [x]) = inputs([f32_type(("n", 6))]);
    assert_eq!(shown(ops::tile(&x, [2, 0])), "[n * 2, 0]");
    assert!(shown(ops::tile(&x, [2])).contains("a number of at least 0 for each of 2 axes"));
    assert_eq!(shown(ops::repeat_interleave(&x, 3, Some(-1))), "[n, 18]");
    assert_eq!(shown(ops::repeat_interleave(&x, 3, None)), "[n * 18]");
    assert!(shown(ops::repeat_interleave(&x, 0, None)).contains("`repeats` is 0"));
    assert_eq!(shown(ops::as_interleaved_complex(&x)), "[n, 3, 2]");
    assert!(shown(ops::as_interleaved_complex(x.t().unwrap())).contains("even"));
    assert_eq!(shown(ops::band_part(&x, Some(1), None, false)), "[n, 6]");
    assert!(shown(ops::band_part(&x, None, Some(7), false)).contains("`num_upper` is 7"));
    assert!(shown(ops::band_part(&x, Some(-1), None, false)).contains("`num_lower` is -1"));
    let square = ops::reshape(&x, (-1, 2, 3)).unwrap();
    assert_eq!(shown(ops::band_part(&square, Some(1), Some(0), true)), "[n, 2, 3]");
}

#[test]
fn sequences_have_numbers_and_mistakes() {
    let graph = Graph::new("sequences", ());
    let range =
        |start: f64, stop: f64, step: f64| shown(ops::range(&graph, start, stop, step, DType::F32, DeviceRef::CPU));
    assert_eq!(range(0.0, 1.0, 0.3), "[4]");
    assert_eq!(range(1.0, 1.0, 0.3), "[0]");
    assert!(range(0.0, 1.0, -0.3).contains("`step` is -0.3"));
    assert!(range(0.0, f64::NAN, 1.0).contains("`step`"));
    let range =
        |start: i64, stop: i64, step: i64| shown(ops::range(&graph, start, stop, step, DType::U8, DeviceRef::CPU));
    assert_eq!(range(0, 255, 100), "[3]");
    assert_eq!(range(3, 3, -1), "[0]");
    assert!(range(0, 5, 0).contains("`step` is 0"));
    assert!(range(0, i64::MAX, 1).contains("`stop`"));
    assert!(range(250, 260, 1).contains("256"));
    let window = |length, dtype| shown(ops::hann_window(&graph, length, DeviceRef::CPU, true, dtype));
    assert_eq!(window(1, DType::F16), "[1]");
    assert_eq!(window(0, DType::F32), "[0]");
    assert!(window(4, DType::I32).contains("floats"));
}

#[test]
fn gathers_by_vectors_have_shapes_and_mistakes() {
    let int = |shape: (&'static str, i64)| TensorType::new(DType::I32, shape, DeviceRef::CPU);
    let (_, [x, pairs, symbolic]) = inputs([f32_type((4, 5, "n")), int(("m", 2)), f32_type(("n", 5))]);
    assert_eq!(shown(ops::gather_nd(&x, &pairs, 0)), "[m, n]");
    let shared = ops::broadcast_to(&pairs, ("m", 2)).and_then(|pairs| ops::reshape(pairs, ("m", 1, 2)));
    assert!(shown(ops::gather_nd(&x, shared.unwrap(), 1)).contains("the input's first dims and the indices'"));
    assert!(shown(ops::gather_nd(&x, &pairs, 2)).contains("`batch_dims` is 2"));
    assert_eq!(shown(ops::gather_nd(&symbolic, &pairs, 0)), "[m]");
    assert!(shown(ops::gather_nd(&x, pairs.t().unwrap(), 0)).contains("static"));
    assert!(ops::gather_nd(&x, &symbolic, 0).is_err());
}
