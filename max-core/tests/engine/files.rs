//! Graphs in texts and files: what is written is read back, and what is damaged is refused.

use crate::kernels::*;
use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::InferenceSession;
use max::graph::{Dim, DimSlice, Graph, GraphErrorKind, Parameters, TensorType, Type, Weight, ops};

/// A graph with every kind of node.
fn everything() -> Graph {
    let flag = TensorType::new(DType::Bool, (), DeviceRef::CPU);
    let types: [Type; 4] = [
        f32_buffer((4, "n")).into(),
        f32s((4, "n")).into(),
        flag.into(),
        TensorType::new(DType::I32, (), DeviceRef::CPU).into(),
    ];
    Graph::build("every \"node\"", types, |graph, inputs| {
        let (buffer, x, flag) = (inputs[0].buffer()?, inputs[1].tensor()?, &inputs[2]);
        let table = ops::constant(graph, Tensor::arange(0.0f32, 20.0, 1.0)?, DType::F32, DeviceRef::CPU)?;
        let small = ops::constant(graph, [f32::NAN, f32::INFINITY, -0.0, 0.1], DType::F32, DeviceRef::CPU)?;
        let weight = graph.add_weight(&Weight::new("a.\"b\"\n", DType::F32, [4], DeviceRef::CPU))?;
        let part = ops::slice_tensor(&table, [DimSlice::from(3..15).step_by(3)])?;
        let sum = ops::add(ops::add(&part, &small)?, &weight)?;
        let column = ops::reshape(&sum, (4, 1))?;
        let wide = ops::concat([ops::add(x, &column)?, x.clone()], 1)?;
        let bound = ops::rebind(&wide, (4, "wide"), "twice\tas wide")?;
        let cut = ops::slice_tensor(
            &bound,
            [DimSlice::from(..), DimSlice::range(Dim::from("n") / 2, Dim::from("wide") - 1)],
        )?;
        let parameters = Parameters::new().with("by", Dim::from("n") + 2);
        let scaled = ops::custom("scale", DeviceRef::CPU, &cut, cut.ty(), parameters)?;
        buffer.store(ops::add(buffer.load()?, x)?)?;
        graph.print("so far");
        buffer.print("buffer")?;
        let rows = graph.add_subgraph("rows", [f32s((4, "k"))], |_, inputs| ops::sum(&inputs[0], 1))?;
        let sums = ops::call(&rows, &scaled[0], "p.")?;
        let chosen = ops::cond(
            flag,
            f32s((4, 1)),
            || Ok(sums[0].clone()),
            || {
                buffer.store_slice(ops::slice_tensor(x, [DimSlice::from(..2)])?, [DimSlice::from(1..3)])?;
                ops::mul(&column, 2.0)
            },
        )?;
        let loops = ops::while_loop(
            (&inputs[3], &chosen[0]),
            |v| ops::greater(3, &v[0]),
            |v| Ok((ops::add(&v[0], 1)?, ops::add(&v[1], &column)?)),
        )?;
        let sizes = ops::to_dims(ops::shape_to_tensor(graph, [Dim::from("n") * 3])?, ("three",))?;
        graph.merge_device_chains();
        let behind = ops::fence([&loops[1], &scaled[0].tensor()?.t()?])?;
        Ok([behind[0].clone(), behind[1].clone(), ops::shape_to_tensor(graph, sizes)?.into()])
    })
    .unwrap()
}

fn weights() -> std::collections::HashMap<String, Tensor> {
    [("a.\"b\"\n".to_owned(), Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [4]).unwrap())].into()
}

#[test]
fn what_is_saved_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graph.max");
    let graph = everything();
    graph.save(&path).unwrap();
    let loaded = Graph::load(&path).unwrap();
    assert_eq!(loaded.to_string(), graph.to_string());
    let session = InferenceSession::new();
    let models =
        [session.load_with_weights(&graph, &weights()).unwrap(), session.load_file(&path, &weights()).unwrap()];
    for (flag, start) in [(true, 0), (false, 5)] {
        let results = models.each_ref().map(|model| {
            let mut buffer = count(&[4, 3]);
            let (flag, start) = (Tensor::full(flag, [0; 0]).unwrap(), Tensor::full(start, [0; 0]).unwrap());
            let mut results = model.execute((&mut buffer, &count(&[4, 3]), &flag, &start)).unwrap();
            results.push(buffer);
            results
        });
        for (a, b) in results[0].iter().zip(&results[1]) {
            assert_eq!((a.shape(), a.to_string()), (b.shape(), b.to_string()));
        }
    }
}

