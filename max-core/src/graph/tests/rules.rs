//! Shape and dtype rules of the ops.

use super::*;
use crate::driver::{SliceIndex, Tensor};
use crate::graph::ops::ConstantData;
use DType::*;

fn shape_of(value: Result<TensorValue, GraphError>) -> String {
    value.map_or_else(|error| format!("error: {:?}", error.kind()), |value| value.shape().to_string())
}

fn type_of(value: Result<TensorValue, GraphError>) -> String {
    value.map_or("error".to_owned(), |value| value.ty().to_string())
}

#[test]
fn every_unary_op_follows_its_row() {
    for row in ops::UNARY {
        for dtype in [Bool, I32, F16] {
            assert_eq!(row.rule.accepts(dtype), unary(row.name, dtype).is_ok(), "{} of {dtype}", row.name);
            if let Ok(value) = unary(row.name, dtype) {
                assert_eq!(value.ty(), &TensorType::new(row.rule.result(dtype), ("n", 3), DeviceRef::CPU));
            }
        }
    }
    fn unary(name: &str, dtype: DType) -> Result<TensorValue, GraphError> {
        let x = tensor(dtype, ("n", 3));
        match name {
            "abs" => x.abs(),
            "acos" => x.acos(),
            "atanh" => x.atanh(),
            "ceil" => x.ceil(),
            "cos" => x.cos(),
            "erf" => x.erf(),
            "exp" => x.exp(),
            "floor" => x.floor(),
            "is_inf" => x.is_inf(),
            "is_nan" => x.is_nan(),
            "log" => x.log(),
            "log1p" => x.log1p(),
            "logical_not" => x.logical_not(),
            "negate" => x.negate(),
            "relu" => x.relu(),
            "round" => x.round(),
            "rsqrt" => x.rsqrt(),
            "sigmoid" => x.sigmoid(),
            "silu" => x.silu(),
            "sin" => x.sin(),
            "sqrt" => x.sqrt(),
            "tanh" => x.tanh(),
            "trunc" => x.trunc(),
            other => panic!("no test calls {other}"),
        }
    }
}

#[test]
fn binary_ops_broadcast_and_promote() {
    let (_, [x, row, column, small]) =
        inputs([f32_type(("n", 3)), f32_type((3,)), f32_type(("n", 1)), TensorType::new(U8, (1, 1), DeviceRef::CPU)]);
    assert_eq!(type_of(ops::add(&x, &row)), "float32[n, 3]");
    assert_eq!(type_of(ops::pow(&row, &column)), "float32[n, 3]");
    assert_eq!(type_of(ops::mul(&small, &x)), "float32[n, 3]");
    assert_eq!(type_of(x.gt(0)), "bool[n, 3]");
    assert_eq!(type_of(x.le(&small)), "bool[n, 3]");
    assert_eq!(type_of(x.eq_(&column)), "bool[n, 3]");
    assert_eq!(type_of(ops::maximum(&x, 0.0)), "float32[n, 3]");
    assert_eq!(type_of(ops::where_(x.gt(0).unwrap(), &row, 0.0)), "float32[n, 3]");
    assert_eq!(type_of(x.gt(0).and_then(|c| ops::where_(c, 1.0, 0.0))), "error");
}

#[test]
fn division_of_integers_is_in_float64() {
    assert_eq!(type_of(ops::div(tensor(U8, [2]), 2)), "float64[2]");
    assert_eq!(type_of(ops::div(tensor(F16, [2]), 2)), "float16[2]");
    assert_eq!(type_of(ops::div(tensor(Bool, [2]), true)), "error");
    assert_eq!(type_of(ops::mod_(tensor(I8, [2]), 2)), "int8[2]");
}

