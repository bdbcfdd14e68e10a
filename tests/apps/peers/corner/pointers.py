"""Pointers to nowhere: what the kernel says, and what the safe profile says."""

import ctypes
import errno
import mmap
import os
import socket
import struct

from corner.kit import accept, connect, read_all, read_exactly, wait_for

LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
TEN = b"0123456789"


def protected(*rights):
    """Pages in a row with those rights; the address of the first."""
    LIBC.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    length = ctypes.c_size_t(PAGE * len(rights))
    at = LIBC.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0))
    for number, right in enumerate(rights):
        assert LIBC.mprotect(ctypes.c_void_p(at + number * PAGE), ctypes.c_size_t(PAGE), right) == 0
    return at


def result(name, fd, *arguments, kind=ctypes.c_ssize_t):
    call = getattr(LIBC, name)
    call.restype = kind
    ctypes.set_errno(0)
    value = call(*(ctypes.c_size_t(a) if isinstance(a, int) else a for a in (fd, *arguments)))
    return errno.errorcode[ctypes.get_errno()] if value < 0 else value


class bad_pointers:
    """EFAULT where the kernel says EFAULT: no crash, no byte lost, none sent; and what is just within bounds works."""

    environment = {"TOWPATH_PROFILE": "safe"}

    def server(listener):
        sock = accept(listener)
        fd = sock.fileno()
        none, fixed = protected(0), protected(mmap.PROT_READ)
        # Five good bytes, then nothing.
        edge = protected(mmap.PROT_READ | mmap.PROT_WRITE, 0) + PAGE - 5
        good = ctypes.create_string_buffer(64)
        room = ctypes.addressof(good)
        vector = ctypes.create_string_buffer(64)
        vector_at = ctypes.addressof(vector)
        header = ctypes.create_string_buffer(56)
        header_at = ctypes.addressof(header)

        def parts(*pairs):
            vector[:] = struct.pack("QQ" * len(pairs), *(n for pair in pairs for n in pair)).ljust(64, b"\0")

        def message(vector_at, count):
            header[:] = struct.pack("QIxxxxQQQQixxxx", 0, 0, vector_at, count, 0, 0, 0)

        sock.sendall(b"go")
        wait_for(lambda: sock.recv(10, socket.MSG_PEEK) == TEN, "bytes")
        for at in (none, fixed, edge, 8, 1 << 63):
            for name, rest in (("read", ()), ("recv", (0,)), ("recvfrom", (0, None, None))):
                assert result(name, fd, at, 10, *rest) == "EFAULT", (name, hex(at))
            parts((room, 3), (at, 7))
            assert result("readv", fd, vector_at, 2) == "EFAULT", hex(at)
            message(vector_at, 2)
            assert result("recvmsg", fd, header_at, 0) == "EFAULT", hex(at)
        for at in (none, edge, 8, 1 << 63):
            for name, rest in (("write", ()), ("send", (0,)), ("sendto", (0, None, 0))):
                assert result(name, fd, at, 10, *rest) == "EFAULT", (name, hex(at))
            parts((room, 3), (at, 7))
            assert result("writev", fd, vector_at, 2) == "EFAULT", hex(at)
            message(vector_at, 2)
            assert result("sendmsg", fd, header_at, 0) == "EFAULT", hex(at)
        message(none, 2)
        for name in ("recvmsg", "sendmsg"):
            assert result(name, fd, none, 0) == "EFAULT"
            assert result(name, fd, header_at, 0) == "EFAULT"
        for name in ("readv", "writev"):
            assert result(name, fd, none, 2) == "EFAULT"
        size = ctypes.create_string_buffer(struct.pack("I", 16))
        level, name = socket.IPPROTO_TCP, socket.TCP_NODELAY
        size_at = ctypes.addressof(size)
        for call, *arguments in (
            ("setsockopt", level, name, none, 4),
            ("getsockopt", level, name, none, size_at),
            ("getsockopt", level, name, room, none),
            ("getsockname", none, size_at),
            ("getsockname", room, none),
            ("getpeername", none, size_at),
            ("getpeername", room, none),
            ("connect", none, 16),
        ):
            assert result(call, fd, *arguments, kind=ctypes.c_int) == "EFAULT", (call, arguments)
        events_of(fd, none, room)
        # Everything is still there, and only what comes need fit.
        assert result("read", fd, edge, 5) == 5 and ctypes.string_at(edge, 5) == TEN[:5]
        assert result("read", fd, edge, 10) == 5 and ctypes.string_at(edge, 5) == TEN[5:]
        assert result("write", fd, edge, 5) == 5
        parts((edge, 2), (edge + 2, 3), (none, 0))
        assert result("writev", fd, vector_at, 3) == 5
        sock.shutdown(socket.SHUT_WR)
        assert result("read", fd, none, 10) == 0, "the end needs no room"

    def client(address):
        sock = connect(address)
        assert read_exactly(sock, 2) == b"go"
        sock.sendall(TEN)
        assert read_all(sock) == TEN[5:] * 2, "nothing was sent from bad pointers"
        sock.close()


def events_of(fd, none, room):
    """Events of a socket that is readable."""
    epfd = LIBC.epoll_create1(0)
    number = {"kind": ctypes.c_int}
    event = ctypes.create_string_buffer(struct.pack("=IQ", 1, 7))
    assert result("epoll_ctl", epfd, 1, fd, none, **number) == "EFAULT"
    assert result("epoll_ctl", epfd, 1, fd, ctypes.addressof(event), **number) == 0
    for _ in range(2):
        assert result("epoll_wait", epfd, none, 4, 1000, **number) == "EFAULT"
    assert result("epoll_pwait2", epfd, room, 4, none, None, **number) == "EFAULT"
    assert result("epoll_wait", epfd, room, 1 << 20, 1000, **number) == 1
    assert ctypes.string_at(room, 12) == struct.pack("=IQ", 1, 7)
    listed = ctypes.create_string_buffer(struct.pack("ihh", fd, 1, 0))
    assert result("poll", none, 1, 1000, **number) == "EFAULT"
    assert result("poll", ctypes.addressof(listed), 1, 1000, **number) == 1
    assert result("select", fd + 1, none, None, None, None, **number) == "EFAULT"
    os.close(epfd)


class bad_pointers_wait:
    """A blocking read with a bad pointer fails when there is something to write, and large buffers are checked to their ends."""

    environment = {"TOWPATH_PROFILE": "safe"}

    def server(listener):
        sock = accept(listener)
        fd = sock.fileno()
        pages = 300
        area = protected(*[mmap.PROT_READ | mmap.PROT_WRITE] * pages, 0)
        length = pages * PAGE
        assert result("write", fd, area, length + 1) in ("EFAULT", *range(1, length + 1))
        assert result("read", fd, protected(0), 10) == "EFAULT"
        read_exactly(sock, 3)
        os.close(os.dup(fd))

    def client(address):
        sock = connect(address)
        sock.settimeout(0.2)
        try:
            while sock.recv(1 << 20):
                pass
        except TimeoutError:
            pass
        sock.settimeout(None)
        sock.sendall(b"end")
        assert read_all(sock) == b""
