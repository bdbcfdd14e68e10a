"""What the corners share: data, small waits, and checks of errno."""

import errno
import random
import select
import socket
import struct
import time

MEGABYTE = random.Random(7).randbytes(1 << 20)
SMALL = MEGABYTE[:100_000]


def connect(address):
    return socket.create_connection(address)


def accept(listener):
    return listener.accept()[0]


def read_all(sock):
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def read_exactly(sock, length):
    data = b""
    while len(data) < length:
        part = sock.recv(length - len(data))
        assert part, f"end of stream after {len(data)} of {length} bytes"
        data += part
    return data


def expect_errno(expected, function, *arguments):
    try:
        result = function(*arguments)
    except OSError as problem:
        assert problem.errno in expected, f"{problem} instead of {[errno.errorcode[e] for e in expected]}"
        return problem.errno
    raise AssertionError(f"{function.__name__} gave {result!r} instead of {[errno.errorcode[e] for e in expected]}")


def wait_for(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def poll_events(sock, mask, milliseconds=0):
    poller = select.poll()
    poller.register(sock, mask)
    found = poller.poll(milliseconds)
    return found[0][1] if found else 0


def linger_zero(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def target_of(listener):
    host = listener.getsockname()[0]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
