//! The little of Python that scripts use between `%{` and `}%`: assertions over the fields of TCP_INFO, variables, prints,
//! `if`. Names keep their values from one piece of code to the next, as they do where all pieces are one program.

mod eval;
mod lexer;
mod parser;

pub(crate) use eval::{Environment, Stop, Value};

use std::rc::Rc;

/// A piece of code, understood.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Program(Rc<[Statement]>);

/// What is not understood: line of the code (from 0) and what it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NotUnderstood {
    pub(crate) line: u32,
    pub(crate) what: String,
}

impl Program {
    pub(crate) fn parse(code: &str) -> Result<Self, NotUnderstood> {
        Ok(Self(parser::parse(code)?.into()))
    }

    /// Runs it.
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
    /// `name = expr` and, with an operator, `name += expr`.
    Assign(String, Option<&'static str>, Expr),
    /// Branches with their conditions, the last without one being `else`.
    If(Vec<(Option<Expr>, Vec<Statement>)>),
    Expr(Expr),
    Pass,
}

#[derive(Clone, PartialEq, Debug)]
enum Expr {
    Value(Value),
    Name(String),
    List(Vec<Expr>),
    /// `-`, `+`, `~`, `not`
    Unary(&'static str, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    /// `a < b <= c`
    Compare(Box<Expr>, Vec<(&'static str, Expr)>),
    /// `a if c else b`: c, a, b
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
    Call(String, Vec<Expr>),
    Index(Box<Expr>, Box<Expr>),
}

#[cfg(test)]
mod tests;
