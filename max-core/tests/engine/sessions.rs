//! Sessions with threads of their own, and models executed by many threads at once.

use crate::kernels::*;
use max::engine::{InferenceSession, Model};
use max::graph::{Graph, ops};

fn model(session: &InferenceSession) -> Model {
    let graph = Graph::build("g", [f32s(("n", "m"))], |_, inputs| {
        let x = inputs[0].tensor()?;
        let y = ops::softmax(x, 0)? + x;
        Ok([ops::sum(&y, 1)?, y.t()?])
    });
    session.load(&graph.unwrap()).unwrap()
}

#[test]
fn many_threads_execute_one_model() {
    fn is_shareable<T: Send + Sync + Clone + 'static>(_: &T) {}
    let model = model(&InferenceSession::new());
    is_shareable(&model);
    let inputs = [count(&[3, 5]), count(&[64, 64]), count(&[300, 500])];
    let expected: Vec<Vec<Vec<f32>>> =
        inputs.iter().map(|x| model.execute(x).unwrap().iter().map(values).collect()).collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (model, inputs, expected) = (model.clone(), &inputs, &expected);
            scope.spawn(move || {
                for round in 0..30 {
                    let which = (thread + round) % inputs.len();
                    let outputs = model.execute(&inputs[which]).unwrap();
                    let actual: Vec<Vec<f32>> = outputs.iter().map(values).collect();
                    assert!(actual == expected[which], "input {which}");
                }
            });
        }
    });
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let x = count(&[400, 300]);
    let mut results: Vec<Vec<Vec<f32>>> = Vec::new();
    for num_threads in [1, 2, 3] {
        let model = model(&InferenceSession::new().num_threads(num_threads).unwrap());
        results.push(model.execute(&x).unwrap().iter().map(values).collect());
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_session_describes_itself_and_its_models() {
    let session = InferenceSession::new();
    let model = model(&session);
    assert_eq!(session.devices(), model.devices());
    assert_eq!(
        format!("{model:?}"),
        "Model(g(input0: float32[n, m]) -> (output0: float32[n, 1], output1: float32[m, n]))"
    );
    assert_eq!((model.input_devices().len(), model.output_devices().len()), (1, 2));
    assert!(model.input_devices()[0].is_host());
}

/// A panic elsewhere leaves them whole, so that a server may catch it and go on.
#[test]
fn graphs_and_models_outlive_caught_panics() {
    fn is_unwind_safe<T: std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    is_unwind_safe::<max::graph::Graph>();
    is_unwind_safe::<max::graph::Value>();
    is_unwind_safe::<max::graph::GraphError>();
    is_unwind_safe::<InferenceSession>();
    is_unwind_safe::<max::engine::Model>();
    is_unwind_safe::<max::driver::Tensor>();
    is_unwind_safe::<max::driver::Device>();
}
