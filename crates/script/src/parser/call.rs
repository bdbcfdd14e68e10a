//! Parses system calls and their arguments.

use super::{DEPTH_MAX, Parser};
use crate::lexer::Token;
use crate::syntax::{Call, Expr, Field, Trouble};

impl Parser<'_> {
    pub(super) fn call(&mut self) -> Result<Call, Trouble> {
        let end = if self.peek() == Some(&Token::Ellipsis) {
            self.at += 1;
            Some(self.time()?)
        } else {
            None
        };
        let name = self.word("the name of a call")?;
        self.expect_char('(')?;
        let args = self.list(')')?;
        self.expect_char('=')?;
        let result = self.expression()?;
        let errno = match self.peek() {
            Some(Token::Word(_)) => Some(self.word("the name of an error")?),
            _ => None,
        };
        self.note()?;
        Ok(Call { name, args, end, result, errno })
    }

    /// Skips a note for the reader, such as `(Operation now in progress)`.
    fn note(&mut self) -> Result<(), Trouble> {
        if !self.take_char('(') {
            return Ok(());
        }
        loop {
            match self.next() {
                Some(Token::Char(')')) => return Ok(()),
                None | Some(Token::Char('<' | '>' | '+')) => {
                    self.at -= 1;
                    return Err(self.unexpected("the end of the note, `)`"));
                }
                Some(_) => {}
            }
        }
    }

    /// Parses expressions up to and including `end`.
    fn list(&mut self, end: char) -> Result<Vec<Expr>, Trouble> {
        let mut items = Vec::new();
        if self.take_char(end) {
            return Ok(items);
        }
        loop {
            items.push(self.expression()?);
            if self.take_char(end) {
                return Ok(items);
            }
            self.expect_char(',')?;
        }
    }

    fn expression(&mut self) -> Result<Expr, Trouble> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Trouble::syntax(self.line(), "expressions in expressions in expressions"));
        }
        let first = self.operand()?;
        let mut all = vec![];
        while self.take_char('|') {
            all.push(self.operand()?);
        }
        self.depth -= 1;
        if all.is_empty() {
            return Ok(first);
        }
        all.insert(0, first);
        Ok(Expr::Or(all))
    }

    fn operand(&mut self) -> Result<Expr, Trouble> {
        match self.next() {
            Some(Token::Ellipsis) => Ok(Expr::Ellipsis),
            Some(Token::Integer(n) | Token::Hex(n)) => Ok(Expr::Int(n)),
            Some(Token::Text(text)) => {
                // `"text"...` gives only the beginning of a text.
                if self.peek() == Some(&Token::Ellipsis) {
                    return Err(Trouble::unsupported(
                        self.line(),
                        "a text of which only the beginning is given",
                    ));
                }
                Ok(Expr::Text(text))
            }
            Some(Token::Word(word)) => {
                if self.take_char('(') {
                    return Ok(Expr::Apply(word, self.list(')')?));
                }
                Ok(Expr::Word(word))
            }
            Some(Token::Char('[')) => Ok(Expr::List(self.list(']')?)),
            Some(Token::Char('{')) => self.structure(),
            _ => {
                self.at -= 1;
                Err(self.unexpected("an argument"))
            }
        }
    }

    fn structure(&mut self) -> Result<Expr, Trouble> {
        let mut fields = Vec::new();
        if self.take_char('}') {
            return Ok(Expr::Struct(fields));
        }
        loop {
            let mut name = None;
            let mut value = self.expression()?;
            if self.take_char('=') {
                // `name = v`, or `msg_iov(2) = v` with the number of elements in brackets.
                name = match value {
                    Expr::Word(word) | Expr::Apply(word, _) => Some(word),
                    _ => return Err(Trouble::syntax(self.line(), "a member's name expected before `=`")),
                };
                value = self.expression()?;
            }
            fields.push(Field { name, value });
            if self.take_char('}') {
                return Ok(Expr::Struct(fields));
            }
            self.expect_char(',')?;
        }
    }
}
