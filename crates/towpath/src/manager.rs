//! Notifications to a service manager (systemd's `Type=notify`): that the service works, and that it is about to end. Without
//! `NOTIFY_SOCKET` nothing is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable with the address of the manager's socket: a path, or `@` and an abstract name.
pub const SOCKET_ENV: &str = "NOTIFY_SOCKET";

/// Sends `state` to the manager, if there is one. An error is printed and otherwise ignored.
pub fn tell(state: &str) {
    let Some(name) = std::env::var_os(SOCKET_ENV) else { return };
    if let Err(e) = send(name.as_bytes(), state) {
        eprintln!("towpath: {SOCKET_ENV} {}: {e}; going on without", name.display());
    }
}

fn send(name: &[u8], state: &str) -> std::io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
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
        send(path.as_os_str().as_bytes(), "READY=1").unwrap();
        assert_eq!(heard(&socket), "READY=1");
        let name = format!("towpath-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(format!("@{name}").as_bytes(), "STOPPING=1").unwrap();
        assert_eq!(heard(&socket), "STOPPING=1");
        assert!(send(b"/nowhere/notify", "READY=1").is_err());
    }
}
