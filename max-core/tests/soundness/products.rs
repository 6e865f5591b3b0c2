//! Products of tiles that begin anywhere: of panels, of factors that are converted, and by plain loops.

use std::sync::atomic::AtomicUsize;

use max::kernel::prelude::*;
use proptest::prelude::*;

use crate::model::{Array, wrap};
use crate::support::{config, floats, forms, index, indices, results, run, tensor};

#[kernel(op = "soundness_products")]
fn products(
    y: Out<f32, 2>,
    narrow: Out<f32, 2>,
    computed: Out<f32, 2>,
    converted: Out<f32, 2>,
    a: In<f32, 3>,
    b: In<f32, 3>,
    c: In<i8, 2>,
    at: In<i64, 1>,
) {
    let [i, j] = program_id();
    let left = a.select(at.at(4)).tile::<8, 16>(at.at(0), at.at(1));
    let right = b.select(at.at(4));
    y.tile::<8, 32>(i, j).write(dot(left, right.tile::<16, 32>(at.at(2), at.at(3)), Tile::<f32, 8, 32>::zeros()));
    narrow.tile::<8, 5>(i, j).write(dot(left, right.tile::<16, 5>(at.at(2), at.at(3)), Tile::<f32, 8, 5>::zeros()));
    let doubled = left.load() * 2.0;
    let turned = right.tile::<32, 16>(at.at(3), at.at(2)).t();
    computed.tile::<8, 32>(i, j).write(dot(doubled, turned, Tile::<f32, 8, 32>::zeros()));
    let bytes = c.tile::<16, 32>(at.at(2), at.at(3));
    converted.tile::<8, 32>(i, j).write(dot(left, bytes, Tile::<f32, 8, 32>::zeros()));
}

proptest! {
    #![proptest_config(config(160))]

    #[test]
    fn products_are_those_of_the_model(at in [index(), index(), index(), index()], part in -1..3_i64) {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let (a, b) = (Array::new(&[2, 21, 40]), Array::new(&[2, 45, 70]));
        let bytes: Vec<i8> = b.values[..45 * 70].iter().map(|v| *v as i8).collect();
        let [ar, ac, br, bc] = at;
        let operands = [
            results(&[8, 32]),
            results(&[8, 5]),
            results(&[8, 32]),
            results(&[8, 32]),
            floats(&a.dims, &a.values),
            floats(&b.dims, &b.values),
            tensor(&[45, 70], &bytes, 100),
            indices(&[ar, ac, br, bc, part]),
        ];
        let add = |a: i64, b: i64| wrap(i128::from(a) + i128::from(b));
        let left = |i: i64, k: i64| a.at(&[part, add(ar, i), add(ac, k)]);
        let product = |columns: i64, right: &dyn Fn(i64, i64) -> f32| -> Vec<f32> {
            (0..8 * columns)
                .map(|n| (0..16).map(|k| left(n / columns, k) * right(k, n % columns)).sum())
                .collect()
        };
        let plain = |k: i64, j: i64| b.at(&[part, add(br, k), add(bc, j)]);
        let turned = |k: i64, j: i64| 2.0 * b.at(&[part, add(bc, j), add(br, k)]);
        let first = |k: i64, j: i64| b.at(&[0, add(br, k), add(bc, j)]);
        let expected = [product(32, &plain), product(5, &plain), product(32, &turned), product(32, &first)];
        for how in forms(&TIMES, 40) {
            let after = run::<products>(how, &operands, &[1, 1]).map_err(TestCaseError::fail)?;
            for (after, expected) in after.iter().zip(&expected) {
                prop_assert_eq!(&after.values::<f32>(), expected, "{:?}", how);
            }
        }
    }
}
