//! Converts arguments of calls to numbers and lengths.

use super::Runner;
use crate::symbols;
use crate::syntax::{Call, Expr, Trouble};

impl Runner {
    /// The argument at index `i`.
    pub(super) fn arg<'c>(&self, call: &'c Call, i: usize) -> Result<&'c Expr, Trouble> {
        call.args
            .get(i)
            .ok_or_else(|| self.fail(format!("{} has {} arguments here", call.name, call.args.len())))
    }

    /// The argument at index `i` as a number.
    pub(super) fn number(&self, call: &Call, i: usize) -> Result<i64, Trouble> {
        self.value(self.arg(call, i)?)
    }

    /// The value of a number, a constant's name, names joined by `|`, or one of these in brackets.
    pub(super) fn value(&self, expr: &Expr) -> Result<i64, Trouble> {
        match expr {
            Expr::Int(n) => Ok(*n),
            Expr::Word(name) => {
                symbols::constant(name).ok_or_else(|| self.unsupported(format!("the constant {name}")))
            }
            Expr::Or(items) => {
                let mut all = 0;
                for item in items {
                    all |= self.value(item)?;
                }
                Ok(all)
            }
            Expr::List(items) if items.len() == 1 => self.value(&items[0]),
            Expr::Apply(name, items) if name == "htons" && items.len() == 1 => self.value(&items[0]),
            other => Err(self.fail(format!("a number expected, not {other:?}"))),
        }
    }

    pub(super) fn int(&self, call: &Call, i: usize) -> Result<i32, Trouble> {
        let n = self.number(call, i)?;
        // Flags may use all 32 bits.
        i32::try_from(n)
            .or_else(|_| u32::try_from(n).map(u32::cast_signed))
            .map_err(|_| self.fail(format!("{n} does not fit in 32 bits")))
    }

    /// A length of at most 256 MiB.
    pub(super) fn len(&self, expr: &Expr) -> Result<usize, Trouble> {
        let n = self.value(expr)?;
        usize::try_from(n)
            .ok()
            .filter(|n| *n <= 256 << 20)
            .ok_or_else(|| self.fail(format!("{n} is no length of a buffer")))
    }

    /// The total length of buffers such as `[{..., 10}, {..., 20}]`, or of the `msg_iov` of a message.
    pub(super) fn vector_len(&self, expr: &Expr) -> Result<usize, Trouble> {
        let Expr::List(items) = expr else { return Err(self.fail("a list of buffers expected")) };
        let mut total = 0_usize;
        for item in items {
            let Expr::Struct(fields) = item else {
                return Err(self.fail("a buffer expected: {..., length}"));
            };
            let Some(len) = fields.get(1) else {
                return Err(self.fail("a buffer has a length: {..., length}"));
            };
            total = total.saturating_add(self.len(&len.value)?);
        }
        Ok(total)
    }

    /// A buffer: true for `...`, false for NULL, where there is no memory.
    pub(super) fn buffer(&self, call: &Call, i: usize) -> Result<bool, Trouble> {
        match self.arg(call, i)? {
            Expr::Ellipsis => Ok(true),
            Expr::Word(name) if name == "NULL" => Ok(false),
            _ => Err(self.unsupported("buffers that are neither `...` nor NULL")),
        }
    }
}
