use max::prelude::*;

fn main() {
    let _library = KernelLibrary::linked().with_extension("null.so");
    let _session = InferenceSession::new().custom_extensions(["null.so"]);
    let _graph = Graph::new("g", [TensorType::new(DType::F32, (1,), DeviceRef::CPU)]).add_extension("null.so");
}
