"""How connections end: half closes, resets, and what was sent just before an end."""

import errno
import os
import select
import signal
import socket
import threading
import time

from corner.kit import MEGABYTE, SMALL, accept, connect, expect_errno, linger_zero, poll_events, read_all, read_exactly, wait_for


class half_close:
    """After shutdown(SHUT_WR) the other direction goes on."""

    def server(listener):
        sock = accept(listener)
        assert read_all(sock) == MEGABYTE
        # The client has sent its end; it still reads.
        sock.sendall(MEGABYTE[::-1])
        sock.close()

    def client(address):
        sock = connect(address)
        sock.sendall(MEGABYTE)
        sock.shutdown(socket.SHUT_WR)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        expect_errno([errno.EPIPE], sock.send, b"more")
        assert read_all(sock) == MEGABYTE[::-1]
        assert sock.recv(1) == b""


class shutdown_read:
    """shutdown(SHUT_RD) ends one's own reading at once and is not seen by the peer."""

    def server(listener):
        sock = accept(listener)
        assert read_all(sock) == b"hello"

    def client(address):
        sock = connect(address)
        sock.shutdown(socket.SHUT_RD)
        assert sock.recv(10) == b""
        sock.sendall(b"hello")
        wait_for(lambda: poll_events(sock, select.POLLIN) & select.POLLIN, "readable after SHUT_RD")
        sock.close()


class reset_by_linger:
    """close with SO_LINGER 0 resets."""

    def server(listener):
        sock = accept(listener)
        assert sock.recv(5) == b"hello"
        expect_errno([errno.ECONNRESET], sock.recv, 1)
        assert sock.recv(1) == b""
        expect_errno([errno.EPIPE], sock.send, b"x")
        # The listener is not disturbed.
        again = accept(listener)
        assert read_all(again) == b"again"

    def client(address):
        sock = connect(address)
        sock.sendall(b"hello")
        time.sleep(0.1)
        linger_zero(sock)
        sock.close()
        with connect(address) as again:
            again.sendall(b"again")


class reset_on_unread:
    """close with unread input resets."""

    def server(listener):
        sock = accept(listener)
        wait_for(lambda: poll_events(sock, select.POLLIN), "input")
        sock.close()

    def client(address):
        sock = connect(address)
        sock.sendall(b"never read")
        expect_errno([errno.ECONNRESET], sock.recv, 1)
        expect_errno([errno.EPIPE], sock.send, b"x")


class send_after_close:
    """The first send after the peer's close is taken, a later one fails."""

    def server(listener):
        accept(listener).close()
        # Its process goes on: only the socket is closed.
        assert read_all(accept(listener)) == b""

    def client(address):
        sock = connect(address)
        assert sock.recv(1) == b""
        assert sock.send(b"x") == 1

        def fails():
            try:
                sock.send(b"x")
            except OSError as problem:
                assert problem.errno in (errno.EPIPE, errno.ECONNRESET), problem
                return True
            return False

        wait_for(fails, "send fails after the peer closed")
        connect(address).close()


class broken_pipe_signal:
    """Writing to a connection that is gone raises SIGPIPE, and MSG_NOSIGNAL does not."""

    def server(listener):
        linger_zero(sock := accept(listener))
        # Not before connect has returned: it would fail.
        assert sock.recv(1) == b"1"
        sock.close()
        assert read_all(accept(listener)) == b""

    def client(address):
        sock = connect(address)
        sock.sendall(b"1")
        expect_errno([errno.ECONNRESET], sock.recv, 1)
        expect_errno([errno.EPIPE], sock.send, b"x", socket.MSG_NOSIGNAL)
        came = []
        signal.signal(signal.SIGPIPE, lambda *_: came.append(1))
        expect_errno([errno.EPIPE], os.write, sock.fileno(), b"x")
        wait_for(lambda: came == [1], "SIGPIPE")
        connect(address).close()


class close_after_send:
    """What was sent just before close arrives."""

    def server(listener):
        sock = accept(listener)
        sock.sendall(SMALL)
        sock.close()
        assert read_all(accept(listener)) == b""

    def client(address):
        sock = connect(address)
        time.sleep(0.2)
        assert read_all(sock) == SMALL
        connect(address).close()


class exit_after_send:
    """What was sent just before the process ends arrives."""

    def server(listener):
        sock = accept(listener)
        sock.sendall(SMALL)
        os._exit(0)

    def client(address):
        sock = connect(address)
        time.sleep(0.2)
        assert read_all(sock) == SMALL


class killed_after_send:
    """What was sent just before SIGKILL arrives."""

    status = -signal.SIGKILL

    def server(listener):
        sock = accept(listener)
        sock.sendall(SMALL)
        os.kill(os.getpid(), signal.SIGKILL)

    def client(address):
        sock = connect(address)
        time.sleep(0.2)
        assert read_all(sock) == SMALL


class thread_ends_after_send:
    """What a thread sent just before its end arrives, and the socket outlives the thread."""

    def server(listener):
        sock = accept(listener)
        sender = threading.Thread(target=sock.sendall, args=(SMALL,))
        sender.start()
        sender.join()
        assert read_exactly(sock, 3) == b"got"
        sock.sendall(b"end")

    def client(address):
        sock = connect(address)
        assert read_exactly(sock, len(SMALL)) == SMALL
        sock.sendall(b"got")
        assert read_all(sock) == b"end"


class backlog_order:
    """Connections that wait in the backlog, some with data, some already closed, come out complete and in order."""

    def server(listener):
        wait_for(lambda: os.path.exists("backlog.ready"), "the client is done", 15)
        for i in range(50):
            assert read_all(accept(listener)) == b"%d" % i
        listener.setblocking(False)
        expect_errno([errno.EAGAIN], listener.accept)

    def client(address):
        for i in range(50):
            with connect(address) as sock:
                sock.sendall(b"%d" % i)
        open("backlog.ready", "w").close()
