//! `vprintf`: the format and the values of one lane as text.

use crate::exec::{Halt, Machine, split, trouble};
use crate::fault::FaultKind;
use crate::parse::syntax::Space;
use crate::warp::Warp;

impl Machine<'_> {
    /// What one lane prints; `format` and `values` are the places of the addresses in its local memory.
    pub fn printed(&mut self, warp: &Warp, lane: usize, format: u64, values: u64) -> Result<String, Halt> {
        let [format, values] =
            [self.word(warp, lane, Space::Local, format)?, self.word(warp, lane, Space::Local, values)?];
        let mut text = Vec::new();
        for i in 0.. {
            let (space, at) = split(Space::Generic, format + i);
            match self.read(warp, lane, space, at, 1, false)? {
                [0] => break,
                byte => text.extend_from_slice(byte),
            }
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let refused = |what: &str| {
            let kind = FaultKind::Print { format: text.clone(), what: what.to_owned() };
            trouble(kind, lane as u32)
        };
        let (mut out, mut given) = (String::new(), 0);
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once('%') {
            out += before;
            if let Some(after) = after.strip_prefix('%') {
                out.push('%');
                rest = after;
                continue;
            }
            let end =
                after.find(|c: char| c.is_ascii_alphabetic() && c != 'l').ok_or_else(|| refused("no conversion"))?;
            let (how, left) = after.split_at(end + 1);
            rest = left;
            // Of the types that C passes, those of 8 bytes.
            let (space, at) = split(Space::Generic, values + given);
            let bits = self.word(warp, lane, space, at)?;
            given += 8;
            match how {
                "lld" => out += &(bits as i64).to_string(),
                "llu" => out += &bits.to_string(),
                "llx" => out += &format!("{bits:x}"),
                _ => {
                    let digits = how.strip_prefix('.').and_then(|how| how.strip_suffix('g')?.parse().ok());
                    let digits = digits.ok_or_else(|| refused(how))?;
                    out += &general(f64::from_bits(bits), digits);
                }
            }
        }
        Ok(out + rest)
    }

    fn word(&mut self, warp: &Warp, lane: usize, space: Space, at: u64) -> Result<u64, Halt> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.read(warp, lane, space, at, 8, false)?);
        Ok(u64::from_le_bytes(bytes))
    }
}

/// `%.{digits}g`: as few digits as say it, in scientific form where the exponent is below -4 or at least `digits`.
fn general(x: f64, digits: usize) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x < 0.0 { "-inf" } else { "inf" }.to_owned();
    }
    let digits = digits.max(1);
    let text = format!("{x:.*e}", digits - 1);
    let Some((significand, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let short =
        |s: &str| if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.').to_owned() } else { s.to_owned() };
    if exponent < -4 || exponent >= digits as i32 {
        return format!("{}e{}{:02}", short(significand), if exponent < 0 { "-" } else { "+" }, exponent.abs());
    }
    short(&format!("{x:.*}", (digits as i32 - 1 - exponent) as usize))
}
