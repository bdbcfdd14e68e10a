//! Reads a profile of callgrind: instructions by source file.
//!
//! A cost line is `LINE COUNT`. The cost line after a `calls=` line is the callee's cost, which is counted again in the callee itself.
//! `fl=`, `fi=` and `fe=` name the file of the cost lines that follow: `(7) path` the first time, later `(7)`.

use std::collections::BTreeMap;

use anyhow::Context;

/// Instructions in each source file; inlined code counts in the file where it was written.
///
/// # Errors
/// When a line is not in callgrind's format.
pub fn by_file(profile: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let (mut names, mut counts) = (BTreeMap::new(), BTreeMap::new());
    let mut file = String::new();
    let mut is_callee = false;
    for line in profile.lines() {
        if let Some((key, value)) = line.split_once('=') {
            // Names of callees' files use the same numbers.
            let is_file = matches!(key, "fl" | "fi" | "fe");
            if is_file || matches!(key, "cfi" | "cfl") {
                let name = resolve(&mut names, value).with_context(|| format!("in {line:?}"))?;
                if is_file {
                    file = name;
                }
            }
            is_callee |= key == "calls";
        } else if line.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '*')) {
            let count = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
            let count = count.with_context(|| format!("no count in {line:?}"))?;
            if !std::mem::take(&mut is_callee) {
                *counts.entry(place(&file)).or_insert(0) += count;
            }
        }
    }
    Ok(counts)
}

/// The name for `(7) path`, which defines number 7, or `(7)`, which refers to it.
fn resolve(names: &mut BTreeMap<String, String>, value: &str) -> anyhow::Result<String> {
    let (number, name) = value.split_once(')').context("a name has no number")?;
    let name = name.trim();
    if !name.is_empty() {
        names.insert(number.to_owned(), name.to_owned());
    }
    names.get(number).cloned().context("a number without a name")
}

/// The path in the repository for our files; for others the library they belong to.
fn place(path: &str) -> String {
    if let Some(at) = path.find("crates/") {
        return path[at..].to_owned();
    }
    for (mark, name) in [("/library/", "Rust's library"), ("/registry/", "other crates")] {
        if path.contains(mark) {
            return name.to_owned();
        }
    }
    "the C library".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_belong_to_the_file_they_were_written_in() {
        let profile = "\
version: 1
positions: line
events: Ir
summary: 60

fl=(1) /home/me/towpath/crates/fastpath/src/core.rs
fn=(1) fastpath::core::Core::poll
10 5
+2 7
fi=(2) /rustc/5980/library/core/src/ptr/mod.rs
* 3
fe=(1)
14 1
cfi=(3) /root/.cargo/registry/src/x/siphasher-1.0.4/src/sip.rs
cfn=(2) sip
calls=4 20
15 40

fl=(3)
fn=(2)
20 40
fl=(4) ./string/../memmove.S
fn=(3) memcpy
9 4
";
        let counts = by_file(profile).unwrap();
        let found: Vec<(&str, u64)> = counts.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        let wanted = [
            ("Rust's library", 3),
            ("crates/fastpath/src/core.rs", 13),
            ("other crates", 40),
            ("the C library", 4),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn what_is_no_profile_is_an_error() {
        assert!(by_file("fl=(7)\n1 2\n").is_err());
        assert!(by_file("fl=(1) a\n12\n").is_err());
    }
}
