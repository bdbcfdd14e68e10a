//! Tuples as parameters: a function that takes `(a, b): (A, B)` hides a parameter from the limit on arguments, and its caller cannot see what
//! each half means.

use crate::rules::is_inside;
use crate::source::{Source, line_of, occurrences};
use crate::workspace::{Package, Workspace};

/// Places that a finding names.
const NAMED: usize = 5;

/// The crates that have such parameters.
pub fn check(workspace: &Workspace, product: &[&Source]) -> Vec<String> {
    workspace.packages.iter().filter_map(|package| check_package(package, product)).collect()
}

fn check_package(package: &Package, product: &[&Source]) -> Option<String> {
    let inside = product.iter().filter(|source| is_inside(&source.path, &package.folder));
    let found: Vec<String> = inside
        .flat_map(|source| tuple_parameters(&source.product).map(move |at| (source, at)))
        .map(|(source, at)| format!("{}:{}", source.path, line_of(&source.product, at)))
        .collect();
    let places = found.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    (!found.is_empty()).then(|| {
        format!(
            "{}: tuples: {} parameters are tuples: name a struct, or pass the parts as parameters of their own: {places}",
            package.folder,
            found.len()
        )
    })
}

/// Where each function parameter begins that has a tuple of two or more as its type, or a reference to one.
fn tuple_parameters(code: &str) -> impl Iterator<Item = usize> + '_ {
    let lists = occurrences(code, "fn").filter_map(|at| parameters_of(code, at + "fn".len()));
    let parameters = lists.flat_map(|(start, list)| split(list).map(move |(at, text)| (start + at, text)));
    parameters.filter(|(_, text)| type_of(text).is_some_and(is_tuple)).map(|(at, _)| at)
}

/// The text between the parentheses of the function that has its name behind `at`, and where that text begins. A type such as `fn(A) -> B`
/// has no name and is no function.
fn parameters_of(code: &str, at: usize) -> Option<(usize, &str)> {
    let rest = code[at..].trim_start();
    let name_len = rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '$' | '#')))?;
    let behind_name = code.len() - rest.len() + name_len;
    let is_open = |(n, byte, depth): &(usize, u8, usize)| *byte == b'(' && *depth == 0 && *n >= behind_name;
    let open = depths(code, behind_name).find(is_open).filter(|_| name_len > 0)?.0;
    let close = depths(code, open).skip(1).find(|(_, byte, depth)| *byte == b')' && *depth == 0)?.0;
    Some((open + 1, &code[open + 1..close]))
}

/// The bytes of `code` from `start` on: position, byte, and how many brackets are open around it. The brackets themselves count as outside.
fn depths(code: &str, start: usize) -> impl Iterator<Item = (usize, u8, usize)> + '_ {
    let bytes = code.as_bytes();
    let mut depth = 0_usize;
    (start..bytes.len()).map(move |at| {
        let byte = bytes[at];
        let is_arrow = byte == b'>' && at > start && matches!(bytes[at - 1], b'-' | b'=');
        if matches!(byte, b')' | b']' | b'}') || (byte == b'>' && !is_arrow) {
            depth = depth.saturating_sub(1);
        }
        let around = depth;
        if matches!(byte, b'(' | b'[' | b'{' | b'<') {
            depth += 1;
        }
        (at, byte, around)
    })
}

/// The parts between the commas of `list`, and where each begins: behind blanks, and behind its attributes.
fn split(list: &str) -> impl Iterator<Item = (usize, &str)> + '_ {
    let commas = depths(list, 0).filter(|(_, byte, depth)| *byte == b',' && *depth == 0);
    let ends = commas.map(|(at, ..)| at).chain(std::iter::once(list.len()));
    let mut start = 0;
    ends.map(move |end| {
        let part = &list[start..end];
        let at = start + part.len() - part.trim_start().len();
        start = end + 1;
        (at, part.trim())
    })
}

/// What stands behind the colon of a parameter; `None` for `self`.
fn type_of(parameter: &str) -> Option<&str> {
    let bytes = parameter.as_bytes();
    let is_colon = |at: usize| bytes[at] == b':' && bytes.get(at + 1) != Some(&b':') && bytes[at - 1] != b':';
    let colon = depths(parameter, 0).find(|(at, _, depth)| *depth == 0 && *at > 0 && is_colon(*at))?.0;
    Some(parameter[colon + 1..].trim())
}

/// True for `(A, B)`, `&(A, B)` and `&'a mut (A, B)`.
fn is_tuple(of_type: &str) -> bool {
    let mut rest = of_type;
    while let Some(target) = rest.strip_prefix('&') {
        let target = target.trim_start();
        let behind_lifetime = target.strip_prefix('\'').and_then(|name| name.split_once(' '));
        let target = behind_lifetime.map_or(target, |(_, target)| target.trim_start());
        rest = target.strip_prefix("mut ").unwrap_or(target).trim_start();
    }
    let inside = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    inside.is_some_and(|inside| split(inside).filter(|(_, part)| !part.is_empty()).count() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    /// What the rule says of a crate with `text` as its only file outside tests.
    fn finding(text: &str) -> Option<String> {
        let tuples = "fn f(a: (u8, u8)) {}";
        let sources = [
            Source::new("crates/x/src/lib.rs", text),
            Source::new("crates/x/src/tests.rs", tuples),
            Source::new("crates/x/tests/all.rs", tuples),
            Source::new("crates/x/benches/speed.rs", tuples),
            Source::new("crates/other/src/lib.rs", tuples),
        ];
        check_package(&Package::bare("x"), &rules::product(&sources))
    }

    fn lines(text: &str) -> Vec<usize> {
        tuple_parameters(text).map(|at| line_of(text, at)).collect()
    }

    #[test]
    fn parameters_that_are_tuples_are_found() {
        let text = "\
fn f((a, b): (A, B)) {}
fn g<F: Fn(u8, u8) -> u8, const N: usize>(self, name: (A, B)) -> (C, D) { h((1, 2)) }
fn i(
    a: A,
    mut b: (u32, Vec<(u8, u8)>),
) {}
fn j(&(a, b): &(A, B), c: &'a mut (A, B)) {}
";
        assert_eq!(lines(text), [1, 2, 5, 7, 7]);
    }

    #[test]
    fn other_parameters_are_not() {
        let text = "\
fn f(&mut self, a: A, b: &[(A, B)], c: Option<(A, B)>, d: [A; 2]) -> (A, B) {}
fn g(each: impl Fn((A, B)) -> (C, D), of: fn(A, (A, B)), Pair { a, b }: Pair, unit: (), one: (A)) {}
fn h() { let say = |(a, b): (A, B)| a; let pair: (A, B) = (a, b); }
struct S { pair: (A, B), call: fn(pair: (A, B)) }
";
        assert_eq!(lines(text), [0; 0]);
    }

    #[test]
    fn tests_may_have_tuples() {
        assert_eq!(finding("#[cfg(test)]\nmod tests { fn f(a: (A, B)) {} }\nfn g() {}\n"), None);
    }

    #[test]
    fn a_finding_names_the_places() {
        let found = finding("fn f(a: (A, B)) {}\nfn g(a: (A, B)) {}\n").expect("there are two");
        assert!(found.starts_with("crates/x: tuples: 2 parameters are tuples"), "{found}");
        assert!(found.ends_with("crates/x/src/lib.rs:1, crates/x/src/lib.rs:2"), "{found}");
    }
}
