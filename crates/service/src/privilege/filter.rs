//! The filter for system calls, in three layers. The kernel runs all of them; a call is refused if one layer refuses it.
//!
//! A refused call fails and does not end the process: the list has the calls of this build, and another libc may make further ones. A
//! daemon that is killed loses every connection; one that gets ENOSYS takes the path that libc has for old kernels. Calls that the service
//! never makes, such as starting a process or `ptrace`, get EPERM. Both leave a line in the kernel's log (`type=1326`, with the number of
//! the call).

use super::{sys, table};
use crate::config::Config;
use rustix::io::Errno;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use table::Test;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Installs all layers for this thread of a service with that configuration.
pub fn install(config: &Config) -> Result<(), Errno> {
    for (program, is_logged) in layers(config).map_err(|_| Errno::INVAL)? {
        sys::install_filter(&program, is_logged)?;
    }
    Ok(())
}

/// The layers in the order of installation, and whether the calls that they refuse are logged. Where two layers refuse a call, the later
/// one's errno counts. The first layer allows `seccomp`, which installs the others; the last one does not.
fn layers(config: &Config) -> Result<[(BpfProgram, bool); 3], BackendError> {
    let numbers = table::allowed().map(|(_, number)| number).chain([libc::SYS_seccomp]);
    let known: Rules = numbers.map(|number| (number, Vec::new())).collect();
    let mut refused: Rules =
        table::NEVER.iter().copied().flatten().map(|(_, number)| (*number, Vec::new())).collect();
    for refusal in table::refused(config) {
        refused.entry(refusal.call.1).or_default().push(rule(refusal.when)?);
    }
    // The flags of `clone3` lie in memory, which a filter cannot read. After ENOSYS libc uses `clone`.
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

/// The rule that matches when all of `tests` do.
fn rule(tests: &[Test]) -> Result<SeccompRule, BackendError> {
    let own = rustix::process::getpid().as_raw_pid() as u64;
    let condition = |test: &Test| {
        let (index, operator, value) = match *test {
            Test::Is(index, value) => (index, SeccompCmpOp::Eq, value),
            Test::IsNot(index, value) => (index, SeccompCmpOp::Ne, value),
            Test::Bits(index, mask, value) => (index, SeccompCmpOp::MaskedEq(mask), value),
            Test::IsNotOwnProcess(index) => (index, SeccompCmpOp::Ne, own),
            Test::IsAddress(index) => (index, SeccompCmpOp::Ne, 0),
        };
        // Flags, families and process numbers are ints: the kernel, too, looks at 32 bits only.
        let is_address = matches!(test, Test::IsAddress(_));
        let length = if is_address { SeccompCmpArgLen::Qword } else { SeccompCmpArgLen::Dword };
        SeccompCondition::new(index, length, operator, value)
    };
    SeccompRule::new(tests.iter().map(condition).collect::<Result<_, _>>()?)
}
