"""What a program may not claim: prints what happened, for lib/claims.py."""

import ctypes
import errno
import os
import socket
import struct
import sys

CLONE_NEWNET = 0x40000000


def said(attempt):
    try:
        attempt()
        return "done"
    except OSError as problem:
        return errno.errorcode[problem.errno]


def reused(option):
    """A second connection with the addresses of one that lives."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        for each in (first, second):
            each.setsockopt(socket.SOL_SOCKET, option, 1)
        first.bind(("127.0.0.1", 0))
        first.connect(listener.getsockname())

        def again():
            second.bind(first.getsockname())
            second.connect(listener.getsockname())

        return said(again)


def closed_a_moment_ago():
    """The connector's port, when it has closed first."""
    with socket.socket() as listener, socket.socket() as again:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        client = socket.create_connection(listener.getsockname())
        served, _ = listener.accept()
        name = client.getsockname()
        client.close()
        served.recv(1)
        served.close()
        return said(lambda: again.bind(name))


def same():
    print("SO_REUSEADDR", reused(socket.SO_REUSEADDR))
    print("SO_REUSEPORT", reused(socket.SO_REUSEPORT))
    print("closed", closed_a_moment_ago())


def foreign_source():
    """From an address that is bound by IP_FREEBIND, and none of the host's."""
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        client.setsockopt(socket.IPPROTO_IP, 15, 1)
        client.bind(("198.51.100.8", 0))
        print("source", said(lambda: client.connect(listener.getsockname())))


def many(ports):
    """As many connections to each of four listeners as there are local ports."""
    kept, done = [], 0
    listeners = [socket.create_server(("127.0.0.1", 5000 + i), backlog=64) for i in range(4)]
    for listener in listeners:
        for _ in range(int(ports)):
            client = socket.socket()
            client.connect(listener.getsockname())
            kept.append(client)
            done += 1
    print("connections", done)


def beside():
    """A live connector's port, at another address, at any address and at the connector's own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for reuses in (0, 1):
            for address in ("127.0.0.2", "0.0.0.0", "127.0.0.1"):
                client = socket.create_connection(listener.getsockname())
                first, _ = listener.accept()
                port = client.getsockname()[1]
                with socket.socket() as other:
                    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
                    how = said(lambda: other.bind((address, port)))
                    print(reuses, address, "bind", how)
                    if how == "done":
                        other.connect(listener.getsockname())
                        second, peer = listener.accept()
                        print("peer", peer[0], peer[1] == port)
                        other.sendall(b"other")
                        print(second.recv(9), first.close(), client.recv(9))


def resets(count):
    """Listener, connection and reset, again and again: as many as there are ports, some times over."""
    for how in ("unread", "linger", "client"):
        for i in range(int(count)):
            with socket.socket() as listener, socket.socket() as client:
                for each in (listener, client):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", 0))
                listener.listen(5)
                client.connect(listener.getsockname())
                served, _ = listener.accept()
                listener.close()
                client.sendall(b"x" * 100)
                served.recv(1, socket.MSG_PEEK)
                resetting = {"linger": served, "client": client}.get(how)
                if resetting:
                    resetting.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    resetting.close()
                served.close()
    print("rounds", count)


def serve(port):
    with socket.create_server(("127.0.0.1", int(port))) as listener:
        while True:
            served, _ = listener.accept()
            served.sendall(b"reached")
            served.close()


def leave(port):
    """Connects, changes its network namespace, and connects again."""
    with socket.create_connection(("127.0.0.1", int(port)), 5) as client:
        print("before", client.recv(9).decode())
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        print("skipped")
        return
    print("after", said(lambda: socket.create_connection(("127.0.0.1", int(port)), 5)))


{"same": same, "source": foreign_source, "many": many, "beside": beside, "resets": resets, "serve": serve, "leave": leave}[sys.argv[1]](*sys.argv[2:])
sys.stdout.flush()
os._exit(0)
