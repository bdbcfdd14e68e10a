//! Notifications to a service manager (systemd's `Type=notify`): that the service works, and that it is about to end. Without
//! `NOTIFY_SOCKET` nothing is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable with the address of the manager's socket: a path, or `@` and an abstract name.
pub const SOCKET_ENV: &str = "NOTIFY_SOCKET";

/// The service manager, if there is one.
pub struct Manager(Option<UnixDatagram>);

impl Manager {
    /// Connects to the manager that the environment names. An error is printed and otherwise ignored.
    pub fn find() -> Self {
        let Some(name) = std::env::var_os(SOCKET_ENV) else { return Self(None) };
        let found = connected(name.as_bytes());
        Self(found.inspect_err(|e| going_on(&name.display().to_string(), e)).ok())
    }

    /// Sends `state`. An error is printed and otherwise ignored.
    pub fn tell(&self, state: &str) {
        if let Some(Err(e)) = self.0.as_ref().map(|manager| manager.send(state.as_bytes())) {
            going_on("does not hear", &e);
        }
    }
}

fn going_on(what: &str, error: &std::io::Error) {
    eprintln!("towpath: {SOCKET_ENV} {what}: {error}; going on without");
}

fn connected(name: &[u8]) -> std::io::Result<UnixDatagram> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    let manager = UnixDatagram::unbound()?;
    manager.connect_addr(&address)?;
    Ok(manager)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 100];
        let n = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }

    #[test]
    fn the_manager_hears_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let tell = |name: &[u8], state| Manager(Some(connected(name).unwrap())).tell(state);
        tell(path.as_os_str().as_bytes(), "READY=1");
        assert_eq!(heard(&socket), "READY=1");
        let name = format!("towpath-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        tell(format!("@{name}").as_bytes(), "STOPPING=1");
        assert_eq!(heard(&socket), "STOPPING=1");
        assert!(connected(b"/nowhere/notify").is_err());
    }
}
