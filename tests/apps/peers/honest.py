"""honest WHAT ...: sockets for `towpath explain` and `towpath run --require` to be right about."""

import ctypes
import errno
import os
import select
import socket
import subprocess
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
SO_TIMESTAMPING, SOFTWARE, MPTCP = 37, 16, 262
IO_URING_SETUP = 425


def say(*words):
    print(*words, flush=True)


def fails(expected, function, *arguments):
    try:
        function(*arguments)
    except OSError as problem:
        assert problem.errno == expected, f"{problem} instead of {errno.errorcode[expected]}"
        return
    raise AssertionError(f"{function.__name__} works instead of {errno.errorcode[expected]}")


def setup_ring():
    parameters = ctypes.create_string_buffer(120)
    return LIBC.syscall(ctypes.c_long(IO_URING_SETUP), ctypes.c_long(4), parameters)


def serve(host, port):
    listener = socket.create_server((host, int(port)))
    say("listens")
    accepted = [listener.accept()[0]]
    say("accepted")
    while True:
        accepted.append(listener.accept()[0])


def connect(host, port, other):
    kernel = socket.create_connection((host, int(other)))
    sock = socket.create_connection((host, int(port)))
    sock.setblocking(False)
    try:
        while True:
            sock.send(bytes(100_000))
    except BlockingIOError:
        pass
    say("connected", kernel.fileno())
    time.sleep(60)


def stream(host, port):
    """More than any receiver takes that does not read."""
    sock = socket.create_connection((host, int(port)))
    sock.sendall(bytes(24 << 20))
    sock.shutdown(socket.SHUT_WR)
    say("written")
    time.sleep(60)


def ask(host, port):
    at = (host, int(port))
    kept = []
    stamps = socket.socket()
    stamps.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, SOFTWARE)
    kept.append(stamps)
    try:
        kept.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP))
    except OSError:
        say("no MPTCP")
    for sock in kept:
        sock.connect(at)
    setup_ring()
    kept.append(socket.create_connection(at))
    say("asked")
    time.sleep(60)


def answered(host, port):
    """A client of an echo server."""
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        sock.sendall(b"hello")
        assert sock.recv(64) == b"hello"
    say("answered")


def ringless(host, port):
    """A ring is denied; what goes on without is accelerated."""
    assert setup_ring() == -1 and ctypes.get_errno() == errno.EPERM
    kept = socket.create_connection((host, int(port)))
    say("connected", kept.fileno())
    time.sleep(60)


def required(host, port):
    """Every way to the kernel is closed, every other one open."""
    fails(errno.ECONNREFUSED, socket.create_connection, (host, int(port)))
    fails(errno.ENETUNREACH, socket.create_connection, ("192.0.2.1", 9))
    for call in ("connect", "listen"):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, SOFTWARE)
        sock.bind((host, 0))
        fails(errno.EOPNOTSUPP, *((sock.connect, (host, int(port))) if call == "connect" else (sock.listen,)))
        if call == "listen":
            refusal = subprocess.run([sys.executable, "-c", f"import socket; socket.create_connection({sock.getsockname()!r})"], capture_output=True, env=without_towpath())
            assert b"ConnectionRefusedError" in refusal.stderr, refusal.stderr
    assert setup_ring() == -1 and ctypes.get_errno() == errno.EPERM
    listener = socket.create_server((host, 0))
    program = f"import socket; s = socket.create_connection({listener.getsockname()!r}); print(s.recv(1))"
    kernel = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, env=without_towpath())
    assert select.select([listener], [], [], 5)[0]
    listener.setblocking(False)
    fails(errno.EAGAIN, listener.accept)
    assert b"ConnectionResetError" in kernel.communicate(timeout=5)[1]
    sock = socket.create_connection(listener.getsockname())
    assert select.select([listener], [], [], 5)[0]
    accepted = listener.accept()[0]
    sock.sendall(b"accelerated")
    assert select.select([accepted], [], [], 5)[0] and accepted.recv(100) == b"accelerated"
    a, b = socket.socketpair()
    a.sendall(b"unix")
    assert b.recv(4) == b"unix"
    here, there = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    here.bind((host, 0))
    there.connect(here.getsockname())
    there.send(b"udp")
    assert here.recv(3) == b"udp"


def without_towpath():
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and not name.startswith("TOWPATH_")}


def orphan():
    listener = socket.create_server(("127.0.0.1", 0))
    say("ready")
    sys.stdin.readline()
    time.sleep(0.3)
    try:
        socket.create_connection(listener.getsockname(), timeout=5)
    except OSError as problem:
        say("connect", problem.errno)


if __name__ == "__main__":
    {f.__name__: f for f in (serve, connect, stream, ask, answered, ringless, required, orphan)}[sys.argv[1]](*sys.argv[2:])
