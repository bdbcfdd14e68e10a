//! A ring over a port: a TAP interface in a network namespace of its own, with the kernel at its other end. Needs root; skipped elsewhere.

use crate::common::{built, compile_to, output};
use std::process::Command;

/// Started inside the namespace with: the programs' folder, a folder for files, the client.
const SCRIPT: &str = r#"
set -eu
built=$1; folder=$2; client=$3
ip link set lo up
export TOWPATH_CONTROL=$folder/service/c
"$built/towpath" up --port tap --address 10.77.0.2/24 --host-address 10.77.0.1/24 >"$folder/log" 2>&1 &
service=$!
trap 'kill $service $echo 2>/dev/null || true; wait || true' EXIT
echo=
for round in 1 2; do
    # The service's own address, which the kernel does not have, and every address.
    at=10.77.0.2; [ $round = 1 ] || at=0.0.0.0
    until "$built/towpath" stat --control "$folder/service/c" >/dev/null 2>&1; do kill -0 $service; sleep 0.01; done
    "$built/examples/echo" $at:0 2>"$folder/echo$round" &
    echo=$!
    until grep -q listens "$folder/echo$round"; do kill -0 $echo || cat "$folder/echo$round" >&2; sleep 0.01; done
    port=$(sed 's/.*://' "$folder/echo$round")
    "$client" 10.77.0.2 $port
    kill $echo; wait $echo 2>/dev/null || true
done
"#;

#[test]
fn echo_gives_the_kernel_across_a_port_all_its_bytes_and_the_end() {
    let may = Command::new("unshare").args(["-n", "true"]).status().is_ok_and(|status| status.success());
    if !may || !std::path::Path::new("/dev/net/tun").exists() {
        return eprintln!("skipped: a network namespace and a TAP need root and /dev/net/tun");
    }
    let folder = tempfile::tempdir().unwrap();
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/asks.c");
    let client = compile_to(folder.path(), &source);
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", SCRIPT, "port"]).arg(built()).arg(folder.path()).arg(client);
    assert_eq!(output(&mut command), "all came back\nall came back\n");
}
