//! The tokens of PTX text, each with its line.

use crate::parse::error::ParseError;

/// One token. Words keep their leading `%`, `$` or `_`; a dotted word
/// (`.global`, `.L2::128B`) is one token without its dot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Word(String),
    Dot(String),
    Int(u64),
    /// An `0f…` literal: the bits of an f32.
    Float(u32),
    /// An `0d…` or decimal literal.
    Double(f64),
    Text(String),
    Punct(char),
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Word(w) => write!(f, "`{w}`"),
            Token::Dot(w) => write!(f, "`.{w}`"),
            Token::Int(v) => write!(f, "`{v}`"),
            Token::Float(v) => write!(f, "`0f{v:08X}`"),
            Token::Double(v) => write!(f, "`{v}`"),
            Token::Text(t) => write!(f, "{t:?}"),
            Token::Punct(c) => write!(f, "`{c}`"),
        }
    }
}

/// A token and the 1-based line it stands on.
#[derive(Clone, Debug)]
pub(crate) struct Spanned {
    pub token: Token,
    pub line: u32,
}

fn is_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%')
}

fn is_continue(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$')
}

/// Splits `text` into tokens, dropping white space and comments.
pub(crate) fn tokens(text: &str) -> Result<Vec<Spanned>, ParseError> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    let mut line = 1u32;
    let fail =
        |line: u32, message: String| ParseError::new(line, text.lines().nth(line as usize - 1).unwrap_or(""), message);
    // In comments and strings too, as `ptxas` says it.
    if let Some(place) = bytes.iter().position(|byte| !byte.is_ascii()) {
        let line = 1 + bytes[..place].iter().filter(|byte| **byte == b'\n').count() as u32;
        return Err(fail(line, "Unexpected non-ASCII character encountered".into()));
    }
    while at < bytes.len() {
        let c = bytes[at];
        match c {
            b'\n' => {
                line += 1;
                at += 1;
            }
            _ if c.is_ascii_whitespace() => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let opened = line;
                at += 2;
                while !bytes[at..].starts_with(b"*/") {
                    if at >= bytes.len() {
                        return Err(fail(opened, "a comment is not closed".into()));
                    }
                    line += u32::from(bytes[at] == b'\n');
                    at += 1;
                }
                at += 2;
            }
            b'"' => {
                let start = at + 1;
                at = start;
                while at < bytes.len() && bytes[at] != b'"' && bytes[at] != b'\n' {
                    at += 1;
                }
                if bytes.get(at) != Some(&b'"') {
                    return Err(fail(line, "a string is not closed".into()));
                }
                out.push(Spanned { token: Token::Text(text[start..at].to_owned()), line });
                at += 1;
            }
            b'.' => {
                let start = at + 1;
                at = start;
                while at < bytes.len() {
                    if is_continue(bytes[at]) {
                        at += 1;
                    } else if bytes[at..].starts_with(b"::") {
                        at += 2;
                    } else {
                        break;
                    }
                }
                if at == start {
                    return Err(fail(line, "a dot without a name".into()));
                }
                out.push(Spanned { token: Token::Dot(text[start..at].to_owned()), line });
            }
            _ if is_start(c) => {
                let start = at;
                at += 1;
                while at < bytes.len() && is_continue(bytes[at]) {
                    at += 1;
                }
                out.push(Spanned { token: Token::Word(text[start..at].to_owned()), line });
            }
            _ if c.is_ascii_digit() => {
                let start = at;
                let hex_float = c == b'0'
                    && matches!(bytes.get(at + 1), Some(b'f' | b'F' | b'd' | b'D'))
                    && bytes.get(at + 2).is_some_and(u8::is_ascii_hexdigit);
                while at < bytes.len()
                    && (bytes[at].is_ascii_alphanumeric()
                        || (!hex_float
                            && (bytes[at] == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)
                                || matches!(bytes[at], b'+' | b'-')
                                    && !text[start..at].starts_with("0x")
                                    && matches!(bytes[at - 1], b'e' | b'E'))))
                {
                    at += 1;
                }
                let word = &text[start..at];
                let token = number(word).ok_or_else(|| fail(line, format!("`{word}` is not a number of PTX")))?;
                out.push(Spanned { token, line });
            }
            b',' | b';' | b':' | b'[' | b']' | b'{' | b'}' | b'(' | b')' | b'<' | b'>' | b'=' | b'+' | b'-' | b'|'
            | b'!' | b'@' => {
                out.push(Spanned { token: Token::Punct(c as char), line });
                at += 1;
            }
            _ => {
                let c = text[at..].chars().next().unwrap_or('?');
                return Err(fail(line, format!("the character `{c}` has no place in PTX")));
            }
        }
    }
    Ok(out)
}

fn number(word: &str) -> Option<Token> {
    let lower = word.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0f").filter(|h| h.len() == 8) {
        return u32::from_str_radix(hex, 16).ok().map(Token::Float);
    }
    if let Some(hex) = lower.strip_prefix("0d").filter(|h| h.len() == 16) {
        return u64::from_str_radix(hex, 16).ok().map(|b| Token::Double(f64::from_bits(b)));
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let integer = if let Some(hex) = digits.strip_prefix("0x") {
        u64::from_str_radix(hex, 16).ok()
    } else if let Some(binary) = digits.strip_prefix("0b") {
        u64::from_str_radix(binary, 2).ok()
    } else if digits.len() > 1 && digits.starts_with('0') && !digits.contains(['.', 'e']) {
        u64::from_str_radix(&digits[1..], 8).ok()
    } else {
        digits.parse().ok()
    };
    match integer {
        Some(v) => Some(Token::Int(v)),
        None if lower.contains(['.', 'e']) => lower.parse().ok().map(Token::Double),
        None => None,
    }
}
