//! A Rust file as the rules need it: code without comments and strings, and product code without tests.
//!
//! Blanking keeps the position of every byte, so a position in the blanked text has the same line as in the original. This is not a Rust
//! parser: it knows comments, strings, attributes and brackets, which suffices for the rules.

use std::ops::Range;

use crate::cfg::{Truth, evaluate};

/// Words that begin an item that ends with `}` (or `;`); commas inside are part of the item.
const BRACED: [&str; 9] = ["fn", "mod", "impl", "struct", "enum", "union", "trait", "macro_rules", "extern"];
/// Words that begin an item or statement that ends with `;`.
const ENDED: [&str; 5] = ["use", "const", "static", "type", "let"];

/// The marker above an item of a packet-path crate that runs only at start. A reason must follow.
pub const SETUP_MARKER: &str = "// SETUP: ";

/// A Rust file in several blanked forms.
pub struct Source {
    /// The path relative to the repository.
    pub path: String,
    /// Number of lines.
    pub lines: usize,
    /// Lines that are comments as a whole: the line's number and its text without leading blanks.
    pub comments: Vec<(usize, String)>,
    /// The text with comments, strings and characters blanked.
    pub code: String,
    /// `code` with test-only items blanked as well.
    pub product: String,
    /// `product` with the items marked with [`SETUP_MARKER`] blanked as well.
    pub hot: String,
    /// Paths without `.rs` of modules that this file declares for tests only and that are in their own files.
    pub test_modules: Vec<String>,
}

impl Source {
    /// Makes the forms of `text`, which is the file at `path`.
    pub fn new(path: &str, text: &str) -> Self {
        let code = blank_comments_and_strings(text);
        let mut product = code.clone().into_bytes();
        let declarations = blank_test_items(&code, &mut product);
        let test_modules =
            declarations.into_iter().filter_map(|range| module_path(path, text, &code, range)).collect();
        let product = into_text(&product);
        let hot = blank_setup_items(text, &product);
        let comments = comment_lines(text, &code);
        Self {
            path: path.to_owned(),
            lines: text.lines().count(),
            comments,
            code,
            product,
            hot,
            test_modules,
        }
    }
}

/// Lines of which nothing but a line comment is there.
fn comment_lines(text: &str, code: &str) -> Vec<(usize, String)> {
    let lines = text.lines().zip(code.lines()).enumerate();
    let comments =
        lines.filter(|(_, (line, code))| code.trim().is_empty() && line.trim_start().starts_with("//"));
    comments.map(|(index, (line, _))| (index + 1, line.trim().to_owned())).collect()
}

/// The 1-based line of byte `at`.
pub fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count()
}

/// The positions of `pattern` in `text` as whole words, not as parts of longer names.
pub fn occurrences<'a>(text: &'a str, pattern: &'a str) -> impl Iterator<Item = usize> + 'a {
    let begins_with_name = pattern.bytes().next().is_some_and(is_name_byte);
    let ends_with_name = pattern.bytes().next_back().is_some_and(is_name_byte);
    text.match_indices(pattern).map(|(at, _)| at).filter(move |at| {
        let bytes = text.as_bytes();
        let glued_before = begins_with_name && *at > 0 && is_name_byte(bytes[at - 1]);
        let glued_after = ends_with_name && bytes.get(at + pattern.len()).is_some_and(|b| is_name_byte(*b));
        !glued_before && !glued_after
    })
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn into_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

/// Blanks comments, strings and characters.
fn blank_comments_and_strings(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => end_of_line(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => end_of_block_comment(bytes, at),
            b'"' => end_of_string(bytes, at),
            b'\'' => end_of_character(text, at),
            b'r' => end_of_raw_string(bytes, at),
            _ => at,
        };
        blank(&mut out[at..end]);
        at = end.max(at + 1);
    }
    into_text(&out)
}

fn end_of_line(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| at + n)
}

