"""contained serve|hold|connect|share PORT: a program in a container, or at the other end of one.

`serve` answers what comes on each connection, and says how each one ended. `hold` listens and never waits for a connection.
`connect` has one answer, and waits for the end. `share` lets a child of another PID namespace send on its connection, too.
"""

import ctypes
import os
import socket
import sys
import threading

CLONE_NEWPID = 0x20000000
ROUNDS, RECORD = 3000, 4000

role, address = sys.argv[1], ("127.0.0.1", int(sys.argv[2]))


def say(*words):
    print(*words, flush=True)


def end_of(sock):
    try:
        return "data" if sock.recv(1) else "end"
    except ConnectionError:
        return "reset"


def answer(sock):
    sock.sendall(sock.recv(5, socket.MSG_WAITALL))
    say("answered")
    say("ended", end_of(sock))


def serve():
    listener = socket.create_server(address)
    # The library has seen it wait when the first wait is over.
    listener.settimeout(0.01)
    try:
        listener.accept()
    except TimeoutError:
        pass
    listener.settimeout(None)
    say("waits")
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


def hold():
    listener = socket.create_server(address)
    say("listens")
    sys.stdin.read()
    listener.close()


def connect():
    sock = socket.create_connection(address)
    say("connected")
    sock.sendall(b"hello")
    assert sock.recv(5, socket.MSG_WAITALL) == b"hello"
    say("talks")
    say("ended", end_of(sock))


def count():
    """Counts what comes, by letter."""
    listener = socket.create_server(address)
    say("waits")
    sock = listener.accept()[0]
    counts = {}
    while data := sock.recv(1 << 16):
        for letter in set(data):
            counts[letter] = counts.get(letter, 0) + data.count(letter)
    say(*(f"{chr(letter)} {n}" for letter, n in sorted(counts.items())))


def share():
    sock = socket.create_connection(address)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID) != 0:
        raise SystemExit("unshare")
    child = os.fork()
    letter = b"p" if child else b"c"
    for _ in range(ROUNDS):
        sock.sendall(letter * RECORD)
    if child:
        say("child", os.waitpid(child, 0)[1])
    sock.close()
    os._exit(0)


{"serve": serve, "hold": hold, "connect": connect, "count": count, "share": share}[role]()