#[test]
fn numbers_take_the_tensors_dtype_if_it_holds_them() {
    let cases: [(DType, Scalar, bool); 18] = [
        (F32, 1.into(), true),
        (F32, 16_777_217.into(), false),
        (F64, 16_777_217.into(), true),
        (BF16, 257.into(), false),
        (BF16, 0.1.into(), true),
        (F16, 1e6.into(), false),
        (F16, f64::INFINITY.into(), true),
        (F8E4M3FN, 448.0.into(), true),
        (F8E4M3FN, 500.0.into(), false),
        (F8E4M3FN, f64::INFINITY.into(), false),
        (U8, 255.into(), true),
        (U8, (-1).into(), false),
        (I64, u64::MAX.into(), false),
        (U64, u64::MAX.into(), true),
        (I32, 1.0.into(), false),
        (I32, true.into(), true),
        (Bool, true.into(), true),
        (Bool, 1.into(), false),
    ];
    for (dtype, value, fits) in cases {
        let result = ops::equal(tensor(dtype, [1]), Operand::Scalar(value));
        assert_eq!(result.is_ok(), fits, "{value} as {dtype}");
    }
}

#[test]
fn matmul_ranks() {
    let cases: [(&[usize], &[usize], &str); 9] = [
        (&[4, 5], &[5, 6], "[4, 6]"),
        (&[5], &[5], "[]"),
        (&[3, 5], &[5], "[3]"),
        (&[5], &[5, 2], "[2]"),
        (&[2, 1, 4, 5], &[3, 5, 6], "[2, 3, 4, 6]"),
        (&[7, 4, 5], &[5, 6], "[7, 4, 6]"),
        (&[5], &[3, 5, 6], "[3, 6]"),
        (&[0, 5], &[5, 6], "[0, 6]"),
        (&[4, 0], &[0, 6], "[4, 6]"),
    ];
    for (a, b, expected) in cases {
        let (_, [a, b]) = inputs([f32_type(a), f32_type(b)]);
        assert_eq!(shape_of(a.matmul(&b)), expected, "{a:?} with {b:?}");
    }
    let (_, [a, b]) = inputs([f32_type(("n", "k")), f32_type(("k", "m"))]);
    assert_eq!(shape_of(a.matmul(&b)), "[n, m]");
    assert!(b.matmul(&a).is_err());
    assert!(a.matmul(2.0).is_err());
}

#[test]
fn scaled_products_of_8_bit_floats() {
    let (e4m3, e5m2) = (DType::F8E4M3FN, DType::F8E5M2);
    let ty = |dtype, dims: &[usize]| TensorType::new(dtype, dims, DeviceRef::CPU);
    let product = |types: [TensorType; 4]| {
        let (_, [x, w, x_scale, w_scale]) = inputs(types);
        type_of(ops::matmul_static_scaled_float8(&x, &w, &x_scale, &w_scale))
    };
    let scale = || ty(F32, &[]);
    assert_eq!(product([ty(e4m3, &[4, 8]), ty(e4m3, &[6, 8]), scale(), ty(F32, &[1])]), "bfloat16[4, 6]");
    assert_eq!(product([ty(e5m2, &[0, 8]), ty(e5m2, &[6, 8]), ty(F32, &[1]), scale()]), "bfloat16[0, 6]");
    for (x, w, x_scale, w_scale) in [
        (ty(e4m3, &[4, 8]), ty(e5m2, &[6, 8]), scale(), scale()),
        (ty(F32, &[4, 8]), ty(F32, &[6, 8]), scale(), scale()),
        (ty(DType::F8E4M3FNUZ, &[4, 8]), ty(DType::F8E4M3FNUZ, &[6, 8]), scale(), scale()),
        (ty(e4m3, &[4, 8]), ty(e4m3, &[8, 6]), scale(), scale()),
        (ty(e4m3, &[2, 4, 8]), ty(e4m3, &[6, 8]), scale(), scale()),
        (ty(e4m3, &[4, 8]), ty(e4m3, &[8]), scale(), scale()),
        (ty(e4m3, &[4, 8]), ty(e4m3, &[6, 8]), ty(F32, &[2]), scale()),
        (ty(e4m3, &[4, 8]), ty(e4m3, &[6, 8]), scale(), ty(F32, &[1, 1])),
        (ty(e4m3, &[4, 8]), ty(e4m3, &[6, 8]), scale(), ty(DType::BF16, &[])),
    ] {
        assert_eq!(product([x, w, x_scale, w_scale]), "error");
    }
}

