//! Tests of the endpoint: tables of what happens when, and a model with random flows and agents.

mod bench;
mod deaths;
mod flows;
mod model;
mod starts;
mod trust;
