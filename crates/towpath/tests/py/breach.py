"""A service that proves itself and then breaks the rules of channels, each time in another way, on the kernel's TCP.
Usage: breach.py ADDRESS PORT SECRET SERVER. SERVER is a port at which a program of the service listens. Prints what was broken, line by line,
when the service has ended that session, then `done`."""
import hashlib
import hmac
import itertools
import os
import socket
import struct
import sys
import time

HELLO, OPEN, OPENED, DATA, CREDIT, PONG = 1, 2, 3, 5, 8, 10
address, port, secret, server = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), int(sys.argv[4])
EPOCH = time.time_ns()
# A socket of another session may have a port for longer than its session.
ports = itertools.count(40000)


def frame(kind, number, argument, body=b"", length=None):
    length = len(body) if length is None else length
    return struct.pack("<I", length)[:3] + struct.pack("<BIQ", kind, number, argument) + body


def mac(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def take(connection, length):
    got = b""
    while len(got) < length:
        more = connection.recv(length - len(got))
        assert more, "the service has ended the channel"
        got += more
    return got


def receive(connection):
    head = take(connection, 16)
    number, argument = struct.unpack("<IQ", head[4:])
    return head[3], number, argument, take(connection, int.from_bytes(head[:3], "little"))


def greet():
    """A channel after an honest handshake."""
    connection = socket.create_connection((address, port))
    connection.settimeout(60)
    session = os.urandom(16)
    ask = b"TpCh" + bytes([1, 1, 2, 0]) + bytes(8) + struct.pack("<IIQ", 61440, 1000, EPOCH) + session + os.urandom(16)
    key = mac(mac(bytes(32), b"\x01", secret), b"towpath channel session", session)
    connection.sendall(frame(HELLO, 0, 0, ask + bytes(32)))
    kind, _, step, answer = receive(connection)
    assert (kind, step) == (HELLO, 1), (kind, step)
    assert answer[64:] == mac(key, b"towpath channel answer\0", ask, answer[:64]), "the service knows the secret"
    connection.sendall(frame(HELLO, 0, 2, ask + mac(key, b"towpath channel confirm", ask, answer[:64])))
    return connection


def opened(connection):
    """Opens socket 1; returns the credit."""
    to = struct.pack("<BBHHH", 4, 0, next(ports), server, 0) + socket.inet_aton(address) + bytes(12)
    connection.sendall(frame(OPEN, 1, 100_000, to))
    kind, number, credit, _ = receive(connection)
    assert (kind, number) == (OPENED, 1), (kind, number)
    return credit


def unknown_type(connection):
    return frame(99, 0, 0)


def too_long(connection):
    return frame(DATA, 1, 0, length=61_441)


def unknown_socket(connection):
    return frame(DATA, 3, 0, b"x")


def beyond_credit(connection):
    return frame(DATA, 1, opened(connection), b"x")


def acked_unsent(connection):
    opened(connection)
    return frame(CREDIT, 1, 1_000_000, struct.pack("<Q", 2_000_000))


def open_order(connection):
    return frame(OPEN, 7, 0, struct.pack("<BBHHH", 4, 0, next(ports), server, 0) + bytes(16))


def unasked_pong(connection):
    return frame(PONG, 0, 7)


for breach in unknown_type, too_long, unknown_socket, beyond_credit, acked_unsent, open_order, unasked_pong:
    connection = greet()
    connection.sendall(breach(connection))
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    print(breach.__name__, flush=True)
print("done", flush=True)
