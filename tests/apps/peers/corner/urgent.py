"""Urgent data: MSG_OOB, SO_OOBINLINE, the mark, POLLPRI."""

import ctypes
import errno
import fcntl
import select
import socket
import struct
import termios
import time

from corner.kit import accept, connect, expect_errno, poll_events, read_exactly, wait_for

SIOCATMARK = 0x8905
OOB = socket.MSG_OOB


def number(sock, request):
    return struct.unpack("i", fcntl.ioctl(sock, request, bytes(4)))[0]


def at_mark(sock):
    told = ctypes.CDLL(None).sockatmark(sock.fileno())
    assert told == number(sock, SIOCATMARK), told
    return told == 1


def events(sock):
    return poll_events(sock, select.POLLIN | select.POLLPRI)


def wait_urgent(sock):
    wait_for(lambda: events(sock) & select.POLLPRI, "an urgent byte")


class urgent_byte:
    """The last byte of a MSG_OOB is read ahead of its turn, once; reads stop in front of it and skip it."""

    def server(listener):
        sock = accept(listener)
        expect_errno([errno.EINVAL], sock.recv, 1, OOB)
        sock.sendall(b"1")
        wait_urgent(sock)
        wait_for(lambda: number(sock, termios.FIONREAD) == 3, "what comes before it")
        assert events(sock) == select.POLLIN | select.POLLPRI and not at_mark(sock)
        assert select.select([sock], [], [sock], 0) == ([sock], [], [sock])
        with select.epoll() as poller:
            poller.register(sock, select.EPOLLPRI | select.EPOLLET)
            assert poller.poll(5) == [(sock.fileno(), select.EPOLLPRI)]
        data, ancillary, flags, _ = sock.recvmsg(9, 0, OOB | socket.MSG_PEEK)
        assert (data, ancillary) == (b"d", []) and flags & OOB
        assert sock.recv(100, socket.MSG_PEEK) == b"abc"
        assert sock.recv(1) == b"a"
        assert sock.recv(100, socket.MSG_WAITALL) == b"bc", "not past the mark"
        # What follows has come as well.
        wait_for(lambda: events(sock) == select.POLLIN | select.POLLPRI, "what comes after it")
        assert at_mark(sock) and number(sock, termios.FIONREAD) == 0
        assert sock.recv(9, OOB) == b"d"
        expect_errno([errno.EINVAL], sock.recv, 9, OOB)
        assert events(sock) == select.POLLIN and at_mark(sock)
        wait_for(lambda: sock.recv(100, socket.MSG_PEEK) == b"efg", "the end")
        assert at_mark(sock)
        assert sock.recv(100) == b"efg" and not at_mark(sock)
        assert events(sock) == 0
        sock.sendall(b"2")
        # An urgent byte alone is nothing to read.
        wait_urgent(sock)
        assert events(sock) == select.POLLPRI and at_mark(sock)
        expect_errno([errno.EAGAIN], sock.recv, 1, socket.MSG_DONTWAIT)
        expect_errno([errno.EINVAL], sock.recv, 1, OOB)
        assert events(sock) == 0 and not at_mark(sock)
        sock.sendall(b"3")
        assert sock.recv(1) == b""

    def client(address):
        sock = connect(address)
        assert read_exactly(sock, 1) == b"1"
        assert sock.send(b"", OOB) == 0
        assert sock.send(b"ab") == 2
        assert sock.sendmsg([b"c", b"d"], [], OOB) == 2
        time.sleep(0.1)
        assert sock.send(b"ef") == 2 and sock.send(b"g") == 1
        assert read_exactly(sock, 1) == b"2"
        assert sock.send(b"h", OOB) == 1
        assert read_exactly(sock, 1) == b"3"


class urgent_in_line:
    """With SO_OOBINLINE the urgent byte is one as any other, but a read still stops in front of it. Accepted sockets inherit it."""

    def server(listener):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        sock = accept(listener)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE) == 1
        wait_urgent(sock)
        wait_for(lambda: number(sock, termios.FIONREAD) == 5, "all")
        expect_errno([errno.EINVAL], sock.recv, 1, OOB)
        assert sock.recv(100) == b"ab"
        assert at_mark(sock) and events(sock) == select.POLLIN | select.POLLPRI
        assert sock.recv(100) == b"cde"
        assert events(sock) == 0 and not at_mark(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 0)
        sock.sendall(b"1")
        wait_urgent(sock)
        assert sock.recv(1, OOB) == b"x"
        sock.sendall(b"2")
        assert sock.recv(1) == b""

    def client(address):
        sock = connect(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b"abc", OOB)
        sock.sendall(b"de")
        assert read_exactly(sock, 1) == b"1"
        sock.sendall(b"x", OOB)
        assert read_exactly(sock, 1) == b"2"


class urgent_again:
    """A reader at one mark passes it when the next one comes; both directions; a reader that waits."""

    def server(listener):
        sock = accept(listener)
        for byte in (b"1", b"2", b"3"):
            wait_urgent(sock)
            assert sock.recv(1, OOB) == byte
            sock.send(byte, OOB)
        expect_errno([errno.EAGAIN], sock.recv, 100, socket.MSG_DONTWAIT)
        sock.sendall(b"go")
        # It waits, and eats the urgent byte in between.
        assert sock.recv(100) == b"end"
        expect_errno([errno.EINVAL], sock.recv, 1, OOB)

    def client(address):
        sock = connect(address)
        for byte in (b"1", b"2", b"3"):
            sock.send(byte, OOB)
            wait_urgent(sock)
            assert sock.recv(1, OOB) == byte
        assert read_exactly(sock, 2) == b"go"
        time.sleep(0.1)
        sock.send(b"!", OOB)
        time.sleep(0.1)
        sock.send(b"end")
        assert sock.recv(1) == b""


class urgent_behind_much:
    """The mark is known at its place behind more than fits in the buffers."""

    LENGTH = 8 << 20

    def server(listener):
        sock = accept(listener)
        wait_for(lambda: events(sock) & select.POLLIN, "data")
        time.sleep(0.2)
        got = 0
        while poll_events(sock, select.POLLIN | select.POLLPRI, 5000) and not at_mark(sock):
            got += len(sock.recv(100_000))
        assert got == urgent_behind_much.LENGTH, got
        wait_urgent(sock)
        assert sock.recv(1, OOB) == b"!"
        assert read_exactly(sock, 4) == b"rest"
        sock.sendall(b"1")

    def client(address):
        sock = connect(address)
        sock.sendall(bytes(urgent_behind_much.LENGTH))
        sock.send(b"!", OOB)
        sock.sendall(b"rest")
        assert read_exactly(sock, 1) == b"1"