#[test]
fn reductions_keep_the_axis() {
    let x = tensor(I32, ("n", 3, 4));
    assert_eq!(type_of(x.sum(-1)), "int32[n, 3, 1]");
    assert_eq!(type_of(x.mean(0)), "int32[1, 3, 4]");
    assert_eq!(type_of(x.argmax(1)), "int64[n, 1, 4]");
    assert_eq!(type_of(x.max(3)), "error");
    assert_eq!(type_of(tensor(Bool, [2]).sum(0)), "error");
    assert_eq!(type_of(tensor(F32, [0]).sum(0)), "float32[1]");
    assert_eq!(type_of(tensor(F32, [0]).max(0)), "error");
    assert_eq!(type_of(tensor(F32, [2, 8]).stdev(1)), "float32[2, 1]");
    assert_eq!(type_of(ops::softmax(tensor(F32, [2, 8]), 0)), "float32[2, 8]");
    assert_eq!(type_of(ops::softmax(tensor(F32, ()), 0)), "error");
}

#[test]
fn reshapes_keep_the_number_of_elements() {
    let x = tensor(F32, ("n", 6));
    let n = Dim::from("n");
    assert_eq!(shape_of(x.reshape(("n", -1, 2))), "[n, 3, 2]");
    assert_eq!(shape_of(x.reshape([-1])), "[n * 6]");
    assert_eq!(shape_of(x.reshape([&n * 2, 3.into()])), "[n * 2, 3]");
    assert_eq!(shape_of(x.reshape((-1, 3))), "[n * 2, 3]");
    for bad in [Shape::from(("n", 5)), Shape::from((-1, 4)), Shape::from((-1, -1)), Shape::from(("m", 6))] {
        assert!(x.reshape(bad.clone()).is_err(), "{bad}");
    }
    assert_eq!(shape_of(tensor(F32, [0, 3]).reshape([-1])), "[0]");
    assert_eq!(shape_of(tensor(F32, ()).reshape([1, 1])), "[1, 1]");
    assert!(tensor(F32, [0, 3]).reshape([0, -1]).is_err());
}

#[test]
fn views_move_and_merge_axes() {
    let x = tensor(F32, (2, "n", 4));
    assert_eq!(shape_of(x.transpose(0, -1)), "[4, n, 2]");
    assert_eq!(shape_of(x.permute([1, 2, 0])), "[n, 4, 2]");
    assert!(x.permute([0, 0, 1]).is_err());
    assert!(x.permute([0, 1]).is_err());
    assert_eq!(shape_of(x.flatten(0, -1)), "[n * 8]");
    assert_eq!(shape_of(x.flatten(1, 2)), "[2, n * 4]");
    assert!(x.flatten(2, 1).is_err());
    assert_eq!(shape_of(tensor(F32, ()).flatten(0, -1)), "[1]");
    assert_eq!(shape_of(x.unsqueeze(-1)), "[2, n, 4, 1]");
    assert_eq!(shape_of(x.unsqueeze(0)), "[1, 2, n, 4]");
    assert!(x.unsqueeze(4).is_err());
    assert!(x.squeeze(1).is_err());
    assert_eq!(shape_of(tensor(F32, [3, 1, 4]).squeeze(1)), "[3, 4]");
    assert_eq!(shape_of(tensor(F32, [3, 1]).broadcast_to([2, 3, 4])), "[2, 3, 4]");
    assert!(tensor(F32, [3, 2]).broadcast_to([3, 4]).is_err());
    assert!(
        shape_of(ops::outer(tensor_pair().0, tensor_pair().1))
            .starts_with("error: an operand belongs to another graph, `test`;")
    );
}

fn tensor_pair() -> (TensorValue, TensorValue) {
    (tensor(F32, [2]), tensor(F32, [3]))
}