fn end_of_block_comment(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of a character such as `'x'` or `'\n'`; `at` itself for a lifetime.
fn end_of_character(text: &str, at: usize) -> usize {
    let rest = &text[at + 1..];
    let Some(first) = rest.chars().next() else { return at };
    let body = if first == '\\' { 2 } else { first.len_utf8() };
    match rest.as_bytes().get(body..).map(|tail| tail.iter().position(|b| *b == b'\'')) {
        Some(Some(0)) => at + 1 + body + 1,
        Some(Some(n)) if first == '\\' => at + 1 + body + n + 1,
        _ => at,
    }
}

/// The end of `r"..."` or `r#"..."#`; `at` itself if no raw string begins here.
fn end_of_raw_string(bytes: &[u8], at: usize) -> usize {
    let prefix = at.checked_sub(1).map(|before| bytes[before]);
    let before_prefix = at.checked_sub(2).map(|before| bytes[before]);
    let is_start = match prefix {
        Some(b'b' | b'c') => !before_prefix.is_some_and(is_name_byte),
        Some(other) => !is_name_byte(other),
        None => true,
    };
    let hashes = bytes[at + 1..].iter().take_while(|b| **b == b'#').count();
    let open = at + 1 + hashes;
    if !is_start || bytes.get(open) != Some(&b'"') {
        return at;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let body = &bytes[open + 1..];
    body.windows(close.len()).position(|w| w == close).map_or(bytes.len(), |n| open + 1 + n + close.len())
}

/// Blanks in `product` every item of `code` that is only for tests. Returns the ranges of these items with their attributes.
fn blank_test_items(code: &str, product: &mut [u8]) -> Vec<Range<usize>> {
    let mut items = Vec::new();
    for at in attributes(code) {
        let is_inner = code[at..].starts_with("#![");
        let Some(open) = code[at..].find('[').map(|n| at + n) else { continue };
        let end = end_of_brackets(code, open);
        let attribute = code[open + 1..end.saturating_sub(1).max(open + 1)].trim();
        if !is_test_only(attribute) {
            continue;
        }
        if is_inner {
            blank(product);
            return items;
        }
        let item_end = end_of_item(code, skip_attributes(code, end));
        blank(&mut product[at..item_end]);
        items.push(at..item_end);
    }
    items
}

fn attributes(code: &str) -> impl Iterator<Item = usize> + '_ {
    code.match_indices('#').map(|(at, _)| at).filter(|at| {
        let rest = &code[at + 1..];
        rest.starts_with('[') || rest.starts_with("![")
    })
}

fn is_test_only(attribute: &str) -> bool {
    if attribute == "test" {
        return true;
    }
    let condition = attribute.strip_prefix("cfg").map(str::trim).and_then(|rest| rest.strip_prefix('('));
    condition.and_then(|rest| rest.strip_suffix(')')).is_some_and(|inner| evaluate(inner) == Truth::No)
}

/// The position after the bracket that closes the one at `open`.
fn end_of_brackets(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (n, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return n + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

fn skip_attributes(code: &str, mut at: usize) -> usize {
    loop {
        at += code[at..].len() - code[at..].trim_start().len();
        if !code[at..].starts_with("#[") {
            return at;
        }
        at = end_of_brackets(code, at + 1);
    }
}

/// The position after the item, statement, field or match arm that begins at `start`.
fn end_of_item(code: &str, start: usize) -> usize {
    let bytes = code.as_bytes();
    let mut at = start;
    while at < bytes.len() {
        let head = &code[start..at];
        match bytes[at] {
            b';' => return at + 1,
            b',' if !has_word(head, &BRACED) && !has_word(head, &ENDED) => return at + 1,
            b')' | b']' | b'}' => return at,
            b'{' => {
                at = end_of_brackets(code, at);
                if has_word(head, &BRACED) || !has_word(head, &ENDED) {
                    return at;
                }
            }
            b'(' | b'[' => at = end_of_brackets(code, at),
            _ => at += 1,
        }
    }
    bytes.len()
}

fn has_word(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| occurrences(text, word).next().is_some())
}

/// The path without `.rs` of the module's file that the item at `range` declares; `None` if the item is something else.
fn module_path(file: &str, text: &str, code: &str, range: Range<usize>) -> Option<String> {
    let (folder, file_name) = file.rsplit_once('/').unwrap_or((".", file));
    let declaration = code[range.clone()].trim().strip_suffix(';')?;
    let (_, name) = declaration.rsplit_once("mod ")?;
    let elsewhere = text[range].split_once("#[path = \"").and_then(|(_, rest)| rest.split_once('"'));
    if let Some((path, _)) = elsewhere {
        return Some(format!("{folder}/{}", path.trim_end_matches(".rs")));
    }
    Some(match file_name {
        "lib.rs" | "main.rs" | "mod.rs" => format!("{folder}/{}", name.trim()),
        _ => format!("{}/{}", file.trim_end_matches(".rs"), name.trim()),
    })
}

/// Blanks the item below each `// SETUP: reason` comment.
fn blank_setup_items(text: &str, product: &str) -> String {
    let mut hot = product.as_bytes().to_vec();
    let mut line_start = 0;
    for line in text.split_inclusive('\n') {
        let reason = line.trim_start().strip_prefix(SETUP_MARKER).map(str::trim);
        let is_comment = product[line_start..line_start + line.len()].trim().is_empty();
        if is_comment && reason.is_some_and(|reason| !reason.is_empty()) {
            let start = skip_attributes(product, line_start);
            let end = end_of_item(product, start);
            blank(&mut hot[start..end]);
        }
        line_start += line.len();
    }
    into_text(&hot)
}
