"""Loads an echo server and checks every byte: many sockets in one epoll set, one bulk transfer, one forked child.
Usage: load.py ADDRESS PORT [stopped]. With `stopped` the first connection is written to until it takes no more, and never read from.
Prints the local port of each connection, then `done`."""
import hashlib
import os
import random
import select
import socket
import sys
import threading

SOCKETS, ROUNDS, BULK = 24, 20, 3_000_000
peer = (sys.argv[1], int(sys.argv[2]))


def connect():
    connection = socket.create_connection(peer)
    assert connection.getpeername()[:2] == peer
    print(connection.getsockname()[1], flush=True)
    return connection


def stop():
    connection = connect()
    connection.setblocking(False)
    try:
        while True:
            connection.send(bytes(65536))
    except BlockingIOError:
        return connection


def requests():
    epoll, waiting = select.epoll(), {}
    for _ in range(SOCKETS):
        connection = connect()
        connection.setblocking(False)
        waiting[connection.fileno()] = [connection, b"", b"", 0]
        epoll.register(connection, select.EPOLLIN | select.EPOLLOUT)
    while waiting:
        for fd, _ in epoll.poll():
            state = waiting[fd]
            if not state[1]:
                state[1] = os.urandom(random.randrange(1, 400))
                state[0].send(state[1])
                epoll.modify(fd, select.EPOLLIN)
                continue
            state[2] += state[0].recv(4096)
            if len(state[2]) < len(state[1]):
                continue
            assert state[2] == state[1], "bytes differ"
            state[1], state[2], state[3] = b"", b"", state[3] + 1
            epoll.modify(fd, select.EPOLLOUT)
            if state[3] == ROUNDS:
                epoll.unregister(fd)
                state[0].close()
                del waiting[fd]


def bulk():
    connection, data = connect(), os.urandom(BULK)

    def write():
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    writer = threading.Thread(target=write)
    writer.start()
    got, count = hashlib.sha256(), 0
    while True:
        piece = connection.recv(65536)
        if not piece:
            break
        got.update(piece)
        count += len(piece)
    writer.join()
    assert count == BULK and got.digest() == hashlib.sha256(data).digest(), "bulk bytes differ"


def forked():
    connection = connect()
    child = os.fork()
    if child == 0:
        connection.sendall(b"from the child")
        assert connection.recv(14, socket.MSG_WAITALL) == b"from the child"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    connection.sendall(b"from the parent")
    assert connection.recv(15, socket.MSG_WAITALL) == b"from the parent"


kept = stop() if sys.argv[3:] == ["stopped"] else None
requests()
bulk()
forked()
print("done", flush=True)
