//! Which process a report speaks of. Its number alone does not say: see [`control::credentials`].

use serde::{Serialize, Serializer};
use std::fmt::{self, Display, Formatter};

/// A process, for reports: what is not known is null there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize)]
pub struct Number {
    /// Its number in the PID namespace of the service; 0: it is not in there.
    #[serde(serialize_with = "known")]
    pub pid: i32,
    /// Number of its control line, by which it is told from all others of this service.
    #[serde(serialize_with = "known")]
    pub application: u32,
    /// Inode number of its descriptor ([`control::credentials::process_inode`]), by which a reader in another PID namespace finds it; 0: not known.
    #[serde(rename = "pidfd_inode", serialize_with = "known")]
    pub inode: u64,
}

/// The number as the log shows it.
impl Display for Number {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => f.write_str("-"),
            pid => write!(f, "{pid}"),
        }
    }
}

/// Writes a value, or null where it is 0 or empty, which says that it is not known.
///
/// # Errors
/// What the serializer says.
pub fn known<T: Serialize + Default + PartialEq, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    Some(value).filter(|value| **value != T::default()).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, to_value};

    #[test]
    fn what_is_not_known_of_a_process_is_null() {
        let number = Number { pid: 7, application: 3, inode: 4_711 };
        assert_eq!(to_value(number).unwrap(), json!({ "pid": 7, "application": 3, "pidfd_inode": 4_711 }));
        let outside = Number { pid: 0, ..number };
        assert_eq!(
            to_value(outside).unwrap(),
            json!({ "pid": null, "application": 3, "pidfd_inode": 4_711 })
        );
        assert_eq!((number.to_string(), outside.to_string()), ("7".to_owned(), "-".to_owned()));
        let hidden = json!({ "pid": null, "application": null, "pidfd_inode": null });
        assert_eq!(to_value(Number::default()).unwrap(), hidden);
    }
}
