//! The text of a configuration file. Keys that do not exist are refused with their lines and the keys that were perhaps meant. Reads no file.

use crate::config::Options;
use crate::registry::report::text::shown;
use control::known::nearest;
use toml::de::{DeTable, DeValue};

/// Longest line of the list of keys, characters.
const WIDTH: usize = 80;

/// The keys that the text sets.
///
/// # Errors
/// What is wrong, and in which line; for keys that do not exist also which keys there are.
pub fn parse(text: &str) -> Result<Options, String> {
    let table = DeTable::parse(text).map_err(|e| e.to_string())?;
    let mut unknown = Vec::new();
    for (key, value) in table.get_ref() {
        if !all_keys().any(|known| known == key.get_ref()) {
            let line = 1 + text[..key.span().start].matches('\n').count();
            unknown.push((line, complaint(key.get_ref(), matches!(value.get_ref(), DeValue::Table(_)))));
        }
    }
    if unknown.is_empty() {
        return toml::from_str(text).map_err(|e| e.to_string());
    }
    unknown.sort_unstable();
    let lines: Vec<String> =
        unknown.iter().map(|(line, complaint)| format!("  line {line}: {complaint}")).collect();
    Err(format!(
        "\n{}\nThe keys are the flags of `towpath up`, with _ for -:\n{}",
        lines.join("\n"),
        list_of_keys()
    ))
}

fn all_keys() -> impl Iterator<Item = &'static str> {
    Options::GROUPS.iter().flat_map(|(_, keys)| keys.iter().copied())
}

fn complaint(key: &str, is_table: bool) -> String {
    let told = format!("there is no key `{}`", shown(key));
    match nearest(key, all_keys()) {
        Some(near) => format!("{told}; did you mean `{near}`?"),
        None if is_table => format!("{told}; all keys stand at the top, in no [table]"),
        None => told,
    }
}

/// The keys in their groups, those for tests left out as in `--help`.
fn list_of_keys() -> String {
    let mut lines = Vec::new();
    for (heading, keys) in Options::GROUPS.iter().filter(|(heading, _)| !heading.contains("for tests")) {
        lines.push(format!("  {heading}:"));
        let mut line = String::from("   ");
        for key in *keys {
            if line.len() + 1 + key.len() > WIDTH {
                lines.push(std::mem::replace(&mut line, String::from("   ")));
            }
            line.push(' ');
            line.push_str(key);
        }
        lines.push(line);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_refused_with_its_line_and_the_key_that_was_meant() {
        let told =
            parse("# comment\ncores = 2\nregion-mib = 64\n\ncors = 3\n[service]\nsharing = \"never\"\n")
                .unwrap_err();
        for line in [
            "  line 3: there is no key `region-mib`; did you mean `region_mib`?",
            "  line 5: there is no key `cors`; did you mean `cores`?",
            "  line 6: there is no key `service`; all keys stand at the top, in no [table]",
        ] {
            assert!(told.lines().any(|told| told == line), "{line:?} is not in {told}");
        }
        assert!(parse("colour = 1").unwrap_err().contains("line 1: there is no key `colour`\n"));
        assert!(!parse("\"a\\u001bb\" = 1").unwrap_err().contains('\u{1b}'));
    }

    #[test]
    fn the_list_of_keys_is_read_by_a_person() {
        let told = parse("cors = 3").unwrap_err();
        assert!(told.lines().all(|line| line.chars().count() <= WIDTH), "{told}");
        let words: Vec<&str> = told.split_whitespace().collect();
        let is_listed = |key: &str| words.contains(&key);
        for key in all_keys() {
            assert_eq!(is_listed(key), !key.starts_with("fault_"), "{key}");
        }
    }

    #[test]
    fn a_known_key_with_a_bad_value_is_told_with_its_line() {
        let told = parse("cores = 2\nsharing = \"sometimes\"").unwrap_err();
        assert!(told.contains("line 2") && told.contains("same-user") && !told.contains("no key"), "{told}");
        assert!(parse("cores = ").unwrap_err().contains("line 1"));
        assert_eq!(parse("cores = 2").unwrap().set(), ["cores"]);
    }
}
