//! Tests of the language: what programs mean when they run, the mistakes that are found, and texts of any kind.

mod encoding;
mod flow;
mod hazards;
mod hostile;
mod meaning;
mod mistakes;
mod nested;
mod portus_samples;
mod released;
mod samples;
