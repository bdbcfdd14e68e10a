//! Tests of the agent against the datapath's endpoint, in memory and with a clock that tests move.

mod aggregates;
mod bench;
mod failures;
mod flows;
mod portus;
mod restarts;
mod runner;
