"""bulk listen|connect HOST PORT send|receive BYTES: one long transfer; prints the SHA-256 of what was sent or received."""

import hashlib
import random
import socket
import sys

STEP = 256 << 10

role, host, port, direction, total = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])


def send(sock, digest):
    """Slices of random bytes from random places: no two stretches of the stream are alike."""
    places = random.Random(total)
    source = memoryview(places.randbytes(8 << 20))
    left = total
    while left:
        start = places.randrange(len(source) - STEP)
        part = source[start : start + min(STEP, left)]
        sock.sendall(part)
        digest.update(part)
        left -= len(part)
    sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1) == b"", "something came back"


def receive(sock, digest):
    buffer = bytearray(STEP)
    view = memoryview(buffer)
    got = 0
    while count := sock.recv_into(buffer):
        digest.update(view[:count])
        got += count
    assert got == total, f"{got} of {total} bytes"


if role == "listen":
    connection = socket.create_server((host, port)).accept()[0]
else:
    connection = socket.create_connection((host, port))
sha256 = hashlib.sha256()
(send if direction == "send" else receive)(connection, sha256)
connection.close()
print(sha256.hexdigest())
