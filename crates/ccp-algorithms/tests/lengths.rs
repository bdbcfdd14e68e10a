//! Files that people learn from stay short: each algorithm below 200 lines.

use std::path::Path;

const LINES_MAX: usize = 199;

/// Files of this crate with this ending, each with its number of lines.
fn lengths(folder: &str, ending: &str) -> Vec<(String, usize)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("readable").path());
    let files = files.filter(|path| path.extension().is_some_and(|it| it == ending));
    let length = |path: &Path| std::fs::read_to_string(path).expect("text").lines().count();
    files.map(|path| (path.display().to_string(), length(&path))).collect()
}

#[test]
fn each_algorithm_is_shorter_than_200_lines() {
    let files = [lengths("src", "rs"), lengths("src/programs", "ccp")].concat();
    assert!(files.len() > 15, "{files:?}");
    for (file, lines) in files {
        assert!(lines <= LINES_MAX, "{file}: {lines} lines, at most {LINES_MAX}");
    }
}
