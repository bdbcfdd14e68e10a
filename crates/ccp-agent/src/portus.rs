//! The traits of Portus 0.8 under Portus' names, so that an algorithm written for it compiles here. Its source changes in the import,
//! `use ccp_agent::portus as portus;` or the like, and in `main`: [`run`] in place of `portus::start!`.
//!
//! Portus' values that an algorithm sets have 32 bits; [`crate::Datapath`] has 64. Reports of a program that the flow has left are dropped
//! before they get here. A handler that panics costs its flow and no other.

use std::collections::HashMap;
use std::io;
use std::marker::PhantomData;
use std::path::Path;

use crate::agent::Agent;
use crate::algorithm::{self, Algorithm, Failure, FlowInfo, Outcome};
use crate::runner::Runner;

/// Portus' error: a text. Any error turns into it by `?`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error(pub String);

impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// The result of Portus' calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Portus' names of transports. Algorithms name [`Ipc`](ipc::Ipc) as a bound only.
pub mod ipc {
    /// A transport. The agent's [`Runner`](crate::Runner) has its own socket, so there is nothing to do for one.
    pub trait Ipc: 'static + Send {}

    /// The only transport: whatever the agent's runner uses.
    #[derive(Clone, Copy, Debug)]
    pub enum Any {}

    impl Ipc for Any {}
}

/// What belongs to the language.
pub mod lang {
    use std::sync::Arc;

    use crate::program::Program;

    /// The names of a program's variables, as `set_program` returns them.
    #[derive(Clone, Debug, Default)]
    pub struct Scope {
        pub(super) program: Option<Arc<Program>>,
    }
}

use lang::Scope;

/// What a datapath says of a new flow; addresses are the four bytes of the message, read as a little-endian number, as Portus does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathInfo {
    /// The datapath's number of the flow.
    pub sock_id: u32,
    /// The congestion window at its beginning, bytes.
    pub init_cwnd: u32,
    /// The largest segment, bytes.
    pub mss: u32,
    /// The address of this host.
    pub src_ip: u32,
    /// The port of this host.
    pub src_port: u32,
    /// The peer's address, in the same form.
    pub dst_ip: u32,
    /// The port of the peer.
    pub dst_port: u32,
}

/// A report of one flow, with its values by name.
#[derive(Clone, Debug)]
pub struct Report {
    /// The agent's number of the program that has reported.
    pub program_uid: u32,
    inner: crate::Report,
}

impl Report {
    /// The value of `field` (`Report.name`).
    ///
    /// # Errors
    /// If the report is of another program than `scope`, or has no such value.
    pub fn get_field(&self, field: &str, scope: &Scope) -> Result<u64> {
        let is_same =
            scope.program.as_ref().is_some_and(|program| program.number == self.inner.program.number);
        if !is_same {
            return Err(Error(format!(
                "the report is of program `{}`, not of this scope's",
                self.inner.program()
            )));
        }
        Ok(self.inner.get(field)?)
    }
}

/// What an algorithm can do with a flow.
pub trait DatapathTrait {
    /// The datapath's number of the flow.
    fn get_sock_id(&self) -> u32;

    /// Gives the flow another program, with these fields set.
    ///
    /// # Errors
    /// If there is no such program or field, or the flow is over.
    fn set_program(&mut self, name: &'static str, fields: Option<&[(&str, u32)]>) -> Result<Scope>;

    /// Sets fields of the present program.
    ///
    /// # Errors
    /// If there is no such field, or the flow is over.
    fn update_field(&self, scope: &Scope, update: &[(&str, u32)]) -> Result<()>;
}

/// A flow's way to its datapath.
#[derive(Debug)]
pub struct Datapath<I> {
    inner: crate::Datapath,
    transport: PhantomData<fn() -> I>,
}

impl<I> Clone for Datapath<I> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), transport: PhantomData }
    }
}

impl<I> DatapathTrait for Datapath<I> {
    fn get_sock_id(&self) -> u32 {
        self.inner.flow().number
    }

