//! Words in brackets as a tree. The brackets match and are not too deep; nothing else is checked.

use std::borrow::Cow;

use crate::DEPTH_MAX;
use crate::lexer::{Token, shown, tokens};
use crate::mistake::{Mistake, Place};

/// A word, or a list in brackets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node<'a> {
    pub place: Place,
    pub what: What<'a>,
}

/// What stands at a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What<'a> {
    Word(&'a str),
    List(Vec<Node<'a>>),
}

impl<'a> Node<'a> {
    /// The first word of a list, and the items behind it. A symbol that touches its operand, as in `(+1 x)`, is split off.
    pub fn call(&self) -> Option<Call<'_, 'a>> {
        let What::List(items) = &self.what else { return None };
        let (head, items) = items.split_first()?;
        let What::Word(word) = head.what else { return None };
        let (symbol, behind) = split_symbol(word);
        let mut items = Cow::Borrowed(items);
        if !behind.is_empty() {
            let place = Place { column: head.place.column + symbol.chars().count(), ..head.place };
            items.to_mut().insert(0, Node { place, what: What::Word(behind) });
        }
        Some(Call { place: self.place, word: symbol, items })
    }

    /// The node as messages show it.
    pub fn shown(&self) -> String {
        match &self.what {
            What::Word(word) => shown(word),
            What::List(items) => match items.first().map(|item| &item.what) {
                Some(What::Word(word)) => format!("a list that begins with {}", shown(word)),
                Some(What::List(_)) => "a list of lists".to_owned(),
                None => "an empty list".to_owned(),
            },
        }
    }
}

/// A list with a word in front.
pub struct Call<'n, 'a> {
    pub place: Place,
    pub word: &'a str,
    pub items: Cow<'n, [Node<'a>]>,
}

/// Operations of symbols, longer ones first.
const SYMBOLS: [&str; 14] = [":=", "==", ">=", "<=", "!=", "&&", "||", "!if", "+", "-", "*", "/", ">", "<"];

fn split_symbol(word: &str) -> (&str, &str) {
    let symbol = SYMBOLS.iter().find(|symbol| word.starts_with(**symbol) && word != "+infinity");
    symbol.map_or((word, ""), |symbol| word.split_at(symbol.len()))
}

/// The nodes of a whole text.
pub fn parse(text: &str) -> Result<Vec<Node<'_>>, Mistake> {
    let mut open: Vec<(Place, Vec<Node<'_>>)> = Vec::new();
    let mut top = Vec::new();
    for (token, place) in tokens(text) {
        let node = match token {
            Token::Open if open.len() == DEPTH_MAX => {
                return Err(Mistake::new(
                    place,
                    format!("at most {DEPTH_MAX} brackets inside each other"),
                    "one more",
                ));
            }
            Token::Open => {
                open.push((place, Vec::new()));
                continue;
            }
            Token::Word(word) => Node { place, what: What::Word(word) },
            Token::Close => {
                let Some((start, items)) = open.pop() else {
                    return Err(Mistake::new(place, "an event or the end", "`)`")
                        .hint("one closing bracket too many; the list before is complete"));
                };
                Node { place: start, what: What::List(items) }
            }
        };
        open.last_mut().map_or(&mut top, |(_, items)| items).push(node);
    }
    match open.last() {
        None => Ok(top),
        Some((start, _)) => {
            let hint = format!("{} open at the end; this one is the last that was opened", open.len());
            Err(Mistake::new(*start, "a closing bracket for this one", "the end of the text").hint(hint))
        }
    }
}
