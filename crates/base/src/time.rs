//! Instants and durations in nanoseconds. This crate reads no clock: `now` is an argument everywhere.

/// A monotonic point in time, in nanoseconds since an origin that the caller has chosen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
#[repr(transparent)]
pub struct Instant(u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
#[repr(transparent)]
pub struct Duration(u64);

impl Instant {
    /// The origin of time.
    pub const ZERO: Self = Self(0);
    /// A deadline that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant `ns` nanoseconds after the origin.
    #[must_use]
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    #[inline]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Whole microseconds since the origin.
    #[must_use]
    #[inline]
    pub const fn as_us(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole milliseconds since the origin.
    #[must_use]
    #[inline]
    pub const fn as_ms(self) -> u64 {
        self.0 / 1_000_000
    }

    /// `self + d`, saturating at [`Instant::NEVER`].
    #[must_use]
    #[inline]
    pub const fn plus(self, d: Duration) -> Self {
        Self(self.0.saturating_add(d.0))
    }

    /// The time from `earlier` to `self`; zero when `earlier` is later.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Duration {
    /// A duration of 0 ns.
    pub const ZERO: Self = Self(0);
    /// The longest duration: 2^64 - 1 ns.
    pub const MAX: Self = Self(u64::MAX);

    /// A duration of `ns` nanoseconds.
    #[must_use]
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// A duration of `us` microseconds, saturating.
    #[must_use]
    #[inline]
    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// A duration of `ms` milliseconds, saturating.
    #[must_use]
    #[inline]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// A duration of `s` seconds, saturating.
    #[must_use]
    #[inline]
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }

    /// The duration in nanoseconds.
    #[must_use]
    #[inline]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// The duration in whole microseconds.
    #[must_use]
    #[inline]
    pub const fn as_us(self) -> u64 {
        self.0 / 1_000
    }

    /// The duration in whole milliseconds.
    #[must_use]
    #[inline]
    pub const fn as_ms(self) -> u64 {
        self.0 / 1_000_000
    }

    /// `self * n`, saturating.
    #[must_use]
    #[inline]
    pub const fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }

    /// `self + other`, saturating.
    #[must_use]
    #[inline]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}