#[test]
fn slices_are_those_of_numpy() {
    let range = |start, stop, step| SliceIndex::Range { start, stop, step };
    let all = SliceIndex::from(..);
    let cases: [(&[SliceIndex], &str); 12] = [
        (&[], "[4, 5, 6]"),
        (&[SliceIndex::from(1..3)], "[2, 5, 6]"),
        (&[SliceIndex::from(1)], "[5, 6]"),
        (&[SliceIndex::Ellipsis, SliceIndex::NewAxis, all], "[4, 5, 1, 6]"),
        (&[SliceIndex::Ellipsis, range(Some(0), Some(4), 2)], "[4, 5, 2]"),
        (&[SliceIndex::from(1..), range(None, None, -2), SliceIndex::from(3)], "[3, 3]"),
        (&[SliceIndex::from(-2..)], "[2, 5, 6]"),
        (&[SliceIndex::from(2..2)], "[0, 5, 6]"),
        (&[SliceIndex::from(3..99)], "[1, 5, 6]"),
        (&[range(Some(3), Some(0), -1)], "[3, 5, 6]"),
        (&[SliceIndex::from(-1), SliceIndex::Ellipsis, SliceIndex::from(0)], "[5]"),
        (&[range(None, None, 7), all, range(None, None, -7)], "[1, 5, 1]"),
    ];
    for (indices, expected) in cases {
        assert_eq!(shape_of(tensor(F32, [4, 5, 6]).slice_tensor(indices)), expected, "{indices:?}");
    }
    let bad: [&[SliceIndex]; 4] = [
        &[SliceIndex::from(4)],
        &[range(None, None, 0)],
        &[all, all, all, all],
        &[SliceIndex::Ellipsis, SliceIndex::Ellipsis],
    ];
    for indices in bad {
        assert!(tensor(F32, [4, 5, 6]).slice_tensor(indices).is_err(), "{indices:?}");
    }
    let symbolic = tensor(F32, ("n", 2));
    assert_eq!(shape_of(symbolic.slice_tensor([range(None, None, 3)])), "[(n + 2) / 3, 2]");
    assert_eq!(shape_of(symbolic.slice_tensor([range(None, None, -1)])), "[n, 2]");
    assert_eq!(shape_of(symbolic.slice_tensor([SliceIndex::from(-1)])), "[2]");
    let n = Dim::from("n");
    let cases: [(DimSlice, &str); 12] = [
        ((1..).into(), "[n - 1, 2]"),
        ((-1..).into(), "[1, 2]"),
        ((..4).into(), "[4, 2]"),
        ((..-1).into(), "[n - 1, 2]"),
        (DimSlice::range(2, -3), "[n - 5, 2]"),
        (DimSlice::range(3, 1), "[0, 2]"),
        ((0..).into(), "[n, 2]"),
        ((..n.clone()).into(), "[n, 2]"),
        ((&n / 2..).into(), "[n - (n / 2), 2]"),
        (DimSlice::range(1, &n - 1).step_by(2), "[((n + 1) / 2) - 1, 2]"),
        (DimSlice::range(-2, 0).step_by(-3), "[n / 3, 2]"),
        (n.into(), "[2]"),
    ];
    for (index, expected) in cases {
        assert_eq!(shape_of(symbolic.slice_tensor([&index])), expected, "{index}");
    }
    let error = symbolic.slice_tensor([DimSlice::range(1, "n").step_by(0)]).unwrap_err().to_string();
    assert!(error.contains("`indices` is 1..n by 0, but must be a range with a step other than 0"), "{error}");
    let error = symbolic.slice_tensor([..Dim::from("m")]).unwrap_err().to_string();
    assert!(error.contains("dim `m` needs the size of `m`, which no input binds"), "{error}");
}

