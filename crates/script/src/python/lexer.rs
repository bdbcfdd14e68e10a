//! Splits Python code into tokens; new lines and indents are tokens too.

use super::NotUnderstood;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Token {
    Integer(i128),
    Float(f64),
    Text(String),
    Name(String),
    Operator(&'static str),
    NewLine,
    /// The start of a block.
    Indent,
    /// The end of a block.
    Dedent,
}

/// Python's operators, with the longest first.
const OPERATORS: [&str; 43] = [
    "**=", "//=", "<<=", ">>=", "==", "!=", "<=", ">=", "<<", ">>", "**", "//", "+=", "-=", "*=", "/=", "%=",
    "&=", "|=", "^=", "+", "-", "*", "/", "%", "<", ">", "=", "(", ")", "[", "]", "{", "}", ",", ":", ";",
    "&", "|", "^", "~", ".", "@",
];

pub(super) fn tokens(code: &str) -> Result<Vec<(u32, Token)>, NotUnderstood> {
    let mut found: Vec<(u32, Token)> = Vec::new();
    let mut blocks = vec![0];
    let mut brackets = 0_u32;
    let mut is_continued = false;
    for (line, text) in (0..).zip(code.lines()) {
        let bare = text.trim_start();
        if !is_continued && brackets == 0 {
            if bare.is_empty() || bare.starts_with('#') {
                continue;
            }
            // Code on the line of `%{` has lost its indent, so the first line sets no indent.
            let indent = if found.is_empty() { 0 } else { text.len() - bare.len() };
            indents(&mut found, &mut blocks, indent, line)?;
        }
        let (body, continues) = match text.trim_end().strip_suffix('\\') {
            Some(body) => (body, true),
            None => (text, false),
        };
        line_tokens(body, line, &mut brackets, &mut found)?;
        is_continued = continues;
        if !is_continued && brackets == 0 {
            found.push((line, Token::NewLine));
        }
    }
    let last = code.lines().count() as u32;
    if brackets > 0 {
        return Err(NotUnderstood { line: last, what: "code that ends in the middle of a line".into() });
    }
    if is_continued {
        // A `\` on the last line continues nothing.
        found.push((last, Token::NewLine));
    }
    found.extend(blocks.iter().skip(1).map(|_| (last, Token::Dedent)));
    Ok(found)
}

fn indents(
    found: &mut Vec<(u32, Token)>,
    blocks: &mut Vec<usize>,
    indent: usize,
    line: u32,
) -> Result<(), NotUnderstood> {
    let current = blocks.last().copied().unwrap_or(0);
    // The first line may lie behind `%{`, so the second line sets the indent of the outermost block.
    let opens = matches!(found.iter().rev().nth(1), Some((_, Token::Operator(":"))));
    if indent > current {
        if !opens && blocks.len() == 1 {
            blocks[0] = indent;
            return Ok(());
        }
        blocks.push(indent);
        found.push((line, Token::Indent));
        return Ok(());
    }
    while blocks.len() > 1 && indent < blocks.last().copied().unwrap_or(0) {
        blocks.pop();
        found.push((line, Token::Dedent));
    }
    if blocks.len() == 1 {
        blocks[0] = indent;
    }
    if blocks.last() == Some(&indent) {
        Ok(())
    } else {
        Err(NotUnderstood { line, what: "an indent that fits no block".into() })
    }
}

fn line_tokens(
    text: &str,
    line: u32,
    brackets: &mut u32,
    found: &mut Vec<(u32, Token)>,
) -> Result<(), NotUnderstood> {
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if first == '#' {
            break;
        }
        let (token, len) = token(rest, first).ok_or_else(|| NotUnderstood {
            line,
            what: format!("Python: `{}`", rest.chars().take(12).collect::<String>()),
        })?;
        match token {
            Token::Operator("(" | "[" | "{") => *brackets += 1,
            Token::Operator(")" | "]" | "}") => *brackets = brackets.saturating_sub(1),
            _ => {}
        }
        found.push((line, token));
        rest = rest[len..].trim_start();
    }
    Ok(())
}

fn token(rest: &str, first: char) -> Option<(Token, usize)> {
    if first.is_ascii_digit() {
        return number(rest);
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let len = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
        return Some((Token::Name(rest[..len].to_owned()), len));
    }
    if first == '"' || first == '\'' {
        return text(rest, first);
    }
    let operator = OPERATORS.iter().find(|o| rest.starts_with(**o))?;
    Some((Token::Operator(operator), operator.len()))
}

fn number(rest: &str) -> Option<(Token, usize)> {
    if let Some(digits) = rest.strip_prefix("0x") {
        let len = digits.bytes().take_while(u8::is_ascii_hexdigit).count();
        return Some((Token::Integer(i128::from_str_radix(&digits[..len], 16).ok()?), 2 + len));
    }
    let bytes = rest.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut len = digits(0);
    let mut is_float = false;
    if bytes.get(len) == Some(&b'.') {
        is_float = true;
        len += 1 + digits(len + 1);
    }
    if matches!(bytes.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(len + 1), Some(b'+' | b'-')));
        let exponent = digits((len + 1 + sign).min(bytes.len()));
        if exponent > 0 {
            is_float = true;
            len += 1 + sign + exponent;
        }
    }
    let text = &rest[..len];
    Some((if is_float { Token::Float(text.parse().ok()?) } else { Token::Integer(text.parse().ok()?) }, len))
}

fn text(rest: &str, quote: char) -> Option<(Token, usize)> {
    let mut value = String::new();
    let mut is_escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        if is_escaped {
            value.push(match c {
                'n' => '\n',
                't' => '\t',
                '\\' | '\'' | '"' => c,
                _ => return None,
            });
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if c == quote {
            return Some((Token::Text(value), i + 1));
        } else {
            value.push(c);
        }
    }
    None
}
