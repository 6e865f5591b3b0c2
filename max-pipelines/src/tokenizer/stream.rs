//! [`TextStream`]: the text of tokens as they come, in whole characters, up to a stop sequence.

use super::TextTokenizer;
use crate::error::Result;

/// The text that tokens make so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextStream {
    tokens: Vec<u32>,
    /// Tokens before this are text already; those from `start` on are decoded together with the next, since a decoder may join
    /// neighbours.
    start: usize,
    end: usize,
    text: String,
    /// How much of the text was given out.
    given: usize,
    stopped: bool,
}

impl TextStream {
    /// Adds a token; `true` if the text has a stop sequence now, at which it ends.
    pub fn push(&mut self, token: u32, tokenizer: &TextTokenizer, stop: &[String]) -> Result<bool> {
        self.tokens.push(token);
        self.decode(tokenizer, false)?;
        self.cut(stop);
        Ok(self.stopped)
    }

    /// The end: characters that are not whole are given as they are.
    pub fn finish(&mut self, tokenizer: &TextTokenizer, stop: &[String]) -> Result<()> {
        if !self.stopped {
            self.decode(tokenizer, true)?;
            self.cut(stop);
        }
        self.stopped = true;
        Ok(())
    }

    fn decode(&mut self, tokenizer: &TextTokenizer, all: bool) -> Result<()> {
        let before = tokenizer.decode(&self.tokens[self.start..self.end])?;
        let now = tokenizer.decode(&self.tokens[self.start..])?;
        // A replacement character at the end is a character whose other bytes are yet to come.
        if let Some(new) = now.strip_prefix(&before).filter(|new| !new.is_empty())
            && (all || !new.ends_with('\u{fffd}'))
        {
            self.text.push_str(new);
            (self.start, self.end) = (self.end, self.tokens.len());
        }
        Ok(())
    }

    fn cut(&mut self, stop: &[String]) {
        let found = stop.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| self.text.find(stop.as_str())).min();
        if let Some(at) = found.filter(|_| !self.stopped) {
            self.text.truncate(at);
            self.stopped = true;
        }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What is new and cannot be the beginning of a stop sequence.
    pub fn take(&mut self, stop: &[String]) -> &str {
        let held = if self.stopped { 0 } else { stop.iter().map(|stop| overlap(&self.text, stop)).max().unwrap_or(0) };
        let from = self.given.min(self.text.len());
        self.given = self.text.len().saturating_sub(held).max(from);
        &self.text[from..self.given]
    }
}

/// The bytes at the end of `text` that `stop` begins with.
fn overlap(text: &str, stop: &str) -> usize {
    let starts = stop.char_indices().map(|(at, _)| at).chain([stop.len()]).rev();
    starts.filter(|at| text.ends_with(&stop[..*at])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_may_be_a_stop_sequence_is_held_back() {
        let stop = ["END".to_owned()];
        let mut stream = TextStream { text: "aE".into(), ..TextStream::default() };
        stream.cut(&stop);
        assert_eq!(stream.take(&stop), "a");
        stream.text.push_str("Né");
        assert_eq!(stream.take(&stop), "ENé");
        stream.text.push_str("xEND and more");
        stream.cut(&stop);
        assert_eq!(stream.take(&stop), "x");
        assert!(stream.stopped);
    }
}
