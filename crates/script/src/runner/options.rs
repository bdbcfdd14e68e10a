//! The calls `setsockopt` and `getsockopt`.

use super::Runner;
use super::calls::{Answer, Extra};
use crate::syntax::{Call, Expr, Trouble};
use sim::Errno;

impl Runner {
    /// Level and name of an option, and the name as the script writes it.
    fn option_name(&self, call: &Call) -> Result<(i32, i32, String), Trouble> {
        let shown = match self.arg(call, 2)? {
            Expr::Word(name) => name.clone(),
            other => format!("{other:?}"),
        };
        Ok((self.int(call, 1)?, self.int(call, 2)?, shown))
    }

    pub(super) fn set_option(&mut self, call: &Call) -> Result<Result<i64, Errno>, Trouble> {
        let socket = self.socket(call, 0)?;
        let (level, name, shown) = self.option_name(call)?;
        let mut value = match self.arg(call, 3)? {
            Expr::Text(text) => text.clone(),
            Expr::Struct(fields) => {
                let numbers: Result<Vec<i64>, _> = fields.iter().map(|f| self.value(&f.value)).collect();
                numbers?.iter().flat_map(|n| (*n as i32).to_ne_bytes()).collect()
            }
            number => (self.value(number)? as i32).to_ne_bytes().to_vec(),
        };
        let len = self.len(self.arg(call, 4)?)?;
        value.resize(len.min(4096), 0);
        let done = self.network.host.set_option(socket.fd, level, name, &value);
        self.known(call, &shown, done.err())?;
        Ok(done.map(|()| 0))
    }

    pub(super) fn option(&mut self, call: &Call) -> Result<Answer, Trouble> {
        let socket = self.socket(call, 0)?;
        let (level, name, shown) = self.option_name(call)?;
        let mut value = vec![0; self.len(self.arg(call, 4)?)?.min(4096)];
        let done = self.network.host.option(socket.fd, level, name, &mut value);
        self.known(call, &shown, done.err())?;
        Ok(match done {
            Ok(len) => {
                value.truncate(len);
                Answer { result: Ok(0), extra: Extra::Bytes(value) }
            }
            Err(errno) => Err(errno).into(),
        })
    }

    /// An option that the stack lacks makes the script unsupported, unless the script expects ENOPROTOOPT.
    fn known(&self, call: &Call, shown: &str, error: Option<Errno>) -> Result<(), Trouble> {
        if error == Some(Errno::NOPROTOOPT) && call.errno.as_deref() != Some("ENOPROTOOPT") {
            return Err(self.unsupported(format!("the option {shown}")));
        }
        Ok(())
    }

    pub(super) fn check_option(&self, call: &Call, bytes: &[u8]) -> Result<(), Trouble> {
        let len = self.len(self.arg(call, 4)?)?;
        if bytes.len() != len {
            return Err(self.fail(format!("getsockopt told {} bytes, not {len}", bytes.len())));
        }
        let value = self.arg(call, 3)?;
        let expected: Vec<u8> = match value {
            Expr::Ellipsis => return Ok(()),
            Expr::Text(text) => text.clone(),
            Expr::Struct(fields) => {
                let numbers: Result<Vec<i64>, _> = fields.iter().map(|f| self.value(&f.value)).collect();
                numbers?.iter().flat_map(|n| (*n as i32).to_ne_bytes()).collect()
            }
            number => (self.value(number)? as i32).to_ne_bytes().to_vec(),
        };
        if expected.iter().zip(bytes).all(|(a, b)| a == b) && expected.len() >= bytes.len() {
            return Ok(());
        }
        let number = |bytes: &[u8]| bytes.first_chunk().map(|b| i32::from_ne_bytes(*b));
        match (number(&expected), number(bytes)) {
            (Some(expected), Some(actual)) if len == 4 => {
                Err(self.fail(format!("getsockopt told {actual}, not {expected}")))
            }
            _ => Err(self.fail(format!("getsockopt told {bytes:?}, not {expected:?}"))),
        }
    }
}
