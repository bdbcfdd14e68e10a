//! Settings of the library: environment variables, or a profile, which is a named set of them. A variable that is set has precedence over
//! the profile.

use crate::variables;

/// Environment variable: the name of a [`Profile`].
pub const PROFILE_ENV: &str = "TOWPATH_PROFILE";
/// Environment variable: longest time to spin before sleeping, microseconds; it overrides the service's setting.
pub const SPIN_ENV: &str = "TOWPATH_SPIN_US";
/// Environment variable; not 0: connections over a port acknowledge at once, as if the program had set `TCP_QUICKACK`.
pub const QUICK_ACK_ENV: &str = "TOWPATH_QUICK_ACK";
/// Environment variable: bytes of the smallest ring that a sender lends itself.
pub const RING_MIN_ENV: &str = "TOWPATH_RING_MIN";
/// Environment variable; not 0: a bad pointer gives EFAULT, where the program would otherwise get SIGSEGV.
pub const CHECK_POINTERS_ENV: &str = "TOWPATH_CHECK_POINTERS";
/// Environment variable; not 0: fail instead of falling back to the kernel.
pub const REQUIRE_ENV: &str = "TOWPATH_REQUIRE";
/// Environment variable: the behaviour of `io_uring_setup`; see [`Rings`].
pub const IO_URING_ENV: &str = "TOWPATH_IO_URING";

/// Environment variable: whether connections go over channels to another service, a name of [`ChannelWish`](crate::ChannelWish).
pub const CHANNEL_ENV: &str = "TOWPATH_CHANNEL";

/// The treatment of a program's io_uring instances; this library does not see their operations on sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rings {
    /// They work; sockets that the program may use with them belong to the kernel from then on.
    Kernel,
    /// `io_uring_setup` fails with EPERM, as when the administrator has disabled it (`kernel.io_uring_disabled`).
    Deny,
}

impl Rings {
    /// The target of `/proc/PID/fd/N` for an io_uring descriptor.
    pub const LINK: &'static str = "anon_inode:[io_uring]";
    /// The values of `towpath run --io-uring`.
    pub const NAMES: [(&'static str, Self); 2] = [("kernel", Self::Kernel), ("deny", Self::Deny)];

    /// The variant with this name in [`Self::NAMES`].
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, rings)| *rings)
    }
}

/// One variable of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Name of the environment variable.
    pub variable: &'static str,
    /// The value that the profile gives it.
    pub value: &'static str,
    /// The effect of that value, for people.
    pub effect: &'static str,
}

/// A named set of variables.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The value of `towpath run --profile`.
    pub name: &'static str,
    /// The purpose of the profile, for people.
    pub purpose: &'static str,
    /// The variables that it sets.
    pub knobs: &'static [Knob],
}

/// All profiles that exist.
pub const PROFILES: [Profile; 3] = [
    Profile {
        name: "latency",
        purpose: "the answer as soon as possible, for processor time",
        knobs: &[
            // A wake-up costs 40 to 60 us on two cores: spinning pays for a program that waits a few hundred microseconds for each answer.
            Knob {
                variable: SPIN_ENV,
                value: "1000",
                effect: "waits spin for up to a millisecond before they sleep",
            },
            Knob {
                variable: QUICK_ACK_ENV,
                value: "1",
                effect: "over a port every segment is acknowledged at once",
            },
        ],
    },
    Profile {
        name: "throughput",
        purpose: "processor time for the work, none for waiting",
        knobs: &[
            Knob { variable: SPIN_ENV, value: "0", effect: "waits sleep at once" },
            Knob {
                variable: RING_MIN_ENV,
                value: "262144",
                effect: "send rings begin with 256 KiB instead of growing to that",
            },
        ],
    },
    Profile {
        name: "safe",
        purpose: "programs that rely on EFAULT, or are not to be trusted with pointers",
        knobs: &[Knob {
            variable: CHECK_POINTERS_ENV,
            value: "1",
            effect: "a bad pointer is EFAULT as on the kernel, for a system call or two more in each call",
        }],
    },
];

/// The profile with this name.
#[must_use]
pub fn profile(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}

/// The value of a variable in an environment: its own, else the profile's. An empty value counts as unset.
#[must_use]
pub fn setting_in(variable: &str, environment: impl Fn(&str) -> Option<String>) -> Option<String> {
    environment(variable).filter(|value| !value.is_empty()).or_else(|| {
        let profile = profile(&environment(PROFILE_ENV)?)?;
        profile.knobs.iter().find(|knob| knob.variable == variable).map(|knob| knob.value.to_owned())
    })
}

/// The value of a variable in this process.
#[must_use]
pub fn setting(variable: &str) -> Option<String> {
    setting_in(variable, variables::text)
}

/// True when the variable is set in this process, itself or by the profile, to anything but `0`.
#[must_use]
pub fn is_on(variable: &str) -> bool {
    setting(variable).is_some_and(|value| value != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_wins_over_the_profile() {
        let environment = |pairs: &'static [(&str, &str)]| {
            move |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        };
        let latency = environment(&[(PROFILE_ENV, "latency")]);
        assert_eq!(setting_in(SPIN_ENV, latency).as_deref(), Some("1000"));
        assert_eq!(setting_in(CHECK_POINTERS_ENV, latency), None);
        let both = environment(&[(PROFILE_ENV, "latency"), (SPIN_ENV, "7")]);
        assert_eq!(setting_in(SPIN_ENV, both).as_deref(), Some("7"));
        let empty = environment(&[(PROFILE_ENV, "throughput"), (SPIN_ENV, "")]);
        assert_eq!(setting_in(SPIN_ENV, empty).as_deref(), Some("0"));
        assert_eq!(setting_in(SPIN_ENV, environment(&[(PROFILE_ENV, "fast")])), None);
    }
}
