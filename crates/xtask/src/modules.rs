//! Modules of a crate that need each other: a newcomer has to read all of a cycle before any one of it is understood.

use std::collections::{BTreeMap, BTreeSet};

use crate::rules::is_inside;
use crate::source::Source;
use crate::workspace::{Package, Workspace};

/// So many modules may need each other in a circle.
const CYCLE_MAX: usize = 8;

/// A module by its path inside the crate, the root as an empty list.
type Module = Vec<String>;

/// The crates in which too many modules need each other.
pub fn check(workspace: &Workspace, product: &[&Source]) -> Vec<String> {
    workspace.packages.iter().filter_map(|package| check_package(package, product)).collect()
}

fn check_package(package: &Package, product: &[&Source]) -> Option<String> {
    let cycle = largest_cycle(&needs(package, product));
    (cycle.len() > CYCLE_MAX).then(|| {
        let names: Vec<String> = cycle.iter().map(|module| module.join("::")).collect();
        format!(
            "{}: cycle: {} modules need each other, at most {CYCLE_MAX} may: {}",
            package.folder,
            names.len(),
            names.join(", ")
        )
    })
}

/// Which modules of a package each of its modules needs. The root does not count: it names every module.
fn needs(package: &Package, product: &[&Source]) -> BTreeMap<Module, BTreeSet<Module>> {
    let folder = format!("{}/src", package.folder);
    let inside = product.iter().filter(|source| is_inside(&source.path, &folder));
    let files: BTreeMap<Module, &Source> =
        inside.map(|source| (module_of(&source.path[folder.len() + 1..]), *source)).collect();
    let exports = files.get(&Module::new()).map(|root| exports(&root.product)).unwrap_or_default();
    let known: BTreeSet<&Module> = files.keys().collect();
    let mut needs = BTreeMap::new();
    for (module, source) in files.iter().filter(|(module, _)| !module.is_empty()) {
        let paths = paths(&source.product).into_iter();
        let named = paths.filter_map(|path| resolve(module, &path, &known, &exports));
        needs.insert(module.clone(), named.filter(|other| other != module).collect());
    }
    needs
}

/// `epoll/kernel.rs` is `epoll::kernel`, `lib.rs` the root.
fn module_of(file: &str) -> Module {
    let mut parts: Module = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

/// What the root hands on from its modules: the item's name and the module's path.
fn exports(root: &str) -> BTreeMap<String, Module> {
    let handed = paths(root).into_iter().filter_map(|mut path| {
        let name = path.pop()?;
        (!path.is_empty()).then_some((name, path))
    });
    handed.collect()
}

/// The module that a path names, as seen from inside `module`.
fn resolve(
    module: &[String],
    path: &[String],
    known: &BTreeSet<&Module>,
    exports: &BTreeMap<String, Module>,
) -> Option<Module> {
    let first = path.first()?;
    let full: Module = match first.as_str() {
        "crate" => path[1..].to_vec(),
        "self" => [module, &path[1..]].concat(),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            [&module[..module.len().saturating_sub(ups)], &path[ups..]].concat()
        }
        _ => {
            let below = [module, std::slice::from_ref(first)].concat();
            if !known.contains(&below) {
                return None;
            }
            [module, path].concat()
        }
    };
    let handed = full
        .first()
        .and_then(|name| exports.get(name))
        .filter(|_| full.len() == 1 || !known.contains(&full[..1].to_vec()));
    let full = handed.cloned().unwrap_or(full);
    (1..=full.len()).rev().map(|len| full[..len].to_vec()).find(|prefix| known.contains(prefix))
}

/// Every path of the text with `::` in it, groups in braces multiplied out.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = code[at..].find("::").map(|n| at + n) {
        let start = code[..next].rfind(|c: char| !(c.is_alphanumeric() || c == '_')).map_or(0, |n| n + 1);
        at = next + 2;
        if start == next || code[..start].ends_with("::") {
            continue;
        }
        at = read_path(code, start, &mut Vec::new(), &mut found).max(at);
    }
    found
}

/// Reads the path at `at`, and the group at its end; returns where it ends.
fn read_path(code: &str, mut at: usize, prefix: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    let before = prefix.len();
    loop {
        let name_end =
            code[at..].find(|c: char| !(c.is_alphanumeric() || c == '_')).map_or(code.len(), |n| at + n);
        if name_end > at {
            prefix.push(code[at..name_end].to_owned());
        }
        at = name_end;
        if code[at..].starts_with('{') {
            at = read_group(code, at + 1, prefix, found);
            break;
        }
        if !code[at..].starts_with("::") {
            found.push(prefix.clone());
            break;
        }
        at += 2;
    }
    prefix.truncate(before);
    at
}

/// Reads the paths between braces; `at` is behind the first one.
fn read_group(code: &str, mut at: usize, prefix: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    loop {
        at += code[at..].len() - code[at..].trim_start().len();
        match code.as_bytes().get(at) {
            None => return at,
            Some(b'}') => return at + 1,
            Some(byte) if byte.is_ascii_alphanumeric() || *byte == b'_' => {
                at = read_path(code, at, prefix, found);
            }
            // A comma, a star, or the rest of `name as other`.
            Some(_) => at += code[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
}

/// The most modules each of which needs all others, by way of some of them.
fn largest_cycle(needs: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Module> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        needs.keys().map(|module| (module, reachable(needs, module))).collect();
    let cycle_of = |module: &Module| -> Vec<Module> {
        let back = reach[module]
            .iter()
            .filter(|other| reach.get(*other).is_some_and(|reach| reach.contains(module)));
        back.map(|other| (*other).clone()).collect()
    };
    needs.keys().map(cycle_of).max_by_key(Vec::len).unwrap_or_default()
}

fn reachable<'a>(needs: &'a BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Module> = needs.get(from).into_iter().flatten().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(needs.get(module).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    fn cycle(files: &[(&str, &str)]) -> String {
        let source = |(name, text): &(&str, &str)| Source::new(&format!("crates/x/src/{name}"), text);
        let sources: Vec<Source> = files.iter().map(source).collect();
        let names = largest_cycle(&needs(&Package::bare("x"), &rules::product(&sources)))
            .iter()
            .map(|module| module.join("::"))
            .collect::<Vec<_>>();
        names.join(" ")
    }

    #[test]
    fn modules_that_need_each_other_are_found() {
        let found = cycle(&[
            ("lib.rs", "mod a; mod b; mod c; mod d; pub use c::Thing;"),
            ("a.rs", "use crate::{b::{One, Two as Three}, d};"),
            ("b.rs", "use crate::Thing; fn f() { d::g(); }"),
            ("c.rs", "fn f() { super::a::g(); }"),
            ("d.rs", "mod below; fn g() { below::h(); std::a::b(); }"),
            ("d/below.rs", "use std::c::a;"),
        ]);
        assert_eq!(found, "a b c");
    }

    #[test]
    fn a_child_that_needs_its_parent_is_a_cycle() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod below; use below::One;"),
            ("a/below.rs", "use super::Two; use super::super::a;"),
        ];
        assert_eq!(cycle(&files), "a a::below");
        assert_eq!(
            cycle(&[("lib.rs", "mod a;"), ("a.rs", "mod below;"), ("a/below.rs", "use super::Two;")]),
            ""
        );
    }

    #[test]
    fn tests_do_not_count() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b;"),
            ("b.rs", "#[cfg(test)] mod tests { use crate::a::x; }"),
        ];
        assert_eq!(cycle(&files), "");
    }
}
