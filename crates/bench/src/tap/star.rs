//! Three hosts around an emulated link, each in a network namespace of its own: a kernel that sends, a service that sends, and one receiver.
//!
//! ```text
//!   kernel's ns          link's ns                        receiver's ns
//!   10.79.0.1 eth0 ----- to-kernel  ---+
//!                                      +- towpath link - to-sink ----- eth0 10.79.0.2
//!   service's ns                       |
//!   10.79.0.3 eth0 ----- to-service ---+   one `towpath link` for each run; its ends: the sender of the run, the receiver
//! ```
//! Only the kernel has its address at once: the others' depend on what serves them.

use super::namespace::{Namespace, ip};
use crate::{interrupt, program};
use anyhow::Context;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The receiver's address, with the length of the prefix.
pub const RECEIVER: &str = "10.79.0.2/24";
/// The sending service's address, with the length of the prefix.
pub const SERVICE: &str = "10.79.0.3/24";
/// Where the receiver listens.
pub const SINK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 79, 0, 2)), 5001);
/// The interfaces of the link's namespace, by their far ends.
pub const TO_KERNEL: &str = "to-kernel";
pub const TO_SERVICE: &str = "to-service";
pub const TO_SINK: &str = "to-sink";
const KERNEL: &str = "10.79.0.1/24";
/// Seconds allowed for writing settings.
const PATIENCE: f64 = 10.0;

/// The namespaces; they end when they are dropped, after the processes in them.
#[derive(Debug)]
pub struct Star {
    pub kernel: Namespace,
    pub service: Namespace,
    pub link: Namespace,
    pub receiver: Namespace,
}

impl Star {
    /// Makes the namespaces and the veth pairs between them. Each namespace gets the kernel's settings (see [`write`]).
    ///
    /// # Errors
    /// When the user is not root, or a signal came.
    pub fn new(settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        Namespace::remove_orphans();
        let [kernel, service, link, receiver] =
            [Namespace::new()?, Namespace::new()?, Namespace::new()?, Namespace::new()?];
        write(&link, settings)?;
        for (end, name) in [(&kernel, TO_KERNEL), (&service, TO_SERVICE), (&receiver, TO_SINK)] {
            let words =
                ["-n", link.name(), "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns"];
            ip(&[&words[..], &[end.name()]].concat())?;
            write(end, settings)?;
            ip(&["-n", end.name(), "link", "set", "eth0", "up"])?;
            ip(&["-n", link.name(), "link", "set", name, "up"])?;
        }
        ip(&["-n", kernel.name(), "address", "add", KERNEL, "dev", "eth0"])?;
        Ok(Self { kernel, service, link, receiver })
    }

    /// The two ends of an emulated link: an interface towards a sender, and the receiver's.
    pub fn ends(&self, sender: &str) -> [String; 2] {
        [sender, TO_SINK].map(|interface| format!("packet:{interface}@{}", self.link.name()))
    }
}

/// Writes settings of the kernel, each with its path below `/proc/sys/net`; and no IPv6.
///
/// # Errors
/// When a setting cannot be written, or a signal came.
pub fn write(namespace: &Namespace, settings: &[(&str, &str)]) -> anyhow::Result<()> {
    let mut script = String::from("set -e\n");
    for (name, value) in settings {
        script.push_str(&format!("echo '{value}' >/proc/sys/net/{name}\n"));
    }
    // A kernel without IPv6 has no such file.
    script.push_str("f=/proc/sys/net/ipv6/conf/all/disable_ipv6; if [ -e $f ]; then echo 1 >$f; fi\n");
    interrupt::check()?;
    let mut command = namespace.command("sh")?;
    program::run(command.args(["-c", &script]), PATIENCE).context("cannot set up a network namespace")?;
    Ok(())
}
