//! Whether this kernel, and this process, can run the programs: asked before anything is loaded, answered in one line.

use std::fmt;
use std::path::Path;

use rustix::thread::{CapabilitySet, capabilities};

/// The type information of the running kernel.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
/// `cong_control` has the arguments that the programs expect since this version.
const LEAST: Version = Version { major: 6, minor: 10 };

/// A version of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version {
    /// The 6 of 6.10.
    pub major: u32,
    /// The 10 of 6.10.
    pub minor: u32,
}

impl Version {
    /// The version at the beginning of a release as `uname -r` shows it; `None` if it has none.
    fn of_release(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
        Some(Self { major, minor })
    }
}

/// Why the kernel's TCP cannot be given programs here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unsupported {
    /// The kernel is older than 6.10, or says no version.
    OldKernel(String),
    /// The kernel has no type information (`CONFIG_DEBUG_INFO_BTF`).
    NoTypes,
    /// The process may not load programs for the kernel's TCP (`CAP_BPF` and `CAP_NET_ADMIN`).
    NoPermission,
    /// This program was built without the loader.
    NotBuilt,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OldKernel(release) => write!(to, "the kernel is {release}; programs for its TCP need 6.10 or later"),
            Self::NoTypes => write!(to, "the kernel has no {KERNEL_TYPES} (CONFIG_DEBUG_INFO_BTF)"),
            Self::NoPermission => to.write_str("programs for the kernel's TCP need root (CAP_BPF and CAP_NET_ADMIN)"),
            Self::NotBuilt => to.write_str(
                "this towpath was built without the loader of kernel programs: install libelf-dev and zlib1g-dev, then \
                 `cargo build --release -p towpath --features kernel`",
            ),
        }
    }
}

impl std::error::Error for Unsupported {}

/// Looks whether programs can be loaded here.
///
/// # Errors
/// The first thing that is missing.
pub fn support() -> Result<(), Unsupported> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    judge(&release, Path::new(KERNEL_TYPES).exists(), is_permitted())
}

fn judge(release: &str, has_types: bool, is_permitted: bool) -> Result<(), Unsupported> {
    if Version::of_release(release).is_none_or(|version| version < LEAST) {
        return Err(Unsupported::OldKernel(release.to_owned()));
    }
    if !has_types {
        return Err(Unsupported::NoTypes);
    }
    if !is_permitted {
        return Err(Unsupported::NoPermission);
    }
    if cfg!(feature = "load") { Ok(()) } else { Err(Unsupported::NotBuilt) }
}

fn is_permitted() -> bool {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
    capabilities(None).is_ok_and(|sets| {
        sets.effective.contains(needed) || sets.effective.contains(CapabilitySet::SYS_ADMIN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_that_is_missing_is_named() {
        for old in ["6.9.12", "5.15.0-91-generic", "unknown", "6"] {
            assert_eq!(judge(old, true, true), Err(Unsupported::OldKernel(old.to_owned())));
        }
        assert_eq!(judge("6.10.0", false, true), Err(Unsupported::NoTypes));
        assert_eq!(judge("6.18.44-fc", true, false), Err(Unsupported::NoPermission));
        let built = if cfg!(feature = "load") { Ok(()) } else { Err(Unsupported::NotBuilt) };
        assert_eq!(judge("7.0-rc1", true, true), built);
        for why in [
            Unsupported::OldKernel("5.4".into()),
            Unsupported::NoTypes,
            Unsupported::NoPermission,
            Unsupported::NotBuilt,
        ] {
            assert!(!why.to_string().contains('\n'));
        }
    }
}
