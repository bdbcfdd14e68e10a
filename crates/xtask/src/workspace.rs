//! Lists what is to be checked: the packages as cargo reports them, and the Rust files on disk.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

/// Folders of the repository with our Rust code.
const CODE_FOLDERS: [&str; 3] = ["crates", "fuzz", "tests"];

/// The repository's packages and files.
pub struct Workspace {
    /// The folder with `ARCHITECTURE.md` and `crates/`.
    pub root: PathBuf,
    /// Every package of the workspace, sorted by noun.
    pub packages: Vec<Package>,
    /// The path of every Rust file relative to the root, with `/` between folders, sorted.
    pub files: Vec<String>,
}

/// One package of the workspace.
pub struct Package {
    /// The package's name without `towpath-`, such as `fastpath`; `towpath` for the command line.
    pub noun: String,
    /// Nouns of the workspace packages that it needs to build, without those for tests only, sorted.
    pub needs: Vec<String>,
    /// Names of external crates that it depends on, including those for tests and builds.
    pub borrows: Vec<String>,
    /// The package's folder, relative to the root.
    pub folder: String,
    /// Root files of its library and programs, relative to the root.
    pub target_roots: Vec<String>,
    /// Root files of its test programs, relative to the root.
    pub test_roots: Vec<String>,
    /// Whether `cargo test` runs the tests inside its library, if it has one.
    pub runs_tests: bool,
    /// Whether `cargo test` runs the code in its library's documentation, if it has one.
    pub runs_examples: bool,
}

#[cfg(test)]
impl Package {
    /// A package below `crates` that has a name and nothing else.
    pub fn bare(noun: &str) -> Self {
        Self {
            noun: noun.to_owned(),
            needs: Vec::new(),
            borrows: Vec::new(),
            folder: format!("crates/{noun}"),
            target_roots: Vec::new(),
            test_roots: Vec::new(),
            runs_tests: true,
            runs_examples: true,
        }
    }
}

impl Workspace {
    /// Gets the packages from cargo and the files from the disk.
    ///
    /// # Errors
    /// When cargo cannot be run or its answer is unexpected, or a folder cannot be read.
    pub fn load(root: &Path) -> anyhow::Result<Self> {
        let root = root.canonicalize().with_context(|| format!("no repository at {}", root.display()))?;
        let mut files = Vec::new();
        for folder in CODE_FOLDERS {
            list_rust_files(&root, folder, &mut files)?;
        }
        files.sort();
        let packages = parse_metadata(&root, &metadata(&root)?)?;
        Ok(Self { root, packages, files })
    }
}

fn metadata(root: &Path) -> anyhow::Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata did not answer JSON")
}

fn parse_metadata(root: &Path, metadata: &Value) -> anyhow::Result<Vec<Package>> {
    let mut packages = Vec::new();
    for package in array(metadata, "packages")? {
        packages.push(parse_package(root, package)?);
    }
    packages.sort_by(|a, b| a.noun.cmp(&b.noun));
    Ok(packages)
}

fn parse_package(root: &Path, package: &Value) -> anyhow::Result<Package> {
    let (mut needs, mut borrows) = (Vec::new(), Vec::new());
    for dependency in array(package, "dependencies")? {
        let is_ours = dependency.get("path").is_some_and(Value::is_string);
        let is_for_tests = dependency.get("kind").and_then(Value::as_str) == Some("dev");
        let name = text(dependency, "name")?;
        if !is_ours {
            borrows.push(name.to_owned());
        } else if !is_for_tests {
            needs.push(noun(name));
        }
    }
    needs.sort();
    needs.dedup();

    let manifest = Path::new(text(package, "manifest_path")?);
    let folder = manifest.parent().context("a manifest lies in a folder")?;
    let (mut target_roots, mut test_roots) = (Vec::new(), Vec::new());
    let (mut runs_tests, mut runs_examples) = (true, true);
    for target in array(package, "targets")? {
        let path = relative(root, Path::new(text(target, "src_path")?))?;
        let has_kind = |kinds: &[&str]| {
            Ok::<_, anyhow::Error>(
                array(target, "kind")?.iter().filter_map(Value::as_str).any(|kind| kinds.contains(&kind)),
            )
        };
        let is_on = |key: &str| target.get(key).and_then(Value::as_bool) != Some(false);
        if has_kind(&["lib", "rlib", "cdylib", "dylib", "staticlib", "proc-macro"])? {
            (runs_tests, runs_examples) = (is_on("test"), is_on("doctest"));
            target_roots.push(path);
        } else if has_kind(&["bin"])? {
            target_roots.push(path);
        } else if has_kind(&["test"])? {
            test_roots.push(path);
        }
    }
    Ok(Package {
        noun: noun(text(package, "name")?),
        needs,
        borrows,
        folder: relative(root, folder)?,
        target_roots,
        test_roots,
        runs_tests,
        runs_examples,
    })
}

fn noun(package_name: &str) -> String {
    package_name.strip_prefix("towpath-").unwrap_or(package_name).to_owned()
}

fn array<'a>(value: &'a Value, key: &str) -> anyhow::Result<&'a Vec<Value>> {
    value.get(key).and_then(Value::as_array).with_context(|| format!("cargo metadata: no list {key}"))
}

fn text<'a>(value: &'a Value, key: &str) -> anyhow::Result<&'a str> {
    value.get(key).and_then(Value::as_str).with_context(|| format!("cargo metadata: no text {key}"))
}

fn relative(root: &Path, path: &Path) -> anyhow::Result<String> {
    let inside =
        path.strip_prefix(root).with_context(|| format!("{} is outside the repository", path.display()))?;
    Ok(inside.to_string_lossy().replace('\\', "/"))
}

fn list_rust_files(root: &Path, folder: &str, files: &mut Vec<String>) -> anyhow::Result<()> {
    let path = root.join(folder);
    if !path.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let inside = format!("{folder}/{name}");
        let kind = entry.file_type()?;
        if kind.is_dir() && name != "target" && !name.starts_with('.') {
            list_rust_files(root, &inside, files)?;
        } else if kind.is_file() && name.ends_with(".rs") {
            files.push(inside);
        }
    }
    Ok(())
}
