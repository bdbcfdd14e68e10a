//! How comments read: things have names, and a doc comment says something.

use crate::rules::is_inside;
use crate::source::Source;
use crate::workspace::{Package, Workspace};

/// Words that stand where the name of a thread, a process or a field belongs.
const PRONOUNS: [&str; 9] =
    ["who", "whoever", "whom", "whomever", "whose", "nobody", "somebody", "anybody", "everybody"];
/// Of a crate's comment lines, so many per cent may have one of them.
const PRONOUNS_MAX: f64 = 1.0;
/// A doc comment of so few words only repeats the name of its item.
const SHORT_WORDS: usize = 3;
/// Of a crate's doc comments, so many per cent may be that short.
const SHORT_MAX: f64 = 3.0;
/// Places that a finding names.
const NAMED: usize = 5;

/// Places out of a number of places.
struct Share {
    of: usize,
    found: Vec<String>,
}

impl Share {
    fn exceeds(&self, most: f64) -> bool {
        self.found.len() as f64 * 100.0 > most * self.of as f64
    }

    fn finding(&self, folder: &str, what: &str, most: f64, advice: &str) -> Option<String> {
        let places = self.found.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        self.exceeds(most).then(|| {
            format!(
                "{folder}: prose: {} of {} {what}, at most {most} % may: {advice}: {places}",
                self.found.len(),
                self.of
            )
        })
    }
}

/// The crates whose comments hide what they speak of.
pub fn check(workspace: &Workspace, product: &[&Source]) -> Vec<String> {
    workspace.packages.iter().flat_map(|package| check_package(package, product)).collect()
}

fn check_package(package: &Package, product: &[&Source]) -> Vec<String> {
    let folder = format!("{}/src", package.folder);
    let mut pronouns = Share { of: 0, found: Vec::new() };
    let mut short = Share { of: 0, found: Vec::new() };
    for source in product.iter().filter(|source| is_inside(&source.path, &folder)) {
        for (line, text) in &source.comments {
            pronouns.of += 1;
            if has_pronoun(text) {
                pronouns.found.push(format!("{}:{line}", source.path));
            }
        }
        for (line, words) in docs(&source.comments) {
            short.of += 1;
            if words <= SHORT_WORDS {
                short.found.push(format!("{}:{line}", source.path));
            }
        }
    }
    let named = pronouns.finding(
        &package.folder,
        "comment lines have a pronoun (who, whose, nobody, ..)",
        PRONOUNS_MAX,
        "name the thread, process, socket or field",
    );
    let said = short.finding(
        &package.folder,
        "doc comments are of three words or fewer",
        SHORT_MAX,
        "say what it is, its unit, its range; a private item may go without",
    );
    named.into_iter().chain(said).collect()
}

fn has_pronoun(text: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_alphabetic());
    words.any(|word| PRONOUNS.iter().any(|pronoun| word.eq_ignore_ascii_case(pronoun)))
}

/// The doc comments among lines of comments: where each begins, and how many words it has.
fn docs(comments: &[(usize, String)]) -> Vec<(usize, usize)> {
    let mut docs: Vec<(usize, usize)> = Vec::new();
    let mut last = 0;
    for (line, text) in comments {
        let Some(said) = text.strip_prefix("///").or_else(|| text.strip_prefix("//!")) else { continue };
        let words = said.split_whitespace().count();
        match docs.last_mut() {
            Some(doc) if last + 1 == *line => doc.1 += words,
            _ => docs.push((*line, words)),
        }
        last = *line;
    }
    docs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    fn findings(text: &str) -> Vec<String> {
        let sources = [
            Source::new("crates/x/src/lib.rs", text),
            Source::new("crates/x/src/tests.rs", "// nobody\n/// That.\n"),
        ];
        check_package(&Package::bare("x"), &rules::product(&sources))
    }

    #[test]
    fn pronouns_in_comments_are_counted_whole() {
        assert!(findings("// wholesale: the peer waits\nlet a = \"who\"; // who\n").is_empty());
        let found = findings("// The thread waits.\n// Nobody waits.\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("1 of 2 comment lines") && found[0].ends_with("crates/x/src/lib.rs:2"),
            "{found:?}"
        );
        assert!(findings("// The thread waits.\n").is_empty());
    }

    #[test]
    fn a_doc_comment_of_three_words_says_nothing() {
        let found = findings("/// See the module.\nfn f() {}\n/// One two\n/// three four.\nfn g() {}\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("1 of 2 doc comments") && found[0].ends_with("crates/x/src/lib.rs:1"),
            "{found:?}"
        );
    }
}
