"""Bytes and a reset right behind them, over connections of a listening socket that another program has made.

`serve HOST PORT WHAT ROUNDS` listens, and starts another program, which accepts; `connect HOST PORT WHAT ROUNDS` is its client. WHAT is
`unread` (the server answers and closes with half of the request unread), `linger` (it answers and closes with SO_LINGER 0) or `request`
(the client closes so behind its request). The end that reads prints what it has read each time.
"""

import errno
import socket
import struct
import subprocess
import sys
from collections import Counter

REQUEST, ANSWER = b"x" * 2500, b"HTTP/1.1 500 no\r\n\r\n"


def abort(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_all(connection):
    got = b""
    try:
        while data := connection.recv(4096):
            got += data
        how = "end"
    except OSError as error:
        how = errno.errorcode[error.errno]
    connection.close()
    return f"{len(got)} bytes, {how}"


def serve(host, port, what, rounds):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, int(port)))
    # A connection that is reset before it is accepted must have its place in the queue.
    listener.listen(2 * int(rounds))
    listener.set_inheritable(True)
    fd = listener.fileno()
    command = [sys.executable, __file__, "accept", str(fd), what, rounds]
    sys.exit(subprocess.run(command, pass_fds=[fd], check=False).returncode)


def accept(fd, what, rounds):
    listener = socket.socket(fileno=int(fd))
    seen = Counter()
    for _ in range(int(rounds)):
        connection, _ = listener.accept()
        if what == "request":
            seen[read_all(connection)] += 1
            continue
        connection.recv(len(REQUEST) // 2)
        connection.sendall(ANSWER)
        abort(connection) if what == "linger" else connection.close()
    print(dict(seen))


def connect(host, port, what, rounds):
    seen = Counter()
    for _ in range(int(rounds)):
        connection = socket.create_connection((host, int(port)))
        connection.sendall(REQUEST)
        if what == "request":
            abort(connection)
        else:
            seen[read_all(connection)] += 1
    print(dict(seen))


{"serve": serve, "accept": accept, "connect": connect}[sys.argv[1]](*sys.argv[2:])
