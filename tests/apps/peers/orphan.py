"""orphan server|client|many HOST PORT: an application whose service, or whose peer, is about to be killed.

`client` waits in five ways on five connections and prints how each wait ended; on SIGUSR1 it makes new sockets.
`many` opens 200 connections and counts how many of them end.
"""

import errno
import select
import signal
import socket
import sys
import threading
import time

role, address = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
lock = threading.Lock()


def say(*words):
    with lock:
        print(*words, flush=True)


def serve(sock):
    """Answers `hello`, then reads nothing: a sender fills up and stops."""
    try:
        sock.sendall(sock.recv(5))
        if sock.recv(1, socket.MSG_PEEK) == b"":
            sock.close()
            return
        threading.Event().wait()
    except OSError:
        sock.close()


def server():
    listener = socket.create_server(address, backlog=64)
    while True:
        sock = listener.accept()[0]
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


def outcome(function):
    try:
        function()
        return "nothing"
    except OSError as problem:
        return errno.errorcode[problem.errno]


def send_for_ever(sock):
    while True:
        sock.send(bytes(65536))


def wait_by_poll(sock):
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    poller.poll(20_000)
    sock.recv(1)


def wait_by_epoll(sock):
    with select.epoll() as poller:
        poller.register(sock, select.EPOLLIN | select.EPOLLET)
        poller.poll(20)
        sock.recv(1)


def wait_by_select(sock):
    select.select([sock], [], [], 20)
    sock.recv(1)


WAITS = {
    "recv": lambda sock: sock.recv(1),
    "send": send_for_ever,
    "poll": wait_by_poll,
    "epoll": wait_by_epoll,
    "select": wait_by_select,
}


def greet():
    sock = socket.create_connection(address)
    sock.sendall(b"hello")
    assert sock.recv(5, socket.MSG_WAITALL) == b"hello"
    return sock


def fresh_sockets():
    """A connection to the old server's listener, and one between two new sockets of this process."""
    greet().close()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far = listener.accept()[0]
        near.sendall(b"fresh")
        assert far.recv(5, socket.MSG_WAITALL) == b"fresh"
        near.close()
        assert far.recv(1) == b""
        far.close()


def client():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

    def wait(name, sock):
        error = outcome(lambda: WAITS[name](sock))
        say("blocked", name, error, time.monotonic_ns())

    for name in WAITS:
        threading.Thread(target=wait, args=(name, greet()), daemon=True).start()
    say("waiting")
    count = 0
    while True:
        signal.sigwait([signal.SIGUSR1])
        count += 1
        fresh_sockets()
        say("fresh", count)


def many():
    socks = [greet() for _ in range(200)]
    say("waiting")
    ended = 0
    for sock in socks:
        # Only detects a peer that is not told.
        sock.settimeout(60)
        try:
            ended += sock.recv(1) == b""
        except ConnectionResetError:
            ended += 1
    say("ended", ended)


{"server": server, "client": client, "many": many}[role]()
