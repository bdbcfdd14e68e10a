//! What a datapath and its agents have said to each other, as lines of text: one datagram each, as JSON. `towpath cc record` writes them.

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The first line of a file: what it is.
const HEAD: &str = r#"{"transcript":"ccp","version":1}"#;

/// The way of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// From the datapath to an agent.
    ToAgent,
    /// From an agent to the datapath.
    FromAgent,
}

/// One datagram, with its time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Said {
    /// When it came, nanoseconds; only differences have a meaning.
    pub ns: u64,
    /// From which side it came.
    pub way: Way,
    /// The path of the agent's socket.
    pub agent: String,
    /// Its bytes, two hexadecimal digits each.
    pub hex: String,
}

impl Said {
    /// A datagram with these bytes.
    #[must_use]
    pub fn new(ns: u64, way: Way, agent: &str, bytes: &[u8]) -> Self {
        let mut hex = String::with_capacity(2 * bytes.len());
        for byte in bytes {
            // Writing to a string cannot fail.
            let _ = write!(hex, "{byte:02x}");
        }
        Self { ns, way, agent: agent.to_owned(), hex }
    }

    /// The bytes of the datagram.
    ///
    /// # Errors
    /// If the text is no list of bytes.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        let digits: Option<Vec<u8>> = self.hex.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
        let digits = digits.filter(|digits| digits.len().is_multiple_of(2));
        let digits = digits.ok_or_else(|| format!("`{}` is no list of bytes", self.hex.escape_debug()))?;
        Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
    }
}

/// The text of a file with these datagrams.
#[must_use]
pub fn written(all: &[Said]) -> String {
    let mut text = format!("{HEAD}\n");
    for said in all {
        text.push_str(&line(said));
    }
    text
}

/// The line of one datagram, with its end.
#[must_use]
pub fn line(said: &Said) -> String {
    let text = serde_json::to_string(said).expect("numbers and strings");
    format!("{text}\n")
}

/// Reads the text of a recording.
///
/// # Errors
/// The first line that is wrong. A last line without an end, as `kill -9` leaves it, is left out.
pub fn read(text: &str) -> Result<Vec<Said>, String> {
    let mut lines = text.split_inclusive('\n');
    if lines.next().map(str::trim_end) != Some(HEAD) {
        return Err("no transcript of `towpath cc record`, or one of another version".to_owned());
    }
    let whole = lines.filter(|line| line.ends_with('\n')).enumerate();
    whole
        .map(|(i, line)| serde_json::from_str(line).map_err(|why| format!("line {}: {why}", i + 2)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let all = [
            Said::new(5, Way::ToAgent, "/tmp/a", &[0, 255, 16]),
            Said::new(7, Way::FromAgent, "/tmp/\"b\"", &[]),
        ];
        let text = written(&all);
        assert_eq!(read(&text).as_deref(), Ok(&all[..]));
        assert_eq!(all[0].bytes(), Ok(vec![0, 255, 16]));
        assert_eq!(read(&text[..text.len() - 1]).map(|all| all.len()), Ok(1));
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        assert!(read("").is_err() && read("{}\n").is_err());
        let why = read(&format!("{HEAD}\n{{\"ns\":1}}\n")).expect_err("a part is missing");
        assert!(why.starts_with("line 2:"), "{why}");
        for hex in ["1", "zz", "+1"] {
            let said = Said { hex: hex.to_owned(), ..Said::new(0, Way::ToAgent, "", &[]) };
            assert!(said.bytes().is_err(), "{hex}");
        }
    }
}
