//! The `max` command over the built-in kernels.

fn main() {
    max_cli::main()
}