#[test]
fn texts_without_large_constants_are_read_back() {
    let graph = Graph::build("small", [f32s(("n", 2)), f32s((3,))], |graph, inputs| {
        let x = ops::add(&inputs[0], 0.1)?;
        let y = ops::constant(graph, [1, -2], DType::I64, DeviceRef::CPU)?;
        let scaled = ops::custom("scale", DeviceRef::CPU, &x, x.ty(), [("by", 5)])?;
        Ok((scaled[0].clone(), y, ops::reshape(&x, (-1,))?, ops::sum(&inputs[1], 0)?))
    });
    let text = graph.unwrap().to_string();
    assert_eq!(Graph::parse(&text).unwrap().to_string(), text);
    let commented = text.replace('\n', "  // a line\n");
    assert_eq!(Graph::parse(&commented).unwrap().to_string(), text);
}

/// What no op would have added is not read either: a part outside of its tensor would be memory outside of it.
#[test]
fn mistakes_in_texts_are_named() {
    let around = |line: &str| {
        format!("graph g(%0: float32[4, n], %1: buffer float32[4], %2: bool[]) {{\n  {line}\n  return\n}}\n")
    };
    for (line, expected) in [
        (
            "%3 = slice(%0) {start = [2 step 1, 0 step 1]} : float32[3, n]",
            "3 elements from 2 on, by 1, are not inside of 4",
        ),
        ("%3 = slice(%0) {start = [2 step 1]} : float32[2, n]", "where it begins on each axis"),
        ("%3 = slice(%0) {start = [9223372036854775807 step 2, 0 step 1]} : float32[2, n]", "are not inside of 4"),
        (
            "%3 = sliding_window(%0) {axis = 0, step = 2, dilation = 1} : float32[2, 3, n]",
            "2 windows of 3 elements, by 2 and 1, are not inside of 4",
        ),
        (
            "%3 = sliding_window(%0) {axis = 0, step = 9223372036854775807, dilation = 1} : float32[3, 2, n]",
            "are not inside of 4",
        ),
        ("%3 = sliding_window(%0) {axis = 0, step = -1, dilation = 1} : float32[2, 1, n]", "are not inside of 4"),
        ("%3 = sliding_window(%0) {axis = 1, step = 1, dilation = 1} : float32[4, 2, 3]", "its axis is static"),
        ("%3 = sliding_window(%0) {axis = 2, step = 1, dilation = 1} : float32[4, n, 1]", "in place of its axis"),
        ("%3 = sliding_window(%0) {axis = 0, step = 1, dilation = 1} : float32[4, 1]", "in place of its axis"),
        ("%3 = sliding_window(%0) {axis = 0, step = 1} : float32[3, 2, n]", "no `dilation`"),
        ("%3 = reshape(%0) : float32[5, n]", "the number of elements changes"),
        ("%3 = reshape(%0) : float64[4, n]", "differ in dtype"),
        ("%3 = reshape(%1) : float32[4]", "a buffer is read by `buffer_load`"),
        ("%3 = permute(%0) {dims = [0, 0]} : float32[4, 4]", "no permutation"),
        ("%3 = permute(%0) {dims = [7, 0]} : float32[4, 4]", "no permutation"),
        ("%3 = broadcast_to(%0) : float32[4, 7]", "does not broadcast"),
        ("%3 = concat(%0, %0) {axis = 0} : float32[9, n]", "do not add up"),
        ("%3 = concat(%0, %0) {axis = 5} : float32[8, n]", "out of range"),
        ("%3 = relu(%0) {axis = 2} : float32[4, n]", "out of range"),
        ("%3 = relu(%0) : float32[4, m]", "nothing gives `m` a size"),
        ("%3 = relu(%0) : float32[4, -2]", "negative"),
        ("%3 = relu(%0) : float32[4, 99999999999999999999]", "no size"),
        ("%3 = relu(%9) : float32[4, n]", "%9 is not known here"),
        ("%0 = relu(%0) : float32[4, n]", "%0 is there twice"),
        ("%3 = relu(%0) : float23[4, n]", "`float23` is no dtype"),
        ("%3 = relu(%0) : buffer float32[4, n]", "no node makes a buffer"),
        ("%3 = relu(%0, %1) : float32[4, n]", "it is an `effect`"),
        ("buffer_store(%1, %0) effect n3", "another shape"),
        ("%3 = buffer_load(%1) : float32[4]", "it is an `effect`"),
        ("%3 = buffer_load(%1) : float32[4] effect n7", "this is node n3"),
        ("%3 = buffer_load(%1) : float32[4] effect n3 after n3", "n3 is not before n3"),
        ("%3 = constant [1.0, 2.0] : float32[3]", "the constant is no float32[3]"),
        ("%3 = constant [1.0, ...] : float32[3]", "not all in the text"),
        ("%3 = constant 300 : uint8[]", "the constant is no uint8[]"),
        ("%3 = constant @c0 : float32[]", "no constant of the name `c0`"),
        ("%3 = shape_to_tensor [q] : int64[1]", "nothing gives `q` a size"),
        ("bind_dims [q](%0)", "`int64` vector"),
        ("cond(%2)", "expected two regions"),
        ("cond(%0) {\n graph a() { return }\n graph b() { return }\n}", "`bool` scalar"),
        ("cond(%2) {\n graph a() { return }\n graph b(%0: float32[]) { return }\n}", "other inputs"),
        ("%3 = cond(%2) : float32[] {\n graph a() { return }\n graph b() { return }\n}", "other outputs"),
        (
            "%3 = while_loop(%0) : float32[4, n] {\n graph a(%0: float32[4, n]) { return %0 }\n graph b(%0: float32[4, n]) { return %0 }\n}",
            "other outputs",
        ),
        ("%3 = call(%0) : float32[4, n] {\n graph a(%0: float32[n, n]) { return %0 }\n}", "not as the graph's input"),
        ("call(%0)", "no graph that is called"),
        ("print(%0, %0) {label = \"a\"} effect n3", "one tensor"),
        ("print {label = \"a", "without its closing quote"),
        ("return", "expected `}`"),
        ("&", "expected a name"),
    ] {
        let error = Graph::parse(&around(line)).unwrap_err();
        let GraphErrorKind::Text { line: number, reason, .. } = error.kind() else { panic!("{error}") };
        assert!(reason.contains(expected), "{line}: {error}");
        assert!((2..=6).contains(number), "{line}: {error}");
        assert!(error.location().file().ends_with("files.rs"), "{error}");
    }
    let deep = format!("graph g(%0: float32[{}n{}]) {{ return %0 }}", "(".repeat(5000), ")".repeat(5000));
    assert!(Graph::parse(&deep).unwrap_err().to_string().contains("too deep"));
    let deep = "%1 = call() : bool[] { graph a() { ".repeat(5000);
    assert!(Graph::parse(&format!("graph g() {{ {deep}")).unwrap_err().to_string().contains("too deep"));
}

