use max::kernel::__private::{Cpu, Target, V3};

fn main() {
    println!("{}", Cpu::<V3>::detached().num_programs(0));
}
