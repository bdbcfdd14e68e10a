//! What tests that preload the library share, this crate's and the command line's.

use std::path::{Path, PathBuf};

/// The library that Cargo built beside this test, for the workspace's tests.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let in_folder = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                name.starts_with("libtowpath_preload") && name.ends_with(".so")
            })
            .collect()
    };
    let mut found = in_folder(deps);
    found.extend(in_folder(deps.parent().unwrap()));
    found.sort_by_key(|path| path.metadata().unwrap().modified().unwrap());
    found.pop().expect("the preload library is built with the workspace: cargo build -p towpath-preload")
}
