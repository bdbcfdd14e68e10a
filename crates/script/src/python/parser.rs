//! Recursive-descent parser for the supported part of Python's grammar.

use super::lexer::{Token, tokens};
use super::{Expr, NotUnderstood, Statement, Value, What};

/// Largest nesting depth of blocks and brackets.
const DEPTH_MAX: u32 = 24;
/// Largest number of tokens in one piece of code: a chain of n operators makes a tree of depth n.
const TOKENS_MAX: usize = 2048;

pub(super) fn parse(code: &str) -> Result<Vec<Statement>, NotUnderstood> {
    let tokens = tokens(code)?;
    if tokens.len() > TOKENS_MAX {
        return Err(NotUnderstood { line: 0, what: "Python code of this length".into() });
    }
    let mut parser = Parser { tokens: &tokens, at: 0, depth: 0 };
    let mut statements = Vec::new();
    while parser.peek().is_some() {
        parser.line_of_statements(&mut statements)?;
    }
    Ok(statements)
}

struct Parser<'a> {
    tokens: &'a [(u32, Token)],
    at: usize,
    depth: u32,
}

type Parsed<T> = Result<T, NotUnderstood>;

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |(line, _)| *line)
    }

    fn take(&mut self, token: &Token) -> bool {
        let is_there = self.peek() == Some(token);
        self.at += usize::from(is_there);
        is_there
    }

    fn operator(&mut self, operator: &'static str) -> bool {
        self.take(&Token::Operator(operator))
    }

    fn keyword(&mut self, name: &str) -> bool {
        let is_there = matches!(self.peek(), Some(Token::Name(n)) if n == name);
        self.at += usize::from(is_there);
        is_there
    }

    fn not_understood(&self) -> NotUnderstood {
        let what = match self.peek() {
            Some(Token::Name(name)) => format!("Python: `{name}` here"),
            Some(Token::Operator(operator)) => format!("Python: `{operator}` here"),
            Some(other) => format!("Python: {other:?} here"),
            None => "Python: code that ends too early".to_owned(),
        };
        NotUnderstood { line: self.line(), what }
    }

    fn need(&mut self, operator: &'static str) -> Parsed<()> {
        if self.operator(operator) { Ok(()) } else { Err(self.not_understood()) }
    }

    fn deeper(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(NotUnderstood { line: self.line(), what: "Python that is nested too deeply".into() });
        }
        Ok(())
    }

    fn line_of_statements(&mut self, statements: &mut Vec<Statement>) -> Parsed<()> {
        if matches!(self.peek(), Some(Token::Name(n)) if n == "if") {
            let line = self.line();
            let what = self.branches()?;
            statements.push(Statement { line, what });
            return Ok(());
        }
        loop {
            let line = self.line();
            let what = self.statement()?;
            statements.push(Statement { line, what });
            let is_more = self.operator(";");
            if self.take(&Token::NewLine) || self.peek().is_none() {
                return Ok(());
            }
            if !is_more {
                return Err(self.not_understood());
            }
        }
    }

    fn branches(&mut self) -> Parsed<What> {
        let mut branches = Vec::new();
        self.at += 1;
        loop {
            let condition = self.expr()?;
            branches.push((Some(condition), self.block()?));
            if self.keyword("elif") {
                continue;
            }
            if self.keyword("else") {
                branches.push((None, self.block()?));
            }
            return Ok(What::If(branches));
        }
    }

    fn block(&mut self) -> Parsed<Vec<Statement>> {
        self.deeper()?;
        self.need(":")?;
        let mut statements = Vec::new();
        if self.take(&Token::NewLine) {
            if !self.take(&Token::Indent) {
                return Err(self.not_understood());
            }
            while !self.take(&Token::Dedent) {
                self.line_of_statements(&mut statements)?;
            }
        } else {
            self.line_of_statements(&mut statements)?;
        }
        self.depth -= 1;
        Ok(statements)
    }

    fn statement(&mut self) -> Parsed<What> {
        if self.keyword("pass") {
            return Ok(What::Pass);
        }
        if self.keyword("assert") {
            let condition = self.expr()?;
            let message = if self.operator(",") { Some(self.expr()?) } else { None };
            return Ok(What::Assert(condition, message));
        }
        if let Some(Token::Name(name)) = self.peek().cloned() {
            if name == "print" {
                return self.print();
            }
            if let Some((_, Token::Operator(operator))) = self.tokens.get(self.at + 1) {
                let binary = ["+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>"]
                    .into_iter()
                    .find(|b| operator.strip_suffix('=') == Some(*b));
                if *operator == "=" || binary.is_some() {
                    self.at += 2;
                    return Ok(What::Assign(name, binary, self.expr()?));
                }
            }
        }
        Ok(What::Expr(self.expr()?))
    }

    /// Parses `print(a, b)` (Python 3) and `print a, b` (Python 2).
    fn print(&mut self) -> Parsed<What> {
        self.at += 1;
        let mut items = Vec::new();
        let has_brackets = self.operator("(");
        while !matches!(self.peek(), None | Some(Token::NewLine | Token::Operator(")" | ";"))) {
            items.push(self.expr()?);
            if !self.operator(",") {
                break;
            }
        }
        if has_brackets {
            self.need(")")?;
        }
        Ok(What::Print(items))
    }

    fn expr(&mut self) -> Parsed<Expr> {
        self.deeper()?;
        let value = self.or()?;
        let value = if self.keyword("if") {
            let condition = self.or()?;
            if !self.keyword("else") {
                return Err(self.not_understood());
            }
            Expr::Choice(Box::new(condition), Box::new(value), Box::new(self.expr()?))
        } else {
            value
        };
        self.depth -= 1;
        Ok(value)
    }

    fn or(&mut self) -> Parsed<Expr> {
        let mut left = self.and()?;
        while self.keyword("or") {
            left = Expr::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Parsed<Expr> {
        let mut left = self.not()?;
        while self.keyword("and") {
            left = Expr::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Parsed<Expr> {
        if self.keyword("not") {
            self.deeper()?;
            let inner = self.not()?;
            self.depth -= 1;
            return Ok(Expr::Unary("not", Box::new(inner)));
        }
        let first = self.binary(0)?;
        let mut rest = Vec::new();
        while let Some(operator) = self.comparison() {
            rest.push((operator, self.binary(0)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn comparison(&mut self) -> Option<&'static str> {
        if let Some(found) = ["==", "!=", "<=", ">=", "<", ">"].into_iter().find(|o| self.operator(o)) {
            return Some(found);
        }
        if self.keyword("in") {
            return Some("in");
        }
        if self.keyword("is") {
            return Some(if self.keyword("not") { "!=" } else { "==" });
        }
        let is_not_in = matches!(self.peek(), Some(Token::Name(n)) if n == "not")
            && matches!(self.tokens.get(self.at + 1), Some((_, Token::Name(n))) if n == "in");
        self.at += if is_not_in { 2 } else { 0 };
        is_not_in.then_some("not in")
    }

    /// Binary operators; the first level binds weakest.
    fn binary(&mut self, level: usize) -> Parsed<Expr> {
        const LEVELS: [&[&str]; 6] =
            [&["|"], &["^"], &["&"], &["<<", ">>"], &["+", "-"], &["*", "/", "//", "%"]];
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|o| self.operator(o)) {
            left = Expr::Binary(operator, Box::new(left), Box::new(self.binary(level + 1)?));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Parsed<Expr> {
        if let Some(operator) = ["-", "+", "~"].into_iter().find(|o| self.operator(o)) {
            self.deeper()?;
            let inner = self.unary()?;
            self.depth -= 1;
            return Ok(Expr::Unary(operator, Box::new(inner)));
        }
        let mut base = self.atom()?;
        while self.operator("[") {
            base = Expr::Index(Box::new(base), Box::new(self.expr()?));
            self.need("]")?;
        }
        if self.operator("**") {
            self.deeper()?;
            base = Expr::Binary("**", Box::new(base), Box::new(self.unary()?));
            self.depth -= 1;
        }
        Ok(base)
    }

    fn atom(&mut self) -> Parsed<Expr> {
        let Some(token) = self.peek().cloned() else { return Err(self.not_understood()) };
        match token {
            Token::Integer(_) | Token::Float(_) | Token::Text(_) | Token::Name(_) => self.at += 1,
            Token::Operator("(") => return self.bracket(")"),
            Token::Operator("[") => return self.bracket("]"),
            _ => return Err(self.not_understood()),
        }
        Ok(match token {
            Token::Integer(n) => Expr::Value(Value::Integer(n)),
            Token::Float(x) => Expr::Value(Value::Float(x)),
            Token::Text(mut text) => {
                // Adjacent strings are concatenated.
                while let Some(Token::Text(more)) = self.peek().cloned() {
                    text.push_str(&more);
                    self.at += 1;
                }
                Expr::Value(Value::Text(text))
            }
            Token::Name(name) => return self.name(name),
            _ => return Err(self.not_understood()),
        })
    }

    fn name(&mut self, name: String) -> Parsed<Expr> {
        match name.as_str() {
            "True" => return Ok(Expr::Value(Value::Bool(true))),
            "False" => return Ok(Expr::Value(Value::Bool(false))),
            "None" => return Ok(Expr::Value(Value::None)),
            "import" | "from" | "def" | "class" | "for" | "while" | "lambda" | "try" | "with" | "return"
            | "del" | "global" | "raise" => {
                self.at -= 1;
                return Err(self.not_understood());
            }
            _ => {}
        }
        if self.operator("(") {
            return Ok(Expr::Call(name, self.items(")")?));
        }
        Ok(Expr::Name(name))
    }

    /// Expressions up to and including `end`, separated by commas.
    fn items(&mut self, end: &'static str) -> Parsed<Vec<Expr>> {
        let mut items = Vec::new();
        while !self.operator(end) {
            items.push(self.expr()?);
            if !self.operator(",") {
                self.need(end)?;
                break;
            }
        }
        Ok(items)
    }

    /// Parses `(a)`, `(a, b)` and `[a, b]`.
    fn bracket(&mut self, end: &'static str) -> Parsed<Expr> {
        self.at += 1;
        let start = self.at;
        let mut items = self.items(end)?;
        let has_comma = self.tokens[start..self.at].iter().any(|(_, t)| *t == Token::Operator(","));
        if end == ")" && items.len() == 1 && !has_comma {
            return Ok(items.remove(0));
        }
        Ok(Expr::List(items))
    }
}
