//! Text into brackets and words. Comments and blanks vanish; what a word means is said elsewhere.

use crate::mistake::Place;

/// The longest part of a word that a message repeats.
const SHOWN_MAX: usize = 40;

/// A bracket or a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Token<'a> {
    Open,
    Close,
    Word(&'a str),
}

/// The tokens of `text`, each with its place.
pub fn tokens(text: &str) -> impl Iterator<Item = (Token<'_>, Place)> {
    let mut rest = text;
    let mut place = Place { line: 1, column: 1 };
    std::iter::from_fn(move || {
        loop {
            let first = rest.chars().next()?;
            let start = place;
            let len = match first {
                '#' => rest.find('\n').unwrap_or(rest.len()),
                '(' | ')' => 1,
                blank if blank.is_whitespace() => blank.len_utf8(),
                _ => rest.find(ends_word).unwrap_or(rest.len()),
            };
            let (taken, behind) = rest.split_at(len);
            rest = behind;
            if first == '\n' {
                place = Place { line: place.line + 1, column: 1 };
            } else {
                place.column += taken.chars().count();
            }
            match first {
                '(' => return Some((Token::Open, start)),
                ')' => return Some((Token::Close, start)),
                '#' => {}
                blank if blank.is_whitespace() => {}
                _ => return Some((Token::Word(taken), start)),
            }
        }
    })
}

fn ends_word(c: char) -> bool {
    c.is_whitespace() || matches!(c, '(' | ')' | '#')
}

/// The word as messages show it.
pub fn shown(word: &str) -> String {
    let short: String = word.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    let is_cut = word.chars().nth(SHOWN_MAX).is_some();
    format!("`{short}{}`", if is_cut { "..." } else { "" })
}