    fn set_program(&mut self, name: &'static str, fields: Option<&[(&str, u32)]>) -> Result<Scope> {
        let program = self.inner.change(name, &wide(fields.unwrap_or_default()))?;
        Ok(Scope { program: Some(program) })
    }

    fn update_field(&self, _scope: &Scope, update: &[(&str, u32)]) -> Result<()> {
        Ok(self.inner.update(&wide(update))?)
    }
}

fn wide<'a>(fields: &[(&'a str, u32)]) -> Vec<(&'a str, u64)> {
    fields.iter().map(|(name, value)| (*name, u64::from(*value))).collect()
}

/// One flow of an algorithm as Portus knows it.
pub trait Flow {
    /// The program of flow `sock_id` has reported.
    fn on_report(&mut self, sock_id: u32, report: Report);

    /// The flow is over; nothing can be sent to it.
    fn close(&mut self) {}
}

/// An algorithm as Portus knows it.
pub trait CongAlg<I: ipc::Ipc> {
    /// Its object for each flow.
    type Flow: Flow;

    /// The name by which flows choose it.
    fn name() -> &'static str;

    /// All its programs by name.
    fn datapath_programs(&self) -> HashMap<&'static str, String>;

    /// A flow has begun, and gets its program here.
    fn new_flow(&self, control: Datapath<I>, info: DatapathInfo) -> Self::Flow;
}

/// Makes an [`Algorithm`] of one that was written for Portus.
#[derive(Debug)]
pub struct Ported<A>(pub A);

impl<A> Algorithm for Ported<A>
where
    A: CongAlg<ipc::Any> + Send,
    A::Flow: Send + 'static,
{
    fn name(&self) -> &str {
        A::name()
    }

    fn programs(&self) -> Vec<(String, String)> {
        let mut programs: Vec<(String, String)> =
            self.0.datapath_programs().into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
        // A map has no order; numbers of programs must not change from run to run.
        programs.sort();
        programs
    }

    fn new_flow(
        &mut self,
        datapath: crate::Datapath,
        info: &FlowInfo,
    ) -> std::result::Result<Box<dyn algorithm::Flow>, Failure> {
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let ported = DatapathInfo {
            sock_id: info.flow.number,
            init_cwnd: narrow(info.cwnd),
            mss: narrow(info.mss),
            src_ip: u32::from_le_bytes(info.source.ip().octets()),
            src_port: u32::from(info.source.port()),
            dst_ip: u32::from_le_bytes(info.destination.ip().octets()),
            dst_port: u32::from(info.destination.port()),
        };
        let control = Datapath { inner: datapath, transport: PhantomData };
        Ok(Box::new(PortedFlow { sock_id: info.flow.number, flow: self.0.new_flow(control, ported) }))
    }
}

struct PortedFlow<F> {
    sock_id: u32,
    flow: F,
}

impl<F: Flow + Send> algorithm::Flow for PortedFlow<F> {
    fn on_report(&mut self, report: &crate::Report) -> Outcome {
        let ported = Report { program_uid: report.program.number, inner: report.clone() };
        self.flow.on_report(self.sock_id, ported);
        Ok(())
    }

    fn close(&mut self) {
        self.flow.close();
    }
}

/// Runs one algorithm at the agent's socket `path` ([`crate::PATH`] is the usual one) until an error of the socket, and prints the log to
/// standard error.
///
/// # Errors
/// If a program has mistakes, or the socket cannot be bound or read.
pub fn run<A>(algorithm: A, path: &Path) -> io::Result<()>
where
    A: CongAlg<ipc::Any> + Send + 'static,
    A::Flow: Send + 'static,
{
    let mut agent = Agent::new();
    agent.add(Ported(algorithm)).map_err(io::Error::other)?;
    let mut runner = Runner::bind(path)?;
    runner.run(&mut agent, &|| false, &mut |event| eprintln!("{event}"))
}
