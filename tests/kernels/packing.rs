//! Products of many tiles, which threads pack for each other, some of them while they multiply: every sum is exact.

use half::bf16;
use max::driver::{DeviceRef, SliceIndex, Tensor};
use max::dtype::DType;
use max::engine::{InferenceSession, Model};
use max::graph::{Graph, TensorType, ops};

/// `a[:, 3:] · b[:, 5:]` in `dtype`, of `f32` inputs that it holds.
fn product(dtype: DType, [m, k, n]: [usize; 3]) -> Model {
    let ty = |shape: [usize; 2]| TensorType::new(DType::F32, shape, DeviceRef::CPU);
    let graph = Graph::build("product", [ty([m, k + 3]), ty([k, n + 5])], |_, inputs| {
        let [a, b] = [ops::cast(&inputs[0], dtype)?, ops::cast(&inputs[1], dtype)?];
        let [a, b] =
            [(a, 3), (b, 5)].map(|(x, first)| ops::slice_tensor(x, [SliceIndex::from(..), SliceIndex::from(first..)]));
        ops::matmul(a?, b?)
    });
    InferenceSession::new().load(&graph.unwrap()).unwrap()
}

fn floats(x: &Tensor) -> Vec<f32> {
    match x.dtype() {
        DType::F64 => x.iter::<f64>().unwrap().map(|v| v as f32).collect(),
        DType::BF16 => x.iter::<bf16>().unwrap().map(bf16::to_f32).collect(),
        _ => x.to_vec().unwrap(),
    }
}

#[test]
fn products_of_many_tiles_are_exact() {
    // Wider and deeper than tiles by whole ones and by parts; and results large enough to be written by non-temporal stores, with rows
    // that begin at lines of the cache, and that do not. Then of up to 32 rows, by blocks of about as many, and of rows and columns that
    // are left over of those; and of few columns, which are dot products where K is long.
    let skinny = [
        [17, 1087, 1041],
        [29, 300, 801],
        [32, 70, 1500],
        [25, 33, 1025],
        [18, 1090, 173],
        [66, 700, 64],
        [30, 50, 45],
    ];
    let few = [[131, 1087, 8], [300, 150, 7], [259, 2049, 5], [9, 129, 8], [200, 60, 6], [17, 1100, 4], [130, 33, 1]];
    for [m, k, n] in
        [[400, 1100, 1408], [400, 70, 1416], [130, 2048, 576], [64, 1087, 400]].into_iter().chain(skinny).chain(few)
    {
        let whole = |len: usize, by: usize| -> Vec<i32> { (0..len).map(|i| (i * by % 4099 % 5) as i32 - 2).collect() };
        let (a, b) = (whole(m * (k + 3), 31), whole(k * (n + 5), 57));
        let mut expected = vec![0; m * n];
        for i in 0..m {
            for j in 0..k {
                let left = a[i * (k + 3) + 3 + j];
                let row = &b[j * (n + 5) + 5..][..n];
                expected[i * n..][..n].iter_mut().zip(row).for_each(|(sum, right)| *sum += left * right);
            }
        }
        let [a, b] = [(&a, [m, k + 3]), (&b, [k, n + 5])]
            .map(|(values, shape)| Tensor::from_vec(values.iter().map(|v| *v as f32).collect(), shape).unwrap());
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let found = floats(&product(dtype, [m, k, n]).execute([&a, &b]).unwrap()[0]);
            let round = |v: i32| if dtype == DType::BF16 { bf16::from_f32(v as f32).to_f32() } else { v as f32 };
            let wrong = (0..m * n).find(|i| found[*i] != round(expected[*i]));
            assert_eq!(wrong.map(|i| (i / n, i % n, found[i], expected[i])), None, "{dtype} {m} {k} {n}");
        }
    }
}
