//! Names, state dicts, trees and hooks of modules.

use std::collections::HashMap;

use max::driver::{self, DeviceRef};
use max::dtype::DType;
use max::engine::InferenceSession;
use max::functional as F;
use max::graph::{Graph, TensorType, ops};
use max::nn::{
    Field, Forward, LayerList, LayerNorm, Linear, Mode, Module, ModuleExt, RmsNorm, Sequential, StateDict,
    add_layer_hook, clear_hooks,
};
use max::tensor::Tensor;

#[derive(Module)]
enum Norm {
    Layer(LayerNorm),
    Rms(RmsNorm),
}

#[derive(Module)]
struct Block<L: Field> {
    layers: LayerList<Linear>,
    norm: Norm,
    #[module(name = "proj")]
    last: Option<L>,
    #[module(buffer)]
    steps: Tensor,
    pair: [Linear; 2],
    factor: f64,
    #[module(skip)]
    seen: std::sync::OnceLock<()>,
}

impl<L: Field + Send + Sync + 'static> Forward for Block<L> {
    fn forward(&self, x: &Tensor) -> max::Result<Tensor> {
        let x = self.layers.iter().try_fold(x.clone(), |x, layer| F::relu(layer.call(&x)?))?;
        let x = match &self.norm {
            Norm::Layer(norm) => norm.call(&x)?,
            Norm::Rms(norm) => norm.call(&x)?,
        };
        Ok(x * self.factor)
    }
}

fn linear(from: usize, to: usize) -> max::Result<Linear> {
    Ok(Linear::new(from, to)?.without_bias())
}

fn block() -> max::Result<Block<Linear>> {
    Ok(Block {
        layers: vec![linear(2, 3)?, linear(3, 2)?].into(),
        norm: Norm::Rms(RmsNorm::new(2)?),
        last: Some(linear(2, 2)?),
        steps: Tensor::zeros([1])?,
        pair: [linear(1, 1)?, linear(1, 1)?],
        factor: 0.5,
        seen: Default::default(),
    })
}

#[test]
fn names_are_those_of_pytorch() -> Result<(), max::Error> {
    let block = block()?;
    let names: Vec<String> = block.state_dict().into_iter().map(|(name, _)| name).collect();
    let expected =
        ["layers.0.weight", "layers.1.weight", "norm.weight", "proj.weight", "steps", "pair.0.weight", "pair.1.weight"];
    assert_eq!(names, expected);
    assert_eq!(block.named_buffers().len(), 1);
    assert_eq!(block.num_parameters(), 6 + 6 + 2 + 4 + 2);
    let sequential = Sequential::new().then(linear(2, 2)?).then(LayerNorm::new(2)?.without_bias());
    let names: Vec<String> = sequential.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["0.weight", "1.weight"]);
    let mut parts = Vec::new();
    block.for_each_module(&mut |name, part| parts.push(format!("{name}: {}", part.type_name())));
    assert!(parts.contains(&"layers.1: Linear".to_owned()) && parts.contains(&"norm: RmsNorm".to_owned()), "{parts:?}");
    assert!(block.seen.get().is_none());
    Ok(())
}

#[test]
fn enums_have_the_names_of_their_variant() -> Result<(), max::Error> {
    let with_layer = Block { norm: Norm::Layer(LayerNorm::new(2)?), ..block()? };
    let names =
        |block: &Block<Linear>| block.state_dict().iter().map(|(name, _)| name.to_string()).collect::<Vec<String>>();
    let (layer, rms) = (names(&with_layer), names(&block()?));
    let of_norm = |names: &[String]| names.iter().filter(|name| name.starts_with("norm.")).cloned().collect::<Vec<_>>();
    assert_eq!(
        (of_norm(&layer), of_norm(&rms)),
        (vec!["norm.weight".into(), "norm.bias".into()], vec!["norm.weight".into()])
    );
    Ok(())
}

