//! Splits text into tokens. Of two possible tokens the longer one is taken, as in packetdrill.

use crate::syntax::Trouble;
use std::net::Ipv6Addr;

/// A token of a script.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Token {
    /// `--name`, without the dashes
    Option(String),
    /// A number with a point, in millionths; only times have one.
    Decimal(i64),
    Integer(i64),
    /// `0x1f`, as a number
    Hex(i64),
    Word(String),
    /// Text in double quotes; escapes are replaced.
    Text(Vec<u8>),
    /// Text in back quotes: a shell command.
    BackQuoted(String),
    /// Text between `%{` and `}%`: Python code.
    Code(String),
    Address4(String),
    Address6(String),
    /// Three points without spaces: `...`
    Ellipsis,
    Char(char),
}

/// A token with its line number, from 1.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Spanned {
    pub(crate) line: u32,
    pub(crate) token: Token,
}

/// All tokens of `text`; words that `defines` contains are replaced by their values, as for `-D`.
pub(crate) fn tokens(text: &str, defines: &[(String, String)]) -> Result<Vec<Spanned>, Trouble> {
    let mut lexer = Lexer { rest: text, line: 1, defines };
    let mut found = Vec::new();
    loop {
        lexer.skip_blank()?;
        if lexer.rest.is_empty() {
            return Ok(found);
        }
        let line = lexer.line;
        let token = lexer.token()?;
        found.push(Spanned { line, token });
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: u32,
    defines: &'a [(String, String)],
}

impl<'a> Lexer<'a> {
    /// Takes `len` bytes and counts the lines in them.
    fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len);
        self.line += taken.matches('\n').count() as u32;
        self.rest = rest;
        taken
    }

    fn skip_blank(&mut self) -> Result<(), Trouble> {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.take(blank);
            if self.rest.starts_with("//") {
                let len = self.rest.find('\n').unwrap_or(self.rest.len());
                self.take(len);
            } else if self.rest.starts_with("/*") {
                let len = self.rest.find("*/").ok_or_else(|| self.error("a comment without end"))?;
                self.take(len + 2);
            } else {
                return Ok(());
            }
        }
    }

    fn error(&self, what: impl Into<String>) -> Trouble {
        Trouble::syntax(self.line, what)
    }

    fn token(&mut self) -> Result<Token, Trouble> {
        let rest = self.rest;
        let first = rest.chars().next().unwrap_or_default();
        if rest.starts_with("...") {
            self.take(3);
            return Ok(Token::Ellipsis);
        }
        if rest.starts_with("%{") {
            let end = rest.find("}%").ok_or_else(|| self.error("code without its end }%"))?;
            let code = &self.take(end + 2)[2..end];
            return Ok(Token::Code(code.trim_matches([' ', '\t']).to_owned()));
        }
        match first {
            '"' => self.text(),
            '`' => self.back_quoted(),
            '-' if option_len(rest) > 2 => {
                let len = option_len(rest);
                Ok(Token::Option(self.take(len)[2..].to_owned()))
            }
            _ => self.number_or_word(first),
        }
    }

    /// The bytes up to the closing `quote`; a backslash escapes a quote.
    fn quoted(&mut self, quote: char) -> Result<&'a str, Trouble> {
        let mut is_escaped = false;
        for (i, c) in self.rest.char_indices().skip(1) {
            if is_escaped {
                is_escaped = false;
            } else if c == '\\' {
                is_escaped = true;
            } else if c == quote {
                return Ok(&self.take(i + 1)[1..i]);
            }
        }
        Err(self.error(format!("{quote} without its partner")))
    }

    fn text(&mut self) -> Result<Token, Trouble> {
        let line = self.line;
        let raw = self.quoted('"')?;
        unescape(raw).map(Token::Text).ok_or_else(|| Trouble::syntax(line, "an escape that is not known"))
    }

    fn back_quoted(&mut self) -> Result<Token, Trouble> {
        Ok(Token::BackQuoted(self.quoted('`')?.to_owned()))
    }

    fn number_or_word(&mut self, first: char) -> Result<Token, Trouble> {
        let rest = self.rest;
        let (integer, decimal) = number_lens(rest);
        let word = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
        let v4 = address4_len(rest);
        let v6 = address6_len(rest);
        let longest = integer.max(decimal).max(word).max(v4).max(v6);
        if longest == 0 {
            self.take(first.len_utf8());
            return Ok(Token::Char(first));
        }
        let text = &rest[..longest];
        let token = if longest == v6 {
            Token::Address6(text.to_owned())
        } else if longest == v4 {
            Token::Address4(text.to_owned())
        } else if longest == decimal {
            Token::Decimal(millionths(text).ok_or_else(|| self.error(format!("{text} is too large")))?)
        } else if longest == integer {
            Token::Integer(text.parse().map_err(|_| self.error(format!("{text} is too large")))?)
        } else {
            match text
                .strip_prefix("0x")
                .filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_hexdigit()))
            {
                Some(digits) => Token::Hex(
                    i64::from_str_radix(digits, 16)
                        .map_err(|_| self.error(format!("{text} is too large")))?,
                ),
                None => self.word(text)?,
            }
        };
        self.take(longest);
        Ok(token)
    }

    /// A word, or the value that is defined for it.
    fn word(&self, text: &str) -> Result<Token, Trouble> {
        let Some((_, value)) = self.defines.iter().find(|(name, _)| name == text) else {
            return Ok(Token::Word(text.to_owned()));
        };
        let inner = value.get(1..value.len().saturating_sub(1)).unwrap_or_default();
        if value.starts_with('"') {
            let text = unescape(inner).ok_or_else(|| self.error("an escape that is not known"))?;
            return Ok(Token::Text(text));
        }
        if value.starts_with('`') {
            return Ok(Token::BackQuoted(inner.to_owned()));
        }
        let number = match value.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => value.parse().ok(),
        };
        Ok(number.map_or_else(|| Token::Word(value.clone()), Token::Integer))
    }
}