#[test]
fn concat_split_stack_and_gather() {
    let (_, [a, b, i]) = inputs([f32_type(("n", 2)), f32_type((3, 2)), TensorType::new(I32, (7, 1), DeviceRef::CPU)]);
    assert_eq!(shape_of(ops::concat([&a, &b], 0)), "[n + 3, 2]");
    assert!(ops::concat([&a, &b], 1).is_err());
    assert!(ops::concat(Vec::<TensorValue>::new(), 0).is_err());
    assert_eq!(shape_of(ops::stack([&a, &a, &a], -1)), "[n, 2, 3]");
    assert!(ops::stack([&a, &b], 0).is_err());
    let parts = ops::split(&b, [1, 0, 2], 0).unwrap();
    assert_eq!(parts.iter().map(|part| part.shape().to_string()).collect::<Vec<_>>(), ["[1, 2]", "[0, 2]", "[2, 2]"]);
    assert!(ops::split(&b, [1, 1], 0).is_err());
    assert!(ops::split(&b, [4, -1], 0).is_err());
    assert_eq!(ops::chunk(&b, 3, 0).unwrap().len(), 3);
    assert!(ops::chunk(&b, 2, 0).is_err());
    assert!(ops::chunk(&b, 0, 0).is_err());
    assert_eq!(shape_of(ops::gather(&a, &i, 0)), "[7, 1, 2]");
    assert_eq!(shape_of(ops::gather(&a, &i, -1)), "[n, 7, 1]");
    assert!(ops::gather(&a, &b, 0).is_err());
}

#[test]
fn rebind_asserts_sizes_and_gives_new_names_one() {
    let x = tensor(F32, ("n", 4));
    let renamed = x.rebind(("m", 4), "m is n").unwrap();
    assert_eq!(shape_of(renamed.reshape((4, "m"))), "[4, m]");
    assert_eq!(shape_of(x.rebind((8, 4), "")), "[8, 4]");
    assert!(x.rebind(("n", 5), "").is_err());
    assert!(x.rebind(("n",), "").is_err());
    assert!(x.rebind([Dim::from("k") * 2, 4.into()], "").is_err());
}

#[test]
fn constants_convert_exactly_or_not_at_all() {
    let graph = Graph::new("constants", ());
    let make = |value: ConstantData, dtype| type_of(ops::constant(&graph, value, dtype, DeviceRef::CPU));
    assert_eq!(make([[1, 2, 3], [4, 5, 6]].into(), I8), "int8[2, 3]");
    assert_eq!(make([[[0.5]; 2]; 3].into(), BF16), "bfloat16[3, 2, 1]");
    assert_eq!(make(Vec::<f32>::new().into(), F32), "float32[0]");
    assert_eq!(make([1, 300].into(), U8), "error");
    assert_eq!(make(0.5.into(), I32), "error");
    assert_eq!(make([true, false].into(), F32), "float32[2]");
    let strided = Tensor::from_slice(&[1i32, 2, 3, 4, 5, 6], [2, 3]).unwrap().transpose(0, 1).unwrap();
    let x = ops::constant(&graph, &strided, F32, DeviceRef::CPU).unwrap();
    assert_eq!(x.shape(), &Shape::from([3, 2]));
    assert_eq!(type_of(ops::constant(&graph, strided, I32, DeviceRef::gpu(2))), "int32[3, 2] on gpu:2");
    let text = graph.to_string();
    assert!(text.contains("constant [1.0, 4.0, 2.0, 5.0, 3.0, 6.0] : float32[3, 2]"), "{text}");
    assert!(text.contains("constant [1, 4, 2, 5, 3, 6] : int32[3, 2] on gpu:2"), "{text}");
}

#[test]
fn symbols_are_numbered_inputs_first() {
    let types = [f32_type(("b", "a")), f32_type((3, "c"))];
    let (graph, [x, _]) = inputs(types.clone());
    let renamed = x.rebind(("z", "a"), "").unwrap();
    graph.output(renamed).unwrap();
    let data = graph.finished().unwrap();
    let table = data.symbol_table();
    let matcher = ShapeMatcher::new(&types.map(|ty| ty.shape)).unwrap();
    let names = |symbols: &Symbols| (0..symbols.len()).map(|i| symbols.name(i).to_owned()).collect::<Vec<_>>();
    assert_eq!(names(matcher.symbols()), ["b", "a", "c"]);
    assert_eq!(names(&table), ["b", "a", "c", "z"]);
}

#[test]
fn graphs_and_values_cross_threads() {
    fn check<T: Send + Sync>() {}
    check::<Graph>();
    check::<TensorValue>();
    check::<GraphError>();
}
