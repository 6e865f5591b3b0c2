//! Works of random shapes: a list of works can be tuned to, a seed that nobody has seen cannot.
//!
//! Sizes are drawn uniformly in their logarithm, so that small, cache-resident and large works come equally often. Half of
//! the dims are powers of two, the others multiples of nothing.

/// Elements of the largest operand.
const LARGEST: f64 = 16e6;
/// Operations of the largest work.
const MOST_FLOPS: f64 = 3e10;
/// Forms with rows and columns.
const ROWS: [&str; 12] = [
    "relu",
    "add",
    "chain5",
    "chain_gelu_tanh",
    "softmax",
    "layer_norm",
    "rms_norm",
    "sum_rows",
    "sum_cols",
    "argmax",
    "transpose",
    "cumsum",
];
/// All forms, in the order in which they are drawn.
const FORMS: usize = ROWS.len() + 8;

/// The names of `count` works; the same for the same seed.
pub fn names(seed: u64, count: usize) -> Vec<String> {
    let mut draw = Draw { state: seed };
    (0..count).map(|i| name(i % FORMS, &mut draw)).collect()
}

fn name(form: usize, draw: &mut Draw) -> String {
    if let Some(form) = ROWS.get(form) {
        let [rows, columns] = draw.rows();
        return format!("{form}_{rows}x{columns}");
    }
    match form - ROWS.len() {
        0 => {
            let [rows, columns] = draw.rows();
            let columns = columns.max(64);
            let rows = rows.min((LARGEST / columns as f64) as u64).max(1);
            format!("top_k_{rows}x{columns}_k{}", draw.size(1, 256).min(columns))
        }
        1 => format!("gather_{}x{}_{}", draw.size(100, 60_000), draw.size(1, 2048), draw.size(1, 8192)),
        product @ (2 | 3) => {
            let [m, k, n] = draw.sizes([(1, 4096), (8, 8192), (8, 8192)], |[m, k, n]| 2.0 * m * k * n);
            format!("matmul_{}_{m}x{k}x{n}", if product == 2 { "f32" } else { "bf16" })
        }
        4 => {
            let of = [(2, 128), (1, 512), (16, 512), (1, 512)];
            let [b, m, k, n] = draw.sizes(of, |[b, m, k, n]| 2.0 * b * m * k * n);
            format!("batch_matmul_{b}x{m}x{k}x{n}")
        }
        5 => {
            let [m, d, f] = draw.sizes([(1, 512), (64, 2048), (128, 8192)], |[m, d, f]| 4.0 * m * d * f);
            format!("mlp_gelu_{m}x{d}x{f}")
        }
        6 => {
            let [h, s, d] = draw.sizes([(1, 32), (8, 2048), (32, 128)], |[h, s, d]| 4.0 * h * s * s * d);
            format!("attention_h{h}_s{s}_d{d}")
        }
        _ => {
            let (side, channels, filters) = (draw.size(7, 112), draw.size(3, 256), draw.size(8, 256));
            let taps = draw.one_of([1, 3, 3, 5]);
            format!("conv2d_1x{side}x{side}x{channels}_{taps}x{taps}x{filters}")
        }
    }
}

/// Random numbers by SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
struct Draw {
    state: u64,
}

impl Draw {
    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From 0 to below 1.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn one_of(&mut self, numbers: [u64; 4]) -> u64 {
        numbers[(self.bits() % 4) as usize]
    }

    /// Uniform in its logarithm.
    fn between(&mut self, lo: f64, hi: f64) -> f64 {
        (lo.ln() + self.unit() * (hi.ln() - lo.ln())).exp()
    }

    /// A dim; half of them are powers of two.
    fn size(&mut self, lo: u64, hi: u64) -> u64 {
        let n = self.between(lo as f64, hi as f64).round().max(1.0);
        if self.unit() < 0.5 { n as u64 } else { n.log2().round().exp2() as u64 }
    }

    /// Rows and columns.
    fn rows(&mut self) -> [u64; 2] {
        let all = self.between(64.0, LARGEST);
        let least = self.one_of([1, 16, 16, 128]);
        let columns = self.size(least, 100_000).min(all as u64);
        [((all / columns as f64) as u64).max(1), columns]
    }

    /// Dims within limits, of a work that is not too large.
    fn sizes<const N: usize>(&mut self, limits: [(u64, u64); N], flops: impl Fn([f64; N]) -> f64) -> [u64; N] {
        loop {
            let sizes = limits.map(|(lo, hi)| self.size(lo, hi));
            if flops(sizes.map(|n| n as f64)) <= MOST_FLOPS {
                return sizes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_its_works() {
        let works = names(7, 40);
        assert_eq!(works, names(7, 40));
        assert_eq!(works[..3], names(7, 3));
        assert_ne!(works, names(8, 40));
        let forms = |i: usize| works[i].split('_').next();
        assert!((0..20).all(|i| forms(i) == forms(i + 20)), "{works:?}");
    }

    #[test]
    fn no_work_is_too_large() {
        for name in names(3, 400).iter().filter(|name| name.starts_with("softmax")) {
            let sizes = name.trim_start_matches("softmax_").split('x').map(|n| n.parse::<f64>().unwrap());
            assert!(sizes.product::<f64>() <= LARGEST, "{name}");
        }
    }
}