#[test]
fn trees_print_sizes() -> Result<(), max::Error> {
    let text = block()?.tree().to_string();
    assert!(
        text.starts_with("Block: 20 parameters, 84 bytes\n  layers: LayerList: 12 parameters, 48 bytes\n"),
        "{text}"
    );
    for line in [
        "    0: Linear: 6 parameters, 24 bytes\n",
        "  steps: buffer float32[1]\n",
        "  factor: 0.5\n",
        "    eps: 1e-6\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    Ok(())
}

#[test]
fn state_dicts_are_checked_as_a_whole() -> Result<(), max::Error> {
    let mut module = block()?;
    let before = module.layers[0].weight.to_vec::<f32>()?;
    let mut weights: HashMap<String, driver::Tensor> = HashMap::new();
    for (name, tensor) in module.state_dict().iter() {
        weights.insert(name.to_owned(), driver::Tensor::full(2.0f32, tensor.driver_tensor()?.shape())?);
    }
    let mut wrong = weights.clone();
    wrong.remove("steps");
    wrong.insert("extra".into(), driver::Tensor::scalar(1.0f32)?);
    wrong.insert("proj.weight".into(), driver::Tensor::full(1.0f32, [2, 3])?);
    wrong.insert("norm.weight".into(), driver::Tensor::full(1i64, [2])?);
    let error = module.load_state_dict(&wrong, Mode::Strict).unwrap_err();
    let text = error.to_string();
    for part in [
        "missing: steps",
        "unexpected: extra",
        "proj.weight: float32[2, 2] is wanted, float32[2, 3] is there",
        "norm.weight: float32[2] is wanted, int64[2] is there",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(error.location().file(), file!());
    assert_eq!(module.layers[0].weight.to_vec::<f32>()?, before);
    weights.remove("steps");
    assert!(module.load_state_dict(&weights, Mode::Strict).is_err());
    let report = module.load_state_dict(&weights, Mode::Lenient)?;
    assert_eq!((report.missing, report.unexpected), (vec!["steps".to_owned()], Vec::new()));
    assert_eq!(module.layers[0].weight.to_vec::<f32>()?, [2.0; 6]);
    let copy: StateDict = module.state_dict();
    block()?.load_state_dict(&copy, Mode::Strict)?;
    module.cast(DType::BF16)?;
    module.to(max::driver::DeviceRef::CPU)?;
    assert_eq!(module.state_dict().get("norm.weight").map(Tensor::dtype), Some(DType::BF16));
    Ok(())
}

#[test]
fn hooks_see_and_replace_activations() -> Result<(), max::Error> {
    clear_hooks();
    let module = block()?;
    let names = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let seen = names.clone();
    add_layer_hook(move |layer, input, output| {
        seen.borrow_mut().push(format!("{} {} {}", layer.type_name(), input.shape(), output.shape()));
        (layer.type_name() == "RmsNorm").then(|| output * 0.0)
    });
    let y = module.call(&Tensor::ones([1, 2])?)?;
    assert_eq!(y.to_vec::<f32>()?, [0.0, 0.0]);
    clear_hooks();
    assert_eq!(
        *names.borrow(),
        ["Linear [1, 2] [1, 3]", "Linear [1, 3] [1, 2]", "RmsNorm [1, 2] [1, 2]", "Block [1, 2] [1, 2]"]
    );
    Ok(())
}

#[test]
fn state_dicts_are_saved_bit_for_bit() -> Result<(), max::Error> {
    let folder = std::env::temp_dir().join(format!("max-nn-state-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    let path = folder.join("block.safetensors");
    let mut module = block()?;
    let odd = [f32::NAN, -0.0, f32::MIN_POSITIVE / 4.0, f32::INFINITY];
    module.last = Some(Linear::of(Tensor::from_slice(&odd, [2, 2])?));
    // Another dtype, and what is not computed yet.
    module.steps = (Tensor::constant([3.0f32])? * 2.0).cast(DType::BF16)?;
    module.save(&path)?;
    let mut other = block()?;
    other.steps = other.steps.cast(DType::BF16)?;
    assert_eq!(other.load(&path, Mode::Strict)?.missing, Vec::<String>::new());
    let bits = |module: &Block<Linear>| -> max::Result<Vec<(String, DType, Vec<u8>)>> {
        let bytes = |tensor: &Tensor| {
            let value = tensor.driver_tensor()?;
            let shape = [value.num_bytes()];
            value.view(DType::U8, Some(&shape))?.to_vec::<u8>().map_err(max::graph::GraphError::from)
        };
        module.state_dict().iter().map(|(name, tensor)| Ok((name.to_owned(), tensor.dtype(), bytes(tensor)?))).collect()
    };
    assert_eq!(bits(&module)?, bits(&other)?);
    let read = StateDict::load(&path)?;
    assert_eq!((read.len(), read.get("steps").map(Tensor::dtype)), (module.state_dict().len(), Some(DType::BF16)));
    // What cannot be written leaves what is there.
    let line = line!() + 1;
    let error = module.save(folder.join("none").join("x")).unwrap_err();
    assert_eq!((error.location().file(), error.location().line()), (file!(), line));
    let missing = other.load(folder.join("none"), Mode::Strict).unwrap_err().to_string();
    assert!(missing.contains("none"), "{missing}");
    std::fs::remove_dir_all(&folder).expect("the folder");
    Ok(())
}

#[test]
fn activations_are_recorded_by_name_and_compared() -> Result<(), max::Error> {
    let module = block()?;
    let x = Tensor::from_slice(&[1.0f32, -2.0], [1, 2])?;
    let run = |x: &Tensor| {
        max::nn::record_activations(&module, || {
            module.call(x)?;
            module.layers[0].call(x)
        })
    };
    let (_, first) = run(&x)?;
    let names: Vec<&str> = first.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["layers.0", "layers.1", "norm", "", "layers.0#1"]);
    assert!(max::nn::compare_activations(&first, &run(&x)?.1, 0.0)?.is_empty());
    let (_, other) = run(&(&x * 1.5))?;
    let differences = max::nn::compare_activations(&other, &first, 1e-3)?;
    assert_eq!(differences[0].layer, "layers.0");
    assert!((differences[0].largest - 0.5).abs() < 1e-6 && differences[0].to_string().contains("`layers.0`"));
    // What one run does not have differs without end.
    let none = max::nn::compare_activations(&StateDict::default(), &first, 1.0)?;
    assert!(none.len() == names.len() && none.iter().all(|layer| layer.largest == f64::INFINITY));
    // The hook is gone, also after a panic.
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        max::nn::record_activations(&module, || -> max::Result<()> { panic!("inside") })
    }));
    assert!(caught.is_err());
    let (_, again) = run(&x)?;
    assert_eq!(again.len(), first.len());
    Ok(())
}

