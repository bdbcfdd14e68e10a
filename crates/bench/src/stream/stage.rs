//! A stage: one thread that receives tuples, works on each, and sends it on.

use super::input::{Came, EVENTS, Input, PATIENCE};
use super::multiplexer::{Batching, Multiplexer};
use super::topics::key;
use super::tuple::{Tuple, partition};
use crate::clock;
use crate::sockets::actor::Answer;
use crate::sockets::calls;
use anyhow::{Context, bail};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::net::TcpStream;
use std::time::Duration;

/// The sum of the times that tuples spend in each part of a stage.
#[derive(Default)]
struct Times {
    tuples: u64,
    /// Number of measured tuples; the times below are theirs.
    measured: u64,
    /// From the end of the read until the work on the tuple begins.
    input_ns: u64,
    processing_ns: u64,
}

struct Stage {
    set: OwnedFd,
    inputs: Vec<Input<TcpStream>>,
    outputs: Multiplexer<TcpStream>,
    times: Times,
}

/// The first stage: finds each tuple's key, and sends all tuples of a key to the same partition.
pub fn split(streams: Vec<TcpStream>, batching: Batching) -> anyhow::Result<Answer> {
    let stage = Stage::new(streams, batching)?;
    let partitions = stage.outputs.len();
    stage.run(|_, tuple| {
        tuple.key = key(tuple.text).with_context(|| format!("tuple {} is about nothing", tuple.number))?;
        Ok(partition(tuple.key, partitions))
    })
}

/// The second stage: counts the tuples of each key, with a table for each partition.
pub fn count(streams: Vec<TcpStream>, batching: Batching) -> anyhow::Result<Answer> {
    let stage = Stage::new(streams, batching)?;
    let mut tables: Vec<HashMap<Vec<u8>, u32>> = vec![HashMap::new(); stage.inputs.len()];
    stage.run(|from, tuple| {
        match tables[from].get_mut(tuple.key) {
            Some(count) => {
                *count += 1;
                tuple.count = *count;
            }
            None => {
                tables[from].insert(tuple.key.to_vec(), 1);
                tuple.count = 1;
            }
        }
        Ok(from)
    })
}

impl Stage {
    /// Takes the first half of `streams` as incoming connections, the second half as outgoing ones.
    fn new(mut streams: Vec<TcpStream>, batching: Batching) -> anyhow::Result<Self> {
        let set = calls::epoll_create()?;
        let out = streams.split_off(streams.len() / 2);
        for (i, stream) in streams.iter().enumerate() {
            stream.set_nonblocking(true)?;
            calls::epoll_add(&set, stream, i as u64)?;
        }
        // Outgoing connections stay blocking: a stage that cannot send receives nothing either, so that the stage before it must wait, too.
        out.iter().try_for_each(|stream| stream.set_nodelay(true))?;
        let inputs = streams.into_iter().map(Input::new).collect();
        Ok(Self { set, inputs, outputs: Multiplexer::new(out, batching), times: Times::default() })
    }

    /// Runs until the stage before it has closed all its connections, then closes its own. `work` returns the output of a tuple.
    fn run(
        mut self,
        mut work: impl FnMut(usize, &mut Tuple<'_>) -> anyhow::Result<usize>,
    ) -> anyhow::Result<Answer> {
        let (mut events, mut living) = ([calls::NO_EVENT; EVENTS], self.inputs.len());
        while living > 0 {
            let deadline = self.outputs.deadline_ns();
            let limit = deadline.map_or(PATIENCE, |at| whole_milliseconds(at, clock::now_ns()));
            let count = calls::epoll_wait(&self.set, &mut events, Some(limit))?;
            if count == 0 && deadline.is_none() {
                bail!("nothing came");
            }
            for event in &events[..count] {
                let at = event.u64 as usize;
                match self.inputs[at].read()? {
                    Came::Some => self.take(at, &mut work)?,
                    Came::End => living -= 1,
                }
            }
            self.outputs.send(clock::now_ns)?;
        }
        self.outputs.hurry();
        self.outputs.send(clock::now_ns)?;
        let Times { tuples, measured, input_ns, processing_ns } = self.times;
        let numbers = [tuples, measured, input_ns, processing_ns, self.outputs.waited_ns()];
        Ok(numbers.map(|number| number as f64).to_vec())
    }

    /// Handles the tuples that were read from one connection.
    fn take(
        &mut self,
        from: usize,
        work: &mut impl FnMut(usize, &mut Tuple<'_>) -> anyhow::Result<usize>,
    ) -> anyhow::Result<()> {
        let Self { inputs, outputs, times, .. } = self;
        let read_ns = clock::now_ns();
        let mut begun_ns = read_ns;
        inputs[from].tuples(|mut tuple| {
            let to = work(from, &mut tuple)?;
            let now_ns = clock::now_ns();
            outputs.emit(to, &tuple, now_ns);
            times.tuples += 1;
            if tuple.is_measured {
                times.measured += 1;
                times.input_ns += begun_ns - read_ns;
                times.processing_ns += now_ns - begun_ns;
            }
            // The next tuple's time begins: making the bytes of this one counts as work on the next.
            begun_ns = now_ns;
            Ok(())
        })
    }
}

/// The time from now until then, rounded up to milliseconds, so that `epoll_wait` does not return before it.
fn whole_milliseconds(then_ns: u64, now_ns: u64) -> Duration {
    Duration::from_millis(then_ns.saturating_sub(now_ns).div_ceil(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_not_waited_for_in_slices_of_nothing() {
        assert_eq!(whole_milliseconds(5_000_001, 4_000_000), Duration::from_millis(2));
        assert_eq!(whole_milliseconds(5_000_000, 4_000_000), Duration::from_millis(1));
        assert_eq!(whole_milliseconds(4_000_000, 5_000_000), Duration::ZERO);
    }
}