/// The length of `--name`; at most 2 when there is no name.
fn option_len(rest: &str) -> usize {
    rest.strip_prefix("--")
        .map_or(0, |name| 2 + name.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count())
}

/// Lengths of the integer and of the number with a point at the start of `rest`; 0 for none.
fn number_lens(rest: &str) -> (usize, usize) {
    let sign = usize::from(rest.starts_with('-'));
    let digits = |from: usize| rest[from..].bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(sign);
    let integer = if whole > 0 { sign + whole } else { 0 };
    let point = sign + whole;
    if !rest[point..].starts_with('.') {
        return (integer, 0);
    }
    let fraction = digits(point + 1);
    (integer, if fraction > 0 { point + 1 + fraction } else { 0 })
}

fn address4_len(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 0;
    for group in 0..4 {
        if group > 0 {
            if bytes.get(at) != Some(&b'.') {
                return 0;
            }
            at += 1;
        }
        let digits = bytes[at..].iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            return 0;
        }
        at += digits;
    }
    at
}

/// The length of the longest IPv6 address at the start of `rest`; a sequence range (`1:1001`) has too few groups to be one.
fn address6_len(rest: &str) -> usize {
    let run = rest.bytes().take_while(|b| b.is_ascii_hexdigit() || *b == b':' || *b == b'.').take(45).count();
    if !rest[..run].contains(':') {
        return 0;
    }
    (2..=run).rev().find(|len| rest[..*len].parse::<Ipv6Addr>().is_ok()).unwrap_or(0)
}

/// Converts seconds with a point to microseconds.
fn millionths(text: &str) -> Option<i64> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (whole, fraction) = digits.split_once('.')?;
    let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let padded: String = fraction.chars().chain("000000".chars()).take(6).collect();
    Some(sign * whole.checked_mul(1_000_000)?.checked_add(padded.parse().ok()?)?)
}

/// Replaces C's escapes in `raw`; `None` for an escape that C does not have.
fn unescape(raw: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = raw.bytes().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next()? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'f' => 12,
            b'v' => 11,
            b'a' => 7,
            b'b' => 8,
            c @ (b'\\' | b'"' | b'\'' | b'?') => c,
            b'x' => {
                let mut digits = String::new();
                while digits.len() < 2 && rest.peek().is_some_and(u8::is_ascii_hexdigit) {
                    digits.push(char::from(rest.next()?));
                }
                u8::from_str_radix(&digits, 16).ok()?
            }
            digit @ b'0'..=b'7' => {
                let mut value = u32::from(digit - b'0');
                for _ in 0..2 {
                    if let Some(next) = rest.next_if(|b| (b'0'..=b'7').contains(b)) {
                        value = value * 8 + u32::from(next - b'0');
                    }
                }
                u8::try_from(value).ok()?
            }
            _ => return None,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{Token, tokens};
    use proptest::prelude::*;

    fn lex(text: &str) -> Vec<Token> {
        tokens(text, &[]).unwrap().into_iter().map(|s| s.token).collect()
    }

    #[test]
    fn end_time_of_a_blocking_call_is_not_part_of_the_number_before_it() {
        let expected = vec![Token::Char('+'), Token::Integer(0), Token::Ellipsis, Token::Decimal(200_000)];
        assert_eq!(lex("+0...0.200"), expected);
        let expected = vec![Token::Decimal(100_000), Token::Ellipsis, Token::Decimal(200_000)];
        assert_eq!(lex(".1...0.200"), expected);
    }

    #[test]
    fn sequence_range_is_no_ipv6_address() {
        assert_eq!(lex("1:1001(1000)").len(), 6);
        assert_eq!(lex("2001:db8::1")[0], Token::Address6("2001:db8::1".into()));
        assert_eq!(lex("::1:"), vec![Token::Address6("::1".into()), Token::Char(':')]);
        assert_eq!(lex("192.0.2.1")[0], Token::Address4("192.0.2.1".into()));
    }

    #[test]
    fn lines_are_counted_through_comments_code_and_quotes() {
        let text = "// one\n/* two\nthree */ a %{ x\ny }% b `c\nd` e";
        let found: Vec<_> = tokens(text, &[]).unwrap().into_iter().map(|s| s.line).collect();
        assert_eq!(found, [3, 3, 4, 4, 5]);
    }

    #[test]
    fn defined_word_stands_for_its_value() {
        let defines = [("N".to_owned(), "0x10".to_owned()), ("S".to_owned(), "\"hi\"".to_owned())];
        let found: Vec<_> = tokens("N S T", &defines).unwrap().into_iter().map(|s| s.token).collect();
        assert_eq!(found, [Token::Integer(16), Token::Text(b"hi".to_vec()), Token::Word("T".into())]);
    }

    #[test]
    fn escapes_are_those_of_c() {
        assert_eq!(lex(r#""a\x41\101\n""#), [Token::Text(b"aAA\n".to_vec())]);
        assert!(tokens(r#""\q""#, &[]).is_err());
        assert!(tokens("\"open", &[]).is_err());
        assert!(tokens("%{ open", &[]).is_err());
        assert!(tokens("/* open", &[]).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_tokens_or_an_error(text in "\\PC*") {
            let _ = tokens(&text, &[]);
        }
    }
}
