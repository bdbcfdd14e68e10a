"""Waiting: poll, select, epoll, connects and time limits."""

import errno
import os
import select
import signal
import socket
import struct
import time

from corner.kit import accept, connect, expect_errno, poll_events, read_all, read_exactly, wait_for


class nonblocking_connect:
    """connect without blocking, and its outcome by poll and SO_ERROR; a port where nobody listens refuses."""

    # On loopback the refusal is the kernel's.
    fallen_back = 2

    def server(listener):
        for _ in range(3):
            assert read_all(accept(listener)) == b"hello"

    def client(address):
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        for wait in ("poll", "select", "epoll"):
            sock = socket.socket(family)
            sock.setblocking(False)
            assert sock.connect_ex(address) in (0, errno.EINPROGRESS)
            if wait == "poll":
                assert poll_events(sock, select.POLLOUT, 5000) == select.POLLOUT
            elif wait == "select":
                assert select.select([], [sock], [], 5)[1] == [sock]
            else:
                with select.epoll() as poller:
                    poller.register(sock, select.EPOLLOUT | select.EPOLLET)
                    assert poller.poll(5) == [(sock.fileno(), select.EPOLLOUT)]
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            sock.send(b"hello")
            sock.close()
        nobody = (address[0], 1)
        with socket.socket(family) as sock:
            expect_errno([errno.ECONNREFUSED], sock.connect, nobody)
        with socket.socket(family) as sock:
            sock.setblocking(False)
            if sock.connect_ex(nobody) == errno.EINPROGRESS:
                assert poll_events(sock, select.POLLOUT, 5000) & select.POLLERR
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


class readiness:
    """What poll says at each turn of a connection's life."""

    def server(listener):
        assert poll_events(listener, select.POLLIN, 5000) == select.POLLIN
        sock = accept(listener)
        assert poll_events(listener, select.POLLIN) == 0
        everything = select.POLLIN | select.POLLOUT | select.POLLRDHUP
        sock.sendall(b"1")
        assert poll_events(sock, select.POLLIN, 5000) == select.POLLIN
        assert sock.recv(1) == b"2"
        assert poll_events(sock, everything) == select.POLLOUT
        sock.sendall(b"3")
        assert poll_events(sock, select.POLLRDHUP, 5000) == select.POLLRDHUP
        assert poll_events(sock, everything) == everything
        sock.shutdown(socket.SHUT_WR)
        wait_for(lambda: poll_events(sock, everything) & select.POLLHUP, "POLLHUP when both ends are shut")
        assert sock.recv(1) == b""

    def client(address):
        sock = connect(address)
        assert sock.recv(1) == b"1"
        sock.send(b"2")
        assert sock.recv(1) == b"3"
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""


class full_queue:
    """An accept queue that was full to the last place takes connections again once they are accepted."""

    ROUNDS = 20

    def server(listener):
        listener.listen(1)
        told = accept(listener)
        for _ in range(full_queue.ROUNDS):
            assert read_exactly(told, 1) == b"2"
            for _ in range(2):
                accept(listener).close()
            told.sendall(b"0")

    def client(address):
        told = connect(address)
        for _ in range(full_queue.ROUNDS):
            # One more than the backlog, as Linux takes.
            waiting = [connect(address) for _ in range(2)]
            told.sendall(b"2")
            assert read_exactly(told, 1) == b"0"
            for sock in waiting:
                sock.close()


class epoll_modes:
    """Level, edge, one-shot and a mixed set of sockets, a pipe and a timer."""

    def server(listener):
        sock = accept(listener)
        for step in (b"level", b"edge", b"more", b"oneshot", b"again"):
            assert sock.recv(3) == b"go!"
            sock.sendall(step)
        assert read_all(sock) == b""

    def client(address):
        sock = connect(address)
        number = sock.fileno()
        reader, writer = os.pipe()
        with select.epoll() as poller:
            poller.register(number, select.EPOLLIN)
            poller.register(reader, select.EPOLLIN)
            assert poller.poll(0) == []
            sock.send(b"go!")
            assert poller.poll(5) == [(number, select.EPOLLIN)]
            assert poller.poll(5) == [(number, select.EPOLLIN)], "level-triggered stays"
            os.write(writer, b"x")
            wait_for(lambda: sorted(poller.poll(0)) == sorted([(number, select.EPOLLIN), (reader, select.EPOLLIN)]), "both")
            os.read(reader, 1)
            assert sock.recv(100) == b"level"
            assert poller.poll(0) == []
            poller.modify(number, select.EPOLLIN | select.EPOLLET)
            sock.send(b"go!")
            assert poller.poll(5) == [(number, select.EPOLLIN)]
            assert poller.poll(0.05) == [], "edge-triggered tells once"
            sock.send(b"go!")
            assert poller.poll(5) == [(number, select.EPOLLIN)], "new bytes, new edge"
            assert read_exactly(sock, 8) == b"edgemore"
            poller.modify(number, select.EPOLLIN | select.EPOLLONESHOT)
            sock.send(b"go!")
            assert poller.poll(5) == [(number, select.EPOLLIN)]
            assert poller.poll(0.05) == [], "one-shot is disarmed"
            assert sock.recv(100) == b"oneshot"
            sock.send(b"go!")
            assert poller.poll(0.05) == []
            poller.modify(number, select.EPOLLIN | select.EPOLLONESHOT)
            assert poller.poll(5) == [(number, select.EPOLLIN)]
            assert sock.recv(100) == b"again"
            poller.unregister(number)
        sock.close()


class timeouts:
    """SO_RCVTIMEO ends a wait; a signal interrupts one."""

    def server(listener):
        sock = accept(listener)
        assert read_all(sock) == b"done"

    def client(address):
        sock = connect(address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
        began = time.monotonic()
        expect_errno([errno.EAGAIN], sock.recv, 1)
        assert time.monotonic() - began > 0.09, "SO_RCVTIMEO of 100 ms"
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))

        class Alarm(Exception):
            pass

        def ring(*_):
            raise Alarm

        signal.signal(signal.SIGALRM, ring)
        for wait in (lambda: sock.recv(1), lambda: select.select([sock], [], [], 60), lambda: poll_events(sock, select.POLLIN, 60_000)):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            try:
                wait()
            except Alarm:
                continue
            raise AssertionError("no signal came through")
        sock.sendall(b"done")
