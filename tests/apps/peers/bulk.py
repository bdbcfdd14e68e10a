"""bulk listen|connect HOST PORT send|receive BYTES: one long transfer; the receiver holds every byte against the one that was to come."""

import random
import socket
import sys

STEP = 256 << 10

role, host, port, direction, total = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])


def parts():
    """Slices of random bytes from random places, the same at both ends: no two stretches of the stream are alike."""
    places = random.Random(total)
    source = memoryview(places.randbytes(8 << 20))
    for at in range(0, total, STEP):
        start = places.randrange(len(source) - STEP)
        yield at, source[start : start + min(STEP, total - at)]


def send(sock):
    for _, part in parts():
        sock.sendall(part)
    sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1) == b"", "something came back"


def receive(sock):
    for at, part in parts():
        # Compared as a whole: of a view and a view Python compares byte after byte.
        came = bytearray(len(part))
        view, filled = memoryview(came), 0
        while filled < len(part):
            count = sock.recv_into(view[filled:])
            assert count > 0, f"the end came after {at + filled} of {total} bytes"
            filled += count
        assert came == part, f"wrong within the {len(part)} bytes from {at}"
    assert sock.recv(1) == b"", f"more than {total} bytes"


if role == "listen":
    connection = socket.create_server((host, port)).accept()[0]
else:
    connection = socket.create_connection((host, port))
(send if direction == "send" else receive)(connection)
connection.close()
