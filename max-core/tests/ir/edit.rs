//! Faults that tests make in PTX: what is done to a line of it.

/// What is done to a line.
#[derive(Clone, Copy, Debug)]
pub enum Edit {
    /// It is left out.
    Drop,
    /// One text in it becomes another.
    Replace(&'static str, &'static str),
    /// Two of its registers change places: those of these numbers among all of the line.
    Swap(usize, usize),
    /// It is executed under no condition.
    Always,
    /// It is executed under the opposite condition.
    Negate,
}

/// The registers of a line, as ranges of it.
fn registers(line: &str) -> Vec<std::ops::Range<usize>> {
    let ends = |from: usize| line[from + 1..].find(|c: char| !c.is_alphanumeric()).map_or(line.len(), |n| from + 1 + n);
    line.match_indices('%').map(|(at, _)| at..ends(at)).collect()
}

impl Edit {
    /// The changed line, if there is something to change.
    fn apply(self, line: &str) -> Option<String> {
        match self {
            Edit::Drop => Some(String::new()),
            Edit::Replace(from, to) => line.contains(from).then(|| line.replacen(from, to, 1)),
            Edit::Swap(a, b) => {
                let all = registers(line);
                let (a, b) = (all.get(a)?.clone(), all.get(b)?.clone());
                let swapped =
                    [&line[..a.start], &line[b.clone()], &line[a.end..b.start], &line[a], &line[b.end..]].concat();
                (swapped != line).then_some(swapped)
            }
            Edit::Always => {
                let (condition, rest) = line.trim_start().split_once(' ')?;
                condition.starts_with('@').then(|| rest.to_owned())
            }
            Edit::Negate => line.contains("@%").then(|| line.replacen("@%", "@!%", 1)),
        }
    }

    /// The text with the change in the `nth` of the lines with `line`, of which `*` stands for any part, if there is one.
    pub fn made(self, text: &str, line: &str, nth: usize) -> Option<String> {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let matches = |text: &str| {
            let mut rest = Some(text);
            line.split('*').for_each(|part| rest = rest.and_then(|r| Some(r.split_once(part)?.1)));
            rest.is_some()
        };
        let line = lines.iter_mut().filter(|line| matches(line)).nth(nth)?;
        *line = self.apply(line)?;
        Some(lines.join("\n") + "\n")
    }
}
