//! The text form of a function, for tests: PTX with the blocks' edges, and the marks that barriers are placed by.
//!
//! ```text
//! b2 $L1, from b1 b4:
//!     setp.ge.s64 %p1, %rd4, %rd2;
//!     @%p1 bra $L2;
//! b3, from b2:
//!     ; barrier if: operand 0 written
//!     ; touches: operand 0 written
//!     st.global.f32 [%rd5], %f1;
//! ```

use std::fmt::{self, Display, Formatter};

use super::Function;
use super::barriers::Effect;
use super::cfg::Cfg;

impl Display for Effect {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Touch(touched) => write!(f, "touches: {touched}"),
            Effect::BarrierIf(next) => write!(f, "barrier if: {next}"),
            Effect::Barrier => f.write_str("barrier"),
            Effect::Met => f.write_str("all have met"),
            Effect::InstanceEnd => f.write_str("instance ends"),
        }
    }
}

impl Display for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let cfg = Cfg::of(self);
        for (i, block) in self.blocks.iter().enumerate() {
            write!(f, "b{i}")?;
            let mut text = String::new();
            if let Some(label) = block.label {
                text.push(' ');
                super::print::print_label(&mut text, label);
            }
            f.write_str(&text)?;
            if !cfg.predecessors[i].is_empty() {
                f.write_str(", from")?;
                cfg.predecessors[i].iter().try_for_each(|from| write!(f, " b{from}"))?;
            }
            f.write_str(":\n")?;
            let mut marks = block.marks.iter().peekable();
            for at in 0..=block.insts.len() {
                while let Some(mark) = marks.next_if(|mark| mark.before == at) {
                    writeln!(f, "    ; {}", mark.effect)?;
                }
                let mut line = String::new();
                block.insts.get(at).into_iter().for_each(|&inst| self.print_inst(&mut line, inst));
                f.write_str(&line)?;
            }
        }
        Ok(())
    }
}