/// Whatever of a text is cut off or changed, reading it ends, with a graph or an error.
#[test]
fn damaged_texts_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graph.max");
    everything().save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let text = everything().to_string().replace(", ...", "");
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        assert!(Graph::parse(&text[..end]).is_err());
    }
    let mut seed = 1_u64;
    let mut random = |limit: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % limit
    };
    let damaged = folder.path().join("damaged.max");
    let mut read = 0;
    for _ in 0..300 {
        let mut changed = bytes.clone();
        for _ in 0..1 + random(3) {
            let at = random(changed.len());
            changed[at] = b"0123456789%[](){}*+-,n\"@ "[random(25)];
        }
        std::fs::write(&damaged, changed).unwrap();
        if let Ok(graph) = Graph::load(&damaged) {
            read += 1;
            let _ = InferenceSession::new().load_with_weights(&graph, &weights());
        }
    }
    assert!(read < 300);
}

#[test]
fn files_that_hold_no_graph_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    assert!(Graph::load(&path).unwrap_err().to_string().contains("x.safetensors"));
    std::fs::write(&path, b"no such file").unwrap();
    assert!(Graph::load(&path).is_err());
    max::graph::weights::save_safetensors(&path, [("x", &count(&[2]))], &Default::default()).unwrap();
    let error = Graph::load(&path).unwrap_err();
    assert!(error.to_string().contains("no file of `Graph::save`"), "{error}");
    let twice = [("x", &count(&[2])), ("x", &count(&[2]))];
    assert!(max::graph::weights::save_safetensors(&path, twice, &Default::default()).is_err());
    let unfinished = Graph::new("g", [f32s((2,))]);
    assert!(unfinished.save(&path).unwrap_err().to_string().contains("no outputs"));
}
