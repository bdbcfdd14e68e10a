//! The checked mode (`TOWPATH_CHECK=1`), for tests of programs: bytes that were released are overwritten, so that a use of them shows, and calls
//! out of order fail. The borrow checker sees to both in Rust; a program in C has this. It makes each view a copy, which is slower.

use crate::error::Error;

/// The environment variable: `1` turns the checked mode on.
pub const CHECK_ENV: &str = "TOWPATH_CHECK";

/// What a released byte becomes.
pub const POISON: u8 = 0xdb;

/// True when the program is to be checked.
#[must_use]
pub fn is_on() -> bool {
    control::variables::variable(CHECK_ENV).is_some_and(|value| value == "1")
}

/// Overwrites released bytes with [`POISON`].
pub fn poison(bytes: &mut [u8]) {
    bytes.fill(POISON);
}

/// Looks whether released bytes are as [`poison`] left them; `what` they were.
///
/// # Errors
/// [`Error::Misuse`] names the first byte that was written since.
pub fn is_untouched(bytes: &[u8], what: &str) -> Result<(), Error> {
    match bytes.iter().position(|byte| *byte != POISON) {
        None => Ok(()),
        Some(at) => Err(Error::Misuse(format!("byte {at} of {what} was written after it was released"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_written_after_its_release_is_named() {
        let mut bytes = *b"view of a ring";
        poison(&mut bytes);
        assert_eq!(is_untouched(&bytes, "a view"), Ok(()));
        bytes[5] = 0;
        let said = is_untouched(&bytes, "a view").unwrap_err().to_string();
        assert_eq!(said, "misuse: byte 5 of a view was written after it was released");
    }
}
