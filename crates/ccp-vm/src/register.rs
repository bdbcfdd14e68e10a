//! Registers as programs name them: a scope and an index in it. This file knows their numbers on the wire, not where a machine keeps them.

/// Report variables of a program at most, the number that Portus' compiler allows.
pub const REPORTS_MAX: usize = 16;
/// Control variables of a program at most (Portus' compiler: 16).
pub const CONTROLS_MAX: usize = 16;
/// Local variables of a program at most (Portus' compiler allows 6, libccp 8).
pub const LOCALS_MAX: usize = 8;
/// Temporaries of one statement at most, as Portus' compiler allows; libccp has 8 and computes nonsense with more.
pub const TEMPS_MAX: usize = 16;
/// The number of primitive signals.
pub const PRIMITIVES: usize = 15;
/// The number of implicit registers.
pub const IMPLICITS: usize = 6;
/// What `+infinity` means, and a round-trip time without a sample: the value that libccp computes with and that agents expect in reports.
pub const INFINITY: u64 = 0xffff_ffff;
/// In definitions only, Portus up to 0.5 wrote this for `+infinity`, and libccp still reads it so.
pub const LEGACY_INFINITY: u32 = 0x3fff_ffff;

/// A group of registers; the numbers are those of the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Scope {
    /// Variables outside `Report`, which agents may set.
    Control = 0,
    /// No register: the index is the value.
    Immediate = 1,
    /// The registers of [`Implicit`].
    Implicit = 2,
    /// Variables that a program has not declared; 0 at the beginning.
    Local = 3,
    /// Signals, which no program may write.
    Primitive = 4,
    /// Variables in `Report` that begin anew after each report.
    VolatileReport = 5,
    /// Variables in `Report`, in one row of indices with the volatile ones.
    Report = 6,
    /// Results of subexpressions, which hold until the end of a run.
    Temp = 7,
    /// Control variables that begin anew after each report, in one row of indices with [`Scope::Control`].
    VolatileControl = 8,
}

impl Scope {
    const fn from_wire(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Control,
            1 => Self::Immediate,
            2 => Self::Implicit,
            3 => Self::Local,
            4 => Self::Primitive,
            5 => Self::VolatileReport,
            6 => Self::Report,
            7 => Self::Temp,
            8 => Self::VolatileControl,
            _ => return None,
        })
    }

    /// The number of registers in this scope; 0 for [`Scope::Immediate`], which has none.
    const fn len(self) -> usize {
        match self {
            Self::Control | Self::VolatileControl => CONTROLS_MAX,
            Self::Report | Self::VolatileReport => REPORTS_MAX,
            Self::Implicit => IMPLICITS,
            Self::Local => LOCALS_MAX,
            Self::Primitive => PRIMITIVES,
            Self::Temp => TEMPS_MAX,
            Self::Immediate => 0,
        }
    }

    /// True for the scopes of which a definition says that they begin anew after each report.
    #[must_use]
    pub const fn is_volatile(self) -> bool {
        matches!(self, Self::VolatileReport | Self::VolatileControl)
    }

    /// True for both scopes of variables in `Report`.
    #[must_use]
    pub const fn is_report(self) -> bool {
        matches!(self, Self::VolatileReport | Self::Report)
    }

    /// True for both scopes of control variables.
    #[must_use]
    pub const fn is_control(self) -> bool {
        matches!(self, Self::VolatileControl | Self::Control)
    }
}

/// Registers that each program has; the numbers are their indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Implicit {
    /// The condition of the present event.
    EventFlag = 0,
    /// Once not 0: true events do not end the run.
    Fallthrough = 1,
    /// Not 0: a report follows the run.
    Report = 2,
    /// Microseconds since the program began, or since it set this register, plus what it set. The same during a whole run.
    Micros = 3,
    /// Congestion window, bytes. Holds the flow's own at the beginning of a run; 0 at its end: no change.
    Cwnd = 4,
    /// Pacing rate, bytes per second. As `Cwnd`.
    Rate = 5,
}

/// One register, or an immediate value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Register {
    /// The group of registers.
    pub scope: Scope,
    /// The number in the group; for [`Scope::Immediate`] the value.
    pub index: u32,
}

impl Register {
    /// Bytes of one encoded register.
    pub const LEN: usize = 5;

    /// Register `index` of `scope`; no check of bounds.
    #[must_use]
    pub const fn new(scope: Scope, index: u32) -> Self {
        Self { scope, index }
    }

    /// An immediate value; `u32::MAX` stands for [`INFINITY`].
    #[must_use]
    pub const fn immediate(value: u32) -> Self {
        Self::new(Scope::Immediate, value)
    }

    /// One of the implicit registers.
    #[must_use]
    pub const fn implicit(which: Implicit) -> Self {
        Self::new(Scope::Implicit, which as u32)
    }

    /// The register in 5 bytes, `scope u8 | index u32`; `None` if the scope has no meaning.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let [scope, index @ ..] = *bytes;
        Some(Self { scope: Scope::from_wire(scope)?, index: u32::from_le_bytes(index) })
    }

    /// The 5 bytes of this register.
    #[must_use]
    pub fn encode(self) -> [u8; Self::LEN] {
        let [a, b, c, d] = self.index.to_le_bytes();
        [self.scope as u8, a, b, c, d]
    }

    /// True if the index lies in its scope; immediates always do.
    #[must_use]
    pub const fn is_in_bounds(self) -> bool {
        matches!(self.scope, Scope::Immediate) || (self.index as usize) < self.scope.len()
    }

    /// True for registers that programs may write.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        !matches!(self.scope, Scope::Immediate | Scope::Primitive)
    }
}

/// What an agent may set of a flow between two runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Field {
    /// The control variable of this index, below [`CONTROLS_MAX`].
    Control(u8),
    /// The congestion window, bytes.
    Cwnd,
    /// The pacing rate, bytes per second.
    Rate,
}

impl Field {
    /// The field that `register` names; `None` if agents may not set that register.
    #[must_use]
    pub const fn of(register: Register) -> Option<Self> {
        const CWND: u32 = Implicit::Cwnd as u32;
        const RATE: u32 = Implicit::Rate as u32;
        match (register.scope, register.index) {
            (Scope::Control | Scope::VolatileControl, index) if (index as usize) < CONTROLS_MAX => {
                Some(Self::Control(index as u8))
            }
            (Scope::Implicit, CWND) => Some(Self::Cwnd),
            (Scope::Implicit, RATE) => Some(Self::Rate),
            _ => None,
        }
    }
}
