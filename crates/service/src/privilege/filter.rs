//! The filter for system calls, in three layers; the kernel asks all of them, and one that refuses is enough.
//!
//! A refused call fails, it does not end the process: the list is of what this build calls, and another libc may make a call that it
//! does not hold. A daemon that dies of it takes every connection with it, one that hears ENOSYS goes the way that libc has for old kernels.
//! What no part of the service ever calls, a new process or `ptrace`, is EPERM. Either leaves a line in the kernel's log
//! (`type=1326`, with the number of the call).

use super::{sys, table};
use rustix::io::Errno;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use table::Test;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Puts all layers before the system calls of this thread.
pub fn install() -> Result<(), Errno> {
    for (program, is_logged) in layers().map_err(|_| Errno::INVAL)? {
        sys::install_filter(&program, is_logged)?;
    }
    Ok(())
}

/// Programs in the order in which they are installed, and whether what they refuse is logged. Of two that refuse, the later one's error
/// number is what the caller gets. The first allows `seccomp`, which installs the others; the last does not.
fn layers() -> Result<[(BpfProgram, bool); 3], BackendError> {
    let numbers = table::calls().map(|(_, number)| number).chain([libc::SYS_seccomp]);
    let known: Rules = numbers.map(|number| (number, Vec::new())).collect();
    let mut refused: Rules =
        table::NEVER.iter().copied().flatten().map(|(_, number)| (*number, Vec::new())).collect();
    for refusal in table::REFUSED.into_iter().flatten() {
        refused.entry(refusal.call.1).or_default().push(rule(refusal.when)?);
    }
    // Its flags lie in memory, where no filter looks. libc takes `clone` where the kernel has no `clone3`.
    let hidden: Rules = [(libc::SYS_clone3, Vec::new())].into();
    let (allow, unknown) = (SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32));
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    Ok([
        (compile(known, unknown.clone(), allow.clone())?, true),
        (compile(hidden, allow.clone(), unknown)?, false),
        (compile(refused, allow, denied)?, true),
    ])
}

fn compile(rules: Rules, other: SeccompAction, listed: SeccompAction) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, other, listed, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// The rule that holds where all of `tests` do.
fn rule(tests: &[Test]) -> Result<SeccompRule, BackendError> {
    let own = rustix::process::getpid().as_raw_pid() as u64;
    let condition = |test: &Test| {
        let (index, operator, value) = match *test {
            Test::Is(index, value) => (index, SeccompCmpOp::Eq, value),
            Test::IsNot(index, value) => (index, SeccompCmpOp::Ne, value),
            Test::Bits(index, mask, value) => (index, SeccompCmpOp::MaskedEq(mask), value),
            Test::IsNotOwnProcess(index) => (index, SeccompCmpOp::Ne, own),
        };
        // Flags, families and numbers of processes are ints: the kernel looks at no more of the register either.
        SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)
    };
    SeccompRule::new(tests.iter().map(condition).collect::<Result<_, _>>()?)
}
