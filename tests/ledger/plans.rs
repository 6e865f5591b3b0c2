//! The plans of the golden graphs on the host and on GPUs, and the PTX of what they are fused into there.
//!
//! The compiler prints plans where `MAX_DUMP` asks for it, so each device has a process of its own. The host's plans are
//! those of portable code and four threads, which every machine has.

use std::collections::BTreeMap;
use std::process::Command;

use max::prelude::*;

use crate::graphs::ALL;
use crate::{Entries, Hash, hold};

/// Says to a child where its models run: `cpu`, or on the GPU.
const DEVICE: &str = "LEDGER_DEVICE";

/// Loads every golden graph on a device, which is `cpu` or else the fake driver's.
fn load(device: &str) {
    let gpu = || Device::accelerator(0).expect("the fake driver's device");
    let device = if device == "cpu" { Device::cpu() } else { gpu() };
    let session = InferenceSession::with_devices([device]).num_threads(4).expect("four threads");
    for golden in ALL {
        let graph = golden.build((&device).into()).unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        let model = session.load(&graph).unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        assert_eq!(model.output_metadata().len(), graph.output_types().len(), "{}", golden.name);
    }
}

/// Loads every golden graph in a process of its own, in which `tests/support/fake-cuda` stands as the driver of a GPU of
/// this compute capability: what it printed, with the PTX that the driver was given.
fn load_in_child(device: &str, sm: &str) -> (String, Vec<String>) {
    let [driver, modules] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let test = std::env::current_exe().expect("a path");
    std::os::unix::fs::symlink(test.with_file_name("libfake_cuda.so"), driver.path().join("libcuda.so.1"))
        .expect("a link");
    let mut command = Command::new(test);
    command.args(["plans::plans_are_those_of_the_ledger", "--exact", "--nocapture"]).env(DEVICE, device);
    command.env("MAX_DUMP", "memory").env("MAX_CPU_LEVEL", "portable").env_remove("MAX_POISON");
    command.env("LD_LIBRARY_PATH", driver.path()).env("FAKE_CUDA_SM", sm).env("FAKE_CUDA_PTX", modules.path());
    let output = command.output().expect("a child");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{device}: {}\n{printed}", output.status);
    let files = std::fs::read_dir(modules.path()).expect("a readable folder").map(|file| file.expect("a file").path());
    (printed, files.map(|path| std::fs::read_to_string(path).expect("PTX")).collect())
}

/// The plan of each graph in what a process printed: what its last pass made of it.
fn plans(printed: &str) -> BTreeMap<&str, &str> {
    let after = |section: &'_ str| -> Option<(usize, usize)> {
        let head = section.find(" after `memory`:")?;
        Some((head, section.find('\n')? + 1))
    };
    let sections = printed.split("--- ").filter_map(|section| {
        let (name, plan) = after(section)?;
        Some((&section[..name], &section[plan..]))
    });
    sections.collect()
}

/// The entry of a module.
fn entry(module: &str) -> &str {
    let name = module.split_once(".entry ").expect("an entry").1;
    name.split(|c: char| c == '(' || c.is_whitespace()).next().unwrap_or(name)
}

#[test]
fn plans_are_those_of_the_ledger() {
    if let Ok(device) = std::env::var(DEVICE) {
        return load(&device);
    }
    let (mut of_plans, mut of_modules) = (Entries::new(), Entries::new());
    for (device, sm) in [("cpu", "80"), ("sm_80", "80"), ("sm_90a", "90"), ("sm_100", "100")] {
        let (printed, modules) = load_in_child(device, sm);
        let plans = plans(&printed);
        for golden in ALL {
            let plan = plans.get(golden.name).unwrap_or_else(|| panic!("no plan of {} on {device}", golden.name));
            of_plans.insert(format!("plan {device} {}", golden.name), Hash::of(plan));
        }
        // Several are of one name: together they are one entry.
        let mut by_entry: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        modules.iter().for_each(|module| by_entry.entry(entry(module)).or_default().push(module));
        for (name, mut modules) in by_entry {
            modules.sort_unstable();
            of_modules.insert(format!("loaded {device} {name} ({})", modules.len()), Hash::of(&modules.concat()));
        }
    }
    assert!(of_modules.len() > 60, "{} entries of modules", of_modules.len());
    hold("plan", &of_plans);
    hold("loaded", &of_modules);
}