#[test]
fn a_subgraph_has_its_weights_by_name_and_leaves_the_module_as_it_was() -> Result<(), Box<dyn std::error::Error>> {
    let model = Sequential::new().then(Linear::new(3, 3)?).then(LayerNorm::new(3)?);
    let mut part = Sequential::new().then(Linear::new(3, 3)?).then(LayerNorm::new(3)?);
    let before = part.forward(&Tensor::ones([1, 3])?)?.to_vec::<f32>()?;
    let ty = TensorType::new(DType::F32, ("batch", 3), DeviceRef::CPU);
    let graph = Graph::new("model", [&ty]);
    // Names with the prefix lose it, and all get that of the call.
    let layer = part.build_subgraph(&graph, "layer", [&ty], "0.", |part, x| part.forward(&x[0]))?;
    graph.output(ops::call(&layer, &graph.inputs()[0], "first.")?)?;
    let state = model.state_dict();
    let renamed =
        state.iter().map(|(name, tensor)| (format!("first.{}", name.trim_start_matches("0.")), tensor.clone()));
    let renamed = StateDict::from(renamed.collect::<Vec<_>>());
    let names: Vec<&str> = renamed.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["first.weight", "first.bias", "first.1.weight", "first.1.bias"]);
    let called = InferenceSession::new().load_with_weights(&graph, &renamed)?;
    let x = driver::Tensor::from_slice(&[0.5f32, -1.0, 2.0, 3.0, 0.25, 1.0], [2, 3])?;
    assert_eq!(called.execute(&x)?[0].to_vec::<f32>()?, model.forward(&(&x).into())?.to_vec::<f32>()?);
    // Also where the layer fails, or panics.
    let wide = TensorType::new(DType::F32, ("batch", 4), DeviceRef::CPU);
    let error = part.build_subgraph(&graph, "layer", [&wide], "", |part, x| part.forward(&x[0])).err().unwrap();
    assert!(error.to_string().contains("float32[batch, 4]"), "{error}");
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        part.build_subgraph(&graph, "layer", [&ty], "", |_, x| {
            if x.len() == 1 { panic!("no layer") } else { Ok(x[0].clone()) }
        })
    }));
    assert!(panics.is_err());
    assert_eq!(part.forward(&Tensor::ones([1, 3])?)?.to_vec::<f32>()?, before);
    Ok(())
}
