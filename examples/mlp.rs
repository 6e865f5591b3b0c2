//! A network trained elsewhere: XOR, with its weights from a safetensors file.

use max::driver::DeviceRef;
use max::dtype::DType;
use max::functional as F;
use max::graph::TensorType;
use max::graph::weights::SafetensorWeights;
use max::nn::{Forward, Linear, Mode, Module, ModuleExt};
use max::tensor::Tensor;

#[derive(Module)]
struct Xor {
    hidden: Linear,
    out: Linear,
}

impl Forward for Xor {
    fn forward(&self, x: &Tensor) -> max::Result<Tensor, max::graph::GraphError> {
        self.out.call(&F::relu(self.hidden.call(x)?)?)
    }
}

/// A safetensors file: the length of a header, the header, the data.
fn trained() -> Vec<u8> {
    let header = r#"{"hidden.bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "hidden.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},
        "out.bias":{"dtype":"F32","shape":[1],"data_offsets":[24,28]},
        "out.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[28,36]}}"#;
    let numbers = [0.0f32, -1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, -2.0];
    let data = numbers.iter().flat_map(|number| number.to_le_bytes());
    (header.len() as u64).to_le_bytes().into_iter().chain(header.bytes()).chain(data).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/target");
    std::fs::create_dir_all(folder)?;
    let path = format!("{folder}/xor.safetensors");
    std::fs::write(&path, trained())?;

    let mut network = Xor { hidden: Linear::new(2, 2)?, out: Linear::new(2, 1)? };
    network.load_state_dict(&SafetensorWeights::open([&path])?, Mode::Strict)?;
    print!("{}", network.tree());

    let x = Tensor::constant([[0.0f32, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])?;
    let y = network.call(&x)?;
    println!("{y}");
    assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0]);

    let model = network.compile(&TensorType::new(DType::F32, ("batch", 2), DeviceRef::CPU))?;
    assert_eq!(model.execute(&x.driver_tensor()?)?[0].to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0]);
    println!("{}", model.signature());
    Ok(())
}
