"""Bytes: order, backpressure, flags, vectors, files, threads."""

import ctypes
import errno
import hashlib
import os
import select
import socket
import threading
import time

from corner.kit import MEGABYTE, SMALL, accept, connect, expect_errno, poll_events, read_all, read_exactly, target_of, wait_for


class backpressure:
    """A slow reader stops the sender; nothing is lost, doubled or reordered."""

    TOTAL = 24 << 20

    def server(listener):
        sock = accept(listener)
        sock.setblocking(False)
        sent, stalls = 0, 0
        while sent < backpressure.TOTAL:
            try:
                start = sent % len(MEGABYTE)
                sent += sock.send(MEGABYTE[start : start + backpressure.TOTAL - sent])
            except BlockingIOError:
                stalls += 1
                assert stalls > 1 or sent < backpressure.TOTAL, "no limit"
                assert poll_events(sock, select.POLLOUT, 10_000) & select.POLLOUT, "never writable again"
        assert stalls > 0, "the sender was never stopped"
        sock.setblocking(True)
        sock.close()

    def client(address):
        sock = connect(address)
        time.sleep(0.5)
        got, digest = 0, hashlib.sha256()
        while part := sock.recv(100_000):
            digest.update(part)
            got += len(part)
            if got % 7 == 0:
                time.sleep(0.002)
        expected = hashlib.sha256(MEGABYTE * (backpressure.TOTAL // len(MEGABYTE)))
        assert got == backpressure.TOTAL and digest.digest() == expected.digest(), got


class both_write_first:
    """Both ends write much, little by little, before either reads: buffers take it."""

    def server(listener):
        both_write_first.end(accept(listener))

    def client(address):
        both_write_first.end(connect(address))

    def end(sock):
        # With a time limit each send is one that does not wait.
        for limit in (None, 20, None):
            sock.settimeout(limit)
            for start in range(0, len(SMALL), 50):
                sock.sendall(SMALL[start : start + 50])
            assert read_exactly(sock, len(SMALL)) == SMALL


class receive_flags:
    """MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, FIONREAD."""

    def server(listener):
        sock = accept(listener)
        assert sock.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL) == b"abcd"
        assert sock.recv(8, socket.MSG_WAITALL) == b"abcdefgh"
        expect_errno([errno.EAGAIN], sock.recv, 1, socket.MSG_DONTWAIT)
        sock.sendall(b"1")
        # Comes in three parts.
        assert sock.recv(9, socket.MSG_WAITALL) == b"123456789"
        sock.sendall(b"2")
        assert sock.recv(100, socket.MSG_WAITALL) == b"tail"

    def client(address):
        sock = connect(address)
        sock.sendall(b"abcdefgh", socket.MSG_NOSIGNAL)
        assert sock.recv(1) == b"1"
        for part in (b"123", b"456", b"789"):
            sock.send(part)
            time.sleep(0.02)
        assert sock.recv(1) == b"2"
        sock.sendall(b"tail")


class what_is_left:
    """TCP_INQ: each recvmsg tells what is unread after it, and 1 for the end of the stream; MSG_CTRUNC without room."""

    TCP_INQ = TCP_CM_INQ = 36

    def server(listener):
        sock = accept(listener)
        sock.setsockopt(socket.IPPROTO_TCP, what_is_left.TCP_INQ, 1)
        expect_errno([errno.EINVAL], sock.setsockopt, socket.IPPROTO_TCP, what_is_left.TCP_INQ, 2)
        wait_for(lambda: len(sock.recv(1000, socket.MSG_PEEK)) == 1000, "all bytes")

        def told(n, left):
            data, ancillary, flags, _ = sock.recvmsg(n, socket.CMSG_SPACE(4))
            number = left.to_bytes(4, "little")
            assert (len(data), ancillary) == (n, [(socket.IPPROTO_TCP, what_is_left.TCP_CM_INQ, number)]), (n, ancillary)
            assert not flags & socket.MSG_CTRUNC

        told(100, 900)
        data, ancillary, flags, _ = sock.recvmsg(100, 4)
        assert (len(data), ancillary) == (100, []) and flags & socket.MSG_CTRUNC
        sock.sendall(b"end")
        wait_for(lambda: poll_events(sock, select.POLLRDHUP, 0) & select.POLLRDHUP, "the end")
        told(800, 1)
        assert sock.recv(1) == b""

    def client(address):
        sock = connect(address)
        sock.sendall(SMALL[:1000])
        assert read_exactly(sock, 3) == b"end"
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""


class nowhere:
    """Buffers at NULL: EFAULT where bytes would move, and they stay."""

    def server(listener):
        libc = ctypes.CDLL(None, use_errno=True)
        sock = accept(listener)
        fd = sock.fileno()

        def fails(name, *arguments):
            call = getattr(libc, name)
            call.restype = ctypes.c_ssize_t
            result = call(fd, None, ctypes.c_size_t(10), *arguments)
            assert (result, ctypes.get_errno()) == (-1, errno.EFAULT), (name, result, ctypes.get_errno())

        sock.sendall(b"go")
        wait_for(lambda: sock.recv(10, socket.MSG_PEEK) == b"0123456789", "bytes")
        for name, arguments in (("write", ()), ("send", (0,)), ("sendto", (0, None, 0)), ("read", ()), ("recv", (0,)), ("recvfrom", (0, None, None))):
            fails(name, *arguments)
        assert sock.recv(100) == b"0123456789"
        call = libc.read
        assert call(fd, None, ctypes.c_size_t(0)) == 0

    def client(address):
        sock = connect(address)
        assert read_exactly(sock, 2) == b"go"
        sock.sendall(b"0123456789")
        assert sock.recv(1) == b"", "nothing was sent from NULL"


class vectors:
    """writev, readv, sendmsg, recvmsg with many parts."""

    def server(listener):
        sock = accept(listener)
        parts = [SMALL[i : i + 700] for i in range(0, 42_000, 700)]
        assert os.writev(sock.fileno(), parts) == 42_000
        assert sock.sendmsg(parts[:10], [], socket.MSG_NOSIGNAL) == 7000
        sock.close()

    def client(address):
        sock = connect(address)
        wait_for(lambda: len(sock.recv(42_000, socket.MSG_PEEK)) == 42_000, "all of writev")
        buffers = [bytearray(n) for n in (1, 999, 20_000, 21_000)]
        assert os.readv(sock.fileno(), buffers) == 42_000
        assert b"".join(buffers) == SMALL[:42_000]
        data, ancillary, flags, _ = sock.recvmsg(7000, 100, socket.MSG_WAITALL)
        assert (data, ancillary) == (SMALL[:7000], []) and not flags & socket.MSG_CTRUNC


class sendfile:
    """sendfile from a file, in full."""

    def server(listener):
        sock = accept(listener)
        with open("sendfile.data", "wb") as file:
            file.write(MEGABYTE * 5)
        with open("sendfile.data", "rb") as file:
            assert sock.sendfile(file, 1000) == 5 * len(MEGABYTE) - 1000
        sock.close()

    def client(address):
        assert read_all(connect(address)) == (MEGABYTE * 5)[1000:]


class threads:
    """Sixteen threads with a connection each, at the same time."""

    def server(listener):
        def serve(sock):
            while data := sock.recv(65536):
                sock.sendall(data)
            sock.close()

        running = []
        for _ in range(16):
            running.append(threading.Thread(target=serve, args=(accept(listener),)))
            running[-1].start()
        for thread in running:
            thread.join()

    def client(address):
        problems = []

        def talk(number):
            try:
                sock = connect(address)
                for i in range(50):
                    data = SMALL[number * 100 + i : number * 100 + i + 3000]
                    sock.sendall(data)
                    assert read_exactly(sock, 3000) == data, (number, i)
                sock.close()
            except BaseException as problem:
                problems.append(problem)
                raise

        running = [threading.Thread(target=talk, args=(n,)) for n in range(16)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert not problems, problems


class two_threads_one_socket:
    """One thread sends while another receives on the same socket, full duplex."""

    def server(listener):
        two_threads_one_socket.both_ways(accept(listener))

    def client(address):
        two_threads_one_socket.both_ways(connect(address))

    def both_ways(sock):
        def send():
            for _ in range(8):
                sock.sendall(MEGABYTE)
            sock.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert read_all(sock) == MEGABYTE * 8
        sender.join()


class options:
    """Options read back as set; names of both ends agree."""

    def server(listener):
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        sock, peer = listener.accept()
        assert sock.getpeername()[:2] == peer[:2]
        ours = f"{sock.getsockname()[:2]} {sock.getpeername()[:2]}".encode()
        sock.sendall(ours + b"\n")
        assert read_all(sock) == b""

    def client(address):
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.connect(address)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 131072
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0
        expect_errno([errno.ENOPROTOOPT], sock.getsockopt, socket.IPPROTO_TCP, 9999)
        assert len(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)) >= 100
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)[0] == 1, "TCP_INFO: state is not ESTABLISHED"
        theirs = sock.makefile("rb").readline().strip()
        assert theirs == f"{sock.getpeername()[:2]} {sock.getsockname()[:2]}".encode(), (theirs, sock)
        expect_errno([errno.EISCONN], sock.connect, address)


class same_process:
    """Both ends of a connection in one process, and in one thread."""

    def server(listener):
        near = socket.create_server((target_of(listener), 0), family=listener.family)
        ours = connect(near.getsockname()[:2])
        theirs = accept(near)
        for a, b in ((ours, theirs), (theirs, ours)):
            a.sendall(b"to myself")
            assert read_exactly(b, 9) == b"to myself"
        ours.close()
        assert theirs.recv(1) == b""
        accept(listener).close()

    def client(address):
        connect(address).close()
