//! The words of the text form.

use super::{ParseError, Parsed, Parser};
use crate::kernel::ir::text::is_identifier;
use crate::steps;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Token<'a> {
    /// A word or number: letters, digits, `_`, and a leading `-`, `.` and exponent signs in numbers.
    Word(&'a str),
    /// `%7`
    Value(&'a str),
    /// A quoted string, with its escapes.
    Quoted(&'a str),
    Punct(char),
    End,
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Word(w) => write!(f, "`{w}`"),
            Token::Value(w) => write!(f, "`%{w}`"),
            Token::Quoted(w) => write!(f, "`\"{w}\"`"),
            Token::Punct(c) => write!(f, "`{c}`"),
            Token::End => f.write_str("the end of the text"),
        }
    }
}

impl<'a> Parser<'a> {
    pub(super) fn advance(&mut self) -> Token<'a> {
        let before = self.token;
        loop {
            let rest = &self.text[self.next..];
            let trimmed = rest.trim_start();
            self.next += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                break;
            }
            self.next += trimmed.find('\n').unwrap_or(trimmed.len());
        }
        self.start = self.next;
        let rest = &self.text[self.start..];
        let word = |s: &str| s.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(s.len());
        let (token, len) = match rest.chars().next() {
            None => (Token::End, 0),
            Some('%') => {
                let len = word(&rest[1..]);
                (Token::Value(&rest[1..=len]), len + 1)
            }
            Some('"') => {
                let mut escaped = false;
                let close = rest[1..].find(|c| {
                    let closes = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    closes
                });
                match close {
                    Some(len) => (Token::Quoted(&rest[1..=len]), len + 2),
                    None => (Token::Punct('"'), 1),
                }
            }
            Some('-') if word(&rest[1..]) > 0 => number(rest),
            // In `#3.0`, the operand's index is not a decimal fraction.
            Some(c) if c.is_ascii_digit() && before != Token::Punct('#') => number(rest),
            Some(c) if c.is_ascii_alphanumeric() || c == '_' => {
                let len = word(rest);
                (Token::Word(&rest[..len]), len)
            }
            Some(c) => (Token::Punct(c), c.len_utf8()),
        };
        self.next = self.start + len;
        self.token = token;
        before
    }

    /// Line and column of the present token. The text is counted on from where that was asked before: once in all.
    pub(super) fn place(&self) -> (u32, u32) {
        let (mut from, mut line, mut column) = self.counted.get();
        // The grid is read twice.
        if from > self.start {
            (from, line, column) = (0, 1, 1);
        }
        for c in self.text[from..self.start].chars() {
            steps::count(1);
            (line, column) = if c == '\n' { (line.saturating_add(1), 1) } else { (line, column.saturating_add(1)) };
        }
        self.counted.set((self.start, line, column));
        (line, column)
    }

    pub(super) fn fail<T>(&self, expected: impl Into<String>) -> Parsed<T> {
        let (line, column) = self.place();
        Err(ParseError { line, column, expected: expected.into(), found: self.token.to_string() })
    }

    pub(super) fn is_punct(&self, c: char) -> bool {
        self.token == Token::Punct(c)
    }

    pub(super) fn eat(&mut self, c: char) -> bool {
        let found = self.is_punct(c);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn punct(&mut self, c: char) -> Parsed<()> {
        if self.eat(c) { Ok(()) } else { self.fail(format!("`{c}`")) }
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.token == Token::Word(word);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn keyword(&mut self, word: &str) -> Parsed<()> {
        if self.eat_word(word) { Ok(()) } else { self.fail(format!("`{word}`")) }
    }

    /// A word that `meaning` knows.
    pub(super) fn word<T>(&mut self, expected: &str, meaning: impl FnOnce(&'a str) -> Option<T>) -> Parsed<T> {
        if let Token::Word(word) = self.token
            && let Some(it) = meaning(word)
        {
            self.advance();
            return Ok(it);
        }
        self.fail(expected)
    }

    pub(super) fn number<T: std::str::FromStr>(&mut self) -> Parsed<T> {
        self.word("a number", |w| w.parse().ok())
    }

    pub(super) fn quoted(&mut self) -> Parsed<String> {
        let Token::Quoted(raw) = self.token else {
            return self.fail("a quoted string");
        };
        self.advance();
        let mut text = String::with_capacity(raw.len());
        let mut chars = raw.chars();
        while let Some(c) = chars.next() {
            text.push(match (c, c == '\\') {
                (_, true) => match chars.next() {
                    Some('n') => '\n',
                    Some(c) => c,
                    None => '\\',
                },
                (c, false) => c,
            });
        }
        Ok(text)
    }

    pub(super) fn name(&mut self) -> Parsed<String> {
        match self.token {
            Token::Word(word) if is_identifier(word) => {
                self.advance();
                Ok(word.to_owned())
            }
            Token::Quoted(_) => self.quoted(),
            Token::Word(_) | Token::Value(_) | Token::Punct(_) | Token::End => self.fail("a name"),
        }
    }
}

/// A number: digits, a point and an exponent, hexadecimal, a tile's shape, or `-inf`.
fn number(text: &str) -> (Token<'_>, usize) {
    let bytes = text.as_bytes();
    let mut len = 1;
    while let Some(&c) = bytes.get(len) {
        let digit_after = bytes.get(len + 1).is_some_and(u8::is_ascii_digit);
        let in_number = match c {
            b'.' => digit_after,
            b'-' | b'+' => bytes[len - 1] == b'e' && digit_after && !text.starts_with("0x"),
            c => c.is_ascii_alphanumeric() || c == b'_',
        };
        if !in_number {
            break;
        }
        len += 1;
    }
    (Token::Word(&text[..len]), len)
}
