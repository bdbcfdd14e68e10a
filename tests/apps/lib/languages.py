"""The sockets of language run-time systems: Node.js, Java, Python's asyncio with TLS, gRPC, Go, and programs without a dynamic loader."""

import os
import subprocess
import sys

from lib.process import Skip, require
from lib.programs import needs
from lib.registry import add
from lib.world import PEERS, PYTHON, WAYS, find, free_port


def right(said, count):
    require(said.split() == ["right", str(count)], f"it printed {said!r}")


def node(w):
    port = free_port()
    program = ["node", PEERS / "node_http.js"]
    w.server("node-server", [*program, "server", w.way.listen, port], port)
    right(w.ask("node-client", [*program, "client", w.way.target, port], 30), 16 * 12)
    w.prove_way(16)


def java(w):
    subprocess.run([find("javac"), "-d", w.directory, PEERS / "Peer.java"], check=True, timeout=60)
    port, http_port = free_port(), free_port()
    # What a short life needs: no second compiler, no parallel collector.
    program = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", w.directory, "Peer"]
    server = w.server("java-server", [*program, "server", w.way.listen, port, http_port], port, 20)
    w.until_listening(server, http_port, w.way.server)
    right(w.ask("java-client", [*program, "client", w.way.target, port, http_port], 40), 12 * 20 + 150)
    w.prove_way(12 + 1)


def tls(w):
    port, key, certificate = free_port(), w.directory / "key.pem", w.directory / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", 2]
    make += ["-subj", "/CN=towpath test", "-addext", f"subjectAltName=IP:{w.way.target}", "-keyout", key, "-out", certificate]
    w.start("openssl", make).succeed()
    program = [*PYTHON, PEERS / "tls.py"]
    w.server("tls-server", [*program, "server", w.way.listen, port, certificate, key], port)
    right(w.ask("tls-client", [*program, "client", w.way.target, port, certificate, key], 40), 24 * 12)
    w.prove_way(24)


def python_with(module):
    """A Python that has the module: this one, or the distribution's."""
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0:
            return python
    raise Skip(f"no Python here has the module {module}")


def grpc(w):
    port, program = free_port(), [python_with("grpc"), PEERS / "grpc_peer.py"]
    w.server("grpc-server", [*program, "server", w.way.listen, port], port)
    right(w.ask("grpc-client", [*program, "client", w.way.target, port], 40), 4 * (120 + 60))
    w.prove_way(4)


# Programs that the library cannot reach must work as if there was none; so must those that meet them.


def all_on_the_kernel(w, connections, by_reason):
    if w.kernel:
        return
    stat = w.stat()
    told = stat["accelerated"], stat["fallen_back"], stat["by_reason"]
    require(told == (0, connections, by_reason), f"expected {connections} sockets on the kernel, and {by_reason}: {stat}")


def go(w):
    """Linked statically, and with the C library, which Go then loads and passes by."""
    for linked in ("0", "1"):
        program = w.directory / f"echo{linked}"
        settings = os.environ | {"GOCACHE": cache_of_go(w), "CGO_ENABLED": linked}
        subprocess.run([find("go"), "build", "-o", program, PEERS / "echo.go"], check=True, timeout=100, env=settings, cwd=w.directory)
        echo_in_go(w, program)
    # Nothing of it was ever seen.
    all_on_the_kernel(w, 0, {})


def echo_in_go(w, program):
    port = free_port()
    address = [f"{w.way.listen}:{port}"]
    server = w.start("go-server", [program, "server", *address], accelerated=True)
    w.until_listening(server, port)
    right(w.ask("go-client", [program, "client", *address], 30), 16)


def cache_of_go(w):
    """Go compiles its own library first: once, where there is a home."""
    found = subprocess.run([find("go"), "env", "GOCACHE"], capture_output=True, text=True, cwd=w.directory).stdout.strip()
    return found or str(w.directory / "go-cache")


def static(w):
    """A static server; its clients ask the service, and meet it on the kernel."""
    server = w.directory / "static_server"
    source = PEERS.parent / "c" / "echo_server.c"
    made = subprocess.run([find("cc"), "-O2", "-static", "-pthread", "-o", server, source], capture_output=True, timeout=60)
    if made.returncode != 0:
        raise Skip("there is no static C library")
    port = free_port()
    process = w.start("static-server", [server, w.way.listen, port, "level"], accelerated=True)
    w.until_listening(process, port)
    w.ask("echo_load", [w.program("echo_load"), w.way.target, port, 20, 50, 1000])
    all_on_the_kernel(w, 20, {"no accelerated listener there": 20})


TESTS = {
    "node": needs(node, "node"),
    "java": needs(java, "java", "javac"),
    "asyncio_tls": needs(tls, "openssl"),
    "grpc": grpc,
}
for test_name, function in TESTS.items():
    for way_name in ("pair", "tap_server"):
        add(f"{way_name}.{test_name}", function, WAYS[way_name], limit_s=60)
add("kernel.go", needs(go, "go"), limit_s=120)
add("kernel.static", static)
