//! The committed objects are those of the committed sources: `scripts/bpf` writes down the sums of both.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest, Sha256};

const ADVICE: &str = "run `make bpf` and commit what it changes in crates/ccp-linux/bpf";

#[test]
fn objects_were_built_from_these_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
    let list = std::fs::read_to_string(folder.join("SHA256SUMS")).expect("the list of sums");
    let noted: BTreeMap<&str, &str> =
        list.lines().filter_map(|line| line.split_once("  ")).map(|(sum, name)| (name, sum)).collect();
    let mut found = 0;
    for entry in std::fs::read_dir(&folder).expect("readable") {
        let path = entry.expect("readable").path();
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        if name == "SHA256SUMS" {
            continue;
        }
        let sum = Sha256::digest(std::fs::read(&path).expect("readable"));
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(noted.get(name.as_str()), Some(&sum.as_str()), "{name} has changed: {ADVICE}");
        found += 1;
    }
    assert_eq!(found, noted.len(), "a file is gone: {ADVICE}");
}
