//! Parses tokens into a script: options, times and the order of events. Submodules parse packets, calls and expressions.

mod call;
mod packet;

use crate::lexer::{Spanned, Token, tokens};
use crate::syntax::{Action, Command, Event, Micros, OptionLine, Script, Trouble, When};

/// Parses the text of a script.
///
/// # Errors
/// The first thing that is not in the language, or that is in it but not supported.
pub fn parse(text: &str, defines: &[(String, String)]) -> Result<Script, Trouble> {
    let tokens = tokens(text, defines)?;
    let mut parser = Parser { tokens: &tokens, at: 0, depth: 0 };
    parser.script()
}

/// Largest nesting depth of expressions: a script may be hostile.
const DEPTH_MAX: u32 = 32;

pub(crate) struct Parser<'a> {
    tokens: &'a [Spanned],
    at: usize,
    depth: u32,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|s| &s.token)
    }

    fn peek_second(&self) -> Option<&Token> {
        self.tokens.get(self.at + 1).map(|s| &s.token)
    }

    /// Line of the next token, or of the last one at the end.
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |s| s.line)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += 1;
        token
    }

    fn is_char(&self, c: char) -> bool {
        self.peek() == Some(&Token::Char(c))
    }

    fn take_char(&mut self, c: char) -> bool {
        let is_there = self.is_char(c);
        self.at += usize::from(is_there);
        is_there
    }

    fn expect_char(&mut self, c: char) -> Result<(), Trouble> {
        if self.take_char(c) { Ok(()) } else { Err(self.unexpected(&format!("`{c}`"))) }
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Word(w)) if w == word)
    }

    fn take_word(&mut self, word: &str) -> bool {
        let is_there = self.is_word(word);
        self.at += usize::from(is_there);
        is_there
    }

    fn word(&mut self, what: &str) -> Result<String, Trouble> {
        match self.peek() {
            Some(Token::Word(w)) => {
                let w = w.clone();
                self.at += 1;
                Ok(w)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    fn integer(&mut self, what: &str) -> Result<i64, Trouble> {
        match self.peek() {
            Some(Token::Integer(n) | Token::Hex(n)) => {
                let n = *n;
                self.at += 1;
                Ok(n)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    /// Parses a number that must fit into the type of its field.
    fn number<T: TryFrom<i64>>(&mut self, what: &str) -> Result<T, Trouble> {
        let line = self.line();
        let n = self.integer(what)?;
        T::try_from(n).map_err(|_| Trouble::syntax(line, format!("{what}: {n} is out of range")))
    }

    fn unexpected(&self, wanted: &str) -> Trouble {
        let found = match self.peek() {
            None => "the end".to_owned(),
            Some(Token::Char(c)) => format!("`{c}`"),
            Some(Token::Word(w)) => format!("`{w}`"),
            Some(Token::Integer(n) | Token::Hex(n)) => n.to_string(),
            Some(Token::Ellipsis) => "`...`".to_owned(),
            Some(Token::Option(o)) => format!("`--{o}`"),
            Some(other) => format!("{other:?}"),
        };
        Trouble::syntax(self.line(), format!("{wanted} expected, not {found}"))
    }

    fn script(&mut self) -> Result<Script, Trouble> {
        let mut script = Script::default();
        while let Some(Token::Option(name)) = self.peek() {
            let (line, name) = (self.line(), name.clone());
            self.at += 1;
            let value = if self.take_char('=') { Some(self.option_value()?) } else { None };
            script.options.push(OptionLine { line, name, value });
        }
        script.start = self.command();
        while self.peek().is_some() {
            if let Some(command) = self.command() {
                if self.peek().is_some() {
                    return Err(self.unexpected("nothing after the last command"));
                }
                script.cleanup = Some(command);
                break;
            }
            let event = self.event()?;
            script.events.push(event);
        }
        if script.events.is_empty() {
            return Err(Trouble::syntax(self.line(), "a script needs an event"));
        }
        Ok(script)
    }

    fn option_value(&mut self) -> Result<String, Trouble> {
        let plain = match self.next() {
            Some(Token::Integer(n) | Token::Hex(n)) => n.to_string(),
            Some(Token::Word(w)) => w,
            Some(Token::Text(t)) => String::from_utf8_lossy(&t).into_owned(),
            Some(Token::Address4(a) | Token::Address6(a)) => a,
            Some(Token::Decimal(d)) => format!("{}.{:06}", d / 1_000_000, d % 1_000_000),
            _ => {
                self.at -= 1;
                return Err(self.unexpected("the option's value"));
            }
        };
        // Values such as `--remote_ip=192.0.2.1/24` and `--define NAME=VALUE`.
        if self.take_char('/') {
            return Ok(format!("{plain}/{}", self.integer("a prefix length")?));
        }
        if self.take_char('=') {
            return Ok(format!("{plain}={}", self.option_value()?));
        }
        Ok(plain)
    }

    fn command(&mut self) -> Option<Command> {
        let line = self.line();
        let Some(Token::BackQuoted(text)) = self.peek() else { return None };
        let text = text.clone();
        self.at += 1;
        Some(Command { line, text })
    }

    fn time(&mut self) -> Result<Micros, Trouble> {
        match self.peek() {
            Some(Token::Decimal(t)) => {
                let t = *t;
                self.at += 1;
                Ok(t)
            }
            Some(Token::Integer(_)) => {
                let line = self.line();
                let seconds = self.integer("a time")?;
                seconds
                    .checked_mul(1_000_000)
                    .ok_or_else(|| Trouble::syntax(line, "a time that is too large"))
            }
            _ => Err(self.unexpected("a time")),
        }
    }

    fn event(&mut self) -> Result<Event, Trouble> {
        let line = self.line();
        let when = self.when()?;
        let action = match self.peek() {
            Some(Token::Char('<' | '>')) => Action::Packet(self.packet()?),
            Some(Token::BackQuoted(text)) => {
                let text = text.clone();
                self.at += 1;
                Action::Command(text)
            }
            Some(Token::Code(code)) => {
                let code = code.clone();
                self.at += 1;
                Action::Code(code)
            }
            Some(Token::Word(_) | Token::Ellipsis) => Action::Call(self.call()?),
            _ => return Err(self.unexpected("a packet, a call, a command or code")),
        };
        Ok(Event { line, when, action })
    }

    fn when(&mut self) -> Result<When, Trouble> {
        if self.take_char('*') {
            return Ok(When::Any);
        }
        let is_relative = self.take_char('+');
        let from = self.time()?;
        if !self.take_char('~') {
            return Ok(if is_relative { When::After(from) } else { When::At(from) });
        }
        if is_relative {
            self.expect_char('+')?;
        }
        let to = self.time()?;
        Ok(if is_relative { When::AfterBetween(from, to) } else { When::Between(from, to) })
    }
}

#[cfg(test)]
mod tests;
