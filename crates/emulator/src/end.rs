//! The two ends of the link: interfaces named on the command line.

use port::Port;
use port_packet::PacketOptions;
use port_tap::TapOptions;
use std::fmt;
use std::str::FromStr;

/// An interface: `tap:NAME[@NETNS]` is made for the link, `packet:NAME[@NETNS]` exists already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    is_tap: bool,
    name: String,
    namespace: Option<String>,
}

impl FromStr for Place {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no end of a link: give tap:NAME (made now) or packet:NAME (one that exists), with @NETNS \
                 (a name as in `ip netns`, or a path like /proc/PID/ns/net) if it is in another network namespace"
            )
        };
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (name, namespace) =
            rest.split_once('@').map_or((rest, None), |(name, space)| (name, Some(space)));
        let is_tap = match kind {
            "tap" => true,
            "packet" => false,
            _ => return Err(wrong()),
        };
        if name.is_empty() || namespace == Some("") {
            return Err(wrong());
        }
        Ok(Self { is_tap, name: name.to_owned(), namespace: namespace.map(str::to_owned) })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", if self.is_tap { "tap" } else { "packet" }, self.name)?;
        self.namespace.iter().try_for_each(|namespace| write!(f, "@{namespace}"))
    }
}

impl Place {
    /// Opens the interface.
    ///
    /// # Errors
    /// A message that says what to do.
    pub fn open(&self) -> Result<Box<dyn Port>, String> {
        if self.is_tap {
            let options = TapOptions {
                name: self.name.clone(),
                namespace: self.namespace.clone(),
                ..TapOptions::default()
            };
            return Ok(Box::new(port_tap::open(&options).map_err(|e| e.to_string())?.queues.remove(0)));
        }
        let options = PacketOptions {
            everything: true,
            namespace: self.namespace.clone(),
            ..PacketOptions::new(&self.name)
        };
        Ok(Box::new(port_packet::open(&options).map_err(|e| e.to_string())?.queues.remove(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn places_print_as_they_read() {
        for text in ["tap:tp0", "packet:eth0@blue", "packet:v@/proc/7/ns/net"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        for text in ["", "eth0", "tap:", "packet:@x", "packet:eth0@", "xdp:eth0"] {
            assert!(text.parse::<Place>().unwrap_err().contains("packet:NAME"), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_opened_says_why() {
        let error = "packet:nobody0".parse::<Place>().unwrap().open().err().unwrap();
        assert!(error.contains("nobody0") || error.contains("no permission"), "{error}");
    }
}
