//! All algorithms of this crate as one agent for live flows, of Towpath or of the kernel (`towpath cc kernel up`). Usage: `agent PATH [NAME]`: the
//! path of its socket, and the algorithm of flows that ask for none of them. It says what happens, and serves until it is killed.

use std::error::Error;
use std::io::Write;
use std::path::Path;

use ccp_agent::Runner;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("usage: agent PATH [NAME]")?;
    let mut agent = ccp_algorithms::all()?;
    if let Some(name) = words.next() {
        agent.prefer(&name)?;
    }
    let mut runner = Runner::bind(Path::new(&path))?;
    runner.run(&mut agent, &|| false, &mut |event| {
        // Nothing depends on a reader of these lines.
        let _ = writeln!(std::io::stdout(), "{event}");
    })?;
    Ok(())
}
