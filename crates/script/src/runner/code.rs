//! Runs the code between `%{` and `}%`; it sees the fields of TCP_INFO at its time.

use super::{File, Runner};
use crate::info;
use crate::python::{Program, Stop};
use crate::syntax::Trouble;
use sim::Errno;

impl Runner {
    pub(super) fn code(&mut self, code: &str) -> Result<(), Trouble> {
        let first_line = self.line;
        let at = |line: u32| first_line + line;
        let program =
            Program::parse(code).map_err(|error| Trouble::unsupported(at(error.line), error.what))?;
        if code.contains("tcpi_") {
            self.tell_info()?;
        }
        let stopped = program.run(&mut self.environment);
        self.trace.extend(std::mem::take(&mut self.environment.printed));
        stopped.map_err(|stop| match stop {
            Stop::Assertion(line, what) => Trouble::syntax(at(line), what),
            Stop::Error(line, what) => Trouble::syntax(at(line), format!("Python: {what}")),
            Stop::Unknown(line, name) => Trouble::unsupported(at(line), format!("the name {name} in code")),
        })
    }

    fn tell_info(&mut self) -> Result<(), Trouble> {
        let fd = self.connection.as_ref().and_then(|c| c.fd);
        let Some(File::Socket(socket)) = fd.and_then(|fd| self.files.get(&fd)) else {
            return Err(self.fail("no open socket whose TCP_INFO the code could see"));
        };
        let mut bytes = vec![0; info::LEN];
        match self.network.host.option(socket.fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                info::fields(&bytes).for_each(|(name, value)| self.environment.set(&name, value.into()));
                Ok(())
            }
            Err(Errno::NOPROTOOPT) => Err(self.unsupported("TCP_INFO")),
            Err(errno) => Err(self.fail(format!("TCP_INFO: {errno}"))),
        }
    }
}
