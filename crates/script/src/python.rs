//! The small part of Python that scripts use between `%{` and `}%`: assertions over the fields of TCP_INFO, variables, prints and
//! `if`. Names keep their values from one piece of code to the next, as if all pieces were one program.

mod eval;
mod lexer;
mod parser;

pub(crate) use eval::{Environment, Stop, Value};

use std::rc::Rc;

/// A parsed piece of code.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Program(Rc<[Statement]>);

/// Code that is not supported: its line (from 0) and a description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NotUnderstood {
    pub(crate) line: u32,
    pub(crate) what: String,
}

impl Program {
    pub(crate) fn parse(code: &str) -> Result<Self, NotUnderstood> {
        Ok(Self(parser::parse(code)?.into()))
    }

    /// Runs the code with the names of `environment`.
    pub(crate) fn run(&self, environment: &mut Environment) -> Result<(), Stop> {
        environment.run(&self.0)
    }
}

#[derive(Clone, PartialEq, Debug)]
struct Statement {
    line: u32,
    what: What,
}

#[derive(Clone, PartialEq, Debug)]
enum What {
    Assert(Expr, Option<Expr>),
    Print(Vec<Expr>),
    /// `name = expr`, or with an operator `name += expr`
    Assign(String, Option<&'static str>, Expr),
    /// Branches with their conditions; a branch without condition is `else`.
    If(Vec<(Option<Expr>, Vec<Statement>)>),
    Expr(Expr),
    Pass,
}

#[derive(Clone, PartialEq, Debug)]
enum Expr {
    Value(Value),
    Name(String),
    List(Vec<Expr>),
    /// Operators `-`, `+`, `~` and `not`
    Unary(&'static str, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    /// A chain such as `a < b <= c`
    Compare(Box<Expr>, Vec<(&'static str, Expr)>),
    /// `a if c else b`, stored as c, a, b
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
    Call(String, Vec<Expr>),
    Index(Box<Expr>, Box<Expr>),
}

#[cfg(test)]
mod tests;
