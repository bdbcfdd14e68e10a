//! The memory of the process that is asked, from the kernel's files.

use crate::sockets::actor::Answer;
use anyhow::Context;
use std::fs;

/// Reads the number of bytes in the line `NAME: 123 kB` of a file such as `/proc/meminfo`.
pub fn bytes(text: &str, name: &str) -> anyhow::Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    Ok(number.with_context(|| format!("no {name}"))? * 1024.0)
}

/// In the process: bytes of its anonymous memory in use, and of its other (shared and file) memory in use.
pub fn resident() -> anyhow::Result<Answer> {
    let text = fs::read_to_string("/proc/self/smaps_rollup").context("no smaps_rollup")?;
    let own = bytes(&text, "Anonymous")?;
    Ok(vec![own, bytes(&text, "Rss")? - own])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_by_its_whole_name() {
        let text = "Rss:    12 kB\nPss:   7 kB\nAnonymous:  3 kB\nRss_Extra: 5 kB\n";
        assert_eq!(bytes(text, "Rss").unwrap(), 12.0 * 1024.0);
        assert_eq!(bytes(text, "Anonymous").unwrap(), 3.0 * 1024.0);
        assert!(bytes(text, "Slab").is_err());
    }

    #[test]
    fn our_own_memory_is_there() {
        let resident = resident().unwrap();
        assert!(resident.iter().all(|bytes| *bytes > 0.0), "{resident:?}");
    }
}
