"""Descriptors and processes: fork, exec, dup."""

import ctypes
import errno
import os
import platform
import select
import signal
import socket
import struct
import subprocess
import sys
import time

from corner.kit import SMALL, accept, connect, expect_errno, poll_events, read_all, read_exactly


class prefork:
    """Children forked after listen all accept; each connection is served once."""

    def server(listener):
        pids = []
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                while True:
                    sock = accept(listener)
                    if sock.recv(4) == b"stop":
                        os._exit(0)
                    sock.sendall(b"%d" % os.getpid())
                    sock.close()
            pids.append(pid)
        for pid in pids:
            assert os.waitpid(pid, 0)[1] == 0

    def client(address):
        seen = {}
        for _ in range(20):
            together = [connect(address) for _ in range(4)]
            for sock in together:
                sock.sendall(b"pid?")
            for sock in together:
                pid = read_all(sock)
                assert pid.isdigit(), pid
                seen[pid] = seen.get(pid, 0) + 1
        assert sum(seen.values()) == 80
        for _ in range(4):
            sock = connect(address)
            sock.sendall(b"stop")
            # The child's end is seen before the next one is asked.
            assert read_all(sock) == b""


# Connections that come and go while another one must stay open. The first one is answered only after what might have ended the other one
# has happened; each further one is made by the service, or by memory that it shares.
OTHERS = 20


def answer_others(listener):
    for _ in range(OTHERS):
        accept(listener).close()


def stays_open_beside_others(sock, address, why):
    for _ in range(OTHERS):
        with connect(address) as other:
            assert read_all(other) == b""
        assert poll_events(sock, select.POLLIN | select.POLLRDHUP) == 0, why


class fork_shares:
    """A connection is held by parent and child; it ends when both have closed it."""

    def server(listener):
        sock = accept(listener)
        pid = os.fork()
        if pid == 0:
            sock.sendall(b"child")
            assert read_exactly(sock, 5) == b"first"
            sock.sendall(b"+")
            sock.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        answer_others(listener)
        assert read_exactly(sock, 6) == b"second"
        sock.sendall(b"parent")
        sock.close()

    def client(address):
        sock = connect(address)
        assert read_exactly(sock, 5) == b"child"
        sock.sendall(b"first")
        assert read_exactly(sock, 1) == b"+"
        stays_open_beside_others(sock, address, "the child's close is not the end")
        sock.sendall(b"second")
        assert read_all(sock) == b"parent"


class fork_untouched:
    """A child that makes no call on what it inherits holds it all the same, until it ends."""

    def server(listener):
        sock, control = accept(listener), accept(listener)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(reader, 1)
            os._exit(0)
        sock.sendall(b"a")
        sock.close()
        answer_others(listener)
        assert read_exactly(control, 4) == b"held"
        os.write(writer, b"end")
        assert os.waitpid(pid, 0)[1] == 0
        assert read_all(control) == b"over"

    def client(address):
        sock, control = connect(address), connect(address)
        assert read_exactly(sock, 1) == b"a"
        stays_open_beside_others(sock, address, "the child holds it")
        control.sendall(b"held")
        assert read_all(sock) == b""
        control.sendall(b"over")


class fork_exec_lets_go:
    """A child that becomes another program at once lets go of what is closed on exec."""

    def server(listener):
        sock = accept(listener)
        pid = os.fork()
        if pid == 0:
            os.execvp("sleep", ["sleep", "60"])
        sock.sendall(read_exactly(sock, 1))
        sock.close()
        assert read_all(accept(listener)) == b"over"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def client(address):
        sock = connect(address)
        sock.sendall(b"a")
        assert read_all(sock) == b"a"
        with connect(address) as control:
            control.sendall(b"over")


class fork_daemon:
    """A parent that ends at once leaves its connections to its child."""

    def server(listener):
        for _ in range(10):
            sock = accept(listener)
            middle = os.fork()
            if middle == 0:
                if os.fork() == 0:
                    time.sleep(0.02)
                    sock.sendall(read_exactly(sock, 3)[::-1])
                    sock.close()
                os._exit(0)
            sock.close()
            assert os.waitpid(middle, 0)[1] == 0

    def client(address):
        for _ in range(10):
            sock = connect(address)
            sock.sendall(b"abc")
            assert read_all(sock) == b"cba"


class fork_per_connection:
    """The classic server: accept, fork, serve in the child."""

    def server(listener):
        for _ in range(10):
            sock = accept(listener)
            if os.fork() == 0:
                listener.close()
                sock.sendall(read_exactly(sock, 1000)[::-1])
                sock.close()
                os._exit(0)
            sock.close()
        for _ in range(10):
            assert os.wait()[1] == 0

    def client(address):
        for _ in range(10):
            sock = connect(address)
            sock.sendall(SMALL[:1000])
            assert read_all(sock) == SMALL[:1000][::-1]


class duplicates:
    """dup and dup2 give other numbers for the same socket, which lives as long as one of them."""

    def server(listener):
        sock = accept(listener)
        copy = os.dup(sock.fileno())
        os.dup2(copy, 77)
        sock.close()
        os.close(copy)
        os.write(77, b"from 77")
        assert os.read(77, 100) == b"to 77"
        # The number now names something else: the socket's last descriptor goes.
        reader, writer = os.pipe()
        os.dup2(reader, 77)
        os.write(writer, b"pipe")
        assert os.read(77, 100) == b"pipe"
        assert read_all(accept(listener)) == b""

    def client(address):
        sock = connect(address)
        assert sock.recv(100) == b"from 77"
        sock.sendall(b"to 77")
        assert sock.recv(1) == b""
        connect(address).close()


class exec_inherits:
    """A program started on a connection as its standard input and output, as inetd does."""

    def server(listener):
        sock = accept(listener)
        code = "import sys; line = sys.stdin.readline(); print(line.strip()[::-1]); sys.stdout.flush()"
        assert subprocess.run([sys.executable, "-c", code], stdin=sock, stdout=sock, timeout=20, check=False).returncode == 0
        sock.close()

    def client(address):
        sock = connect(address)
        sock.sendall(b"abc\n")
        assert read_all(sock) == b"cba\n"


class exec_replaces:
    """A program replaces itself: what it has not read is there for the next one, what it has sent arrives, and the next one ends
    the connection."""

    def server(listener):
        sock = accept(listener)
        assert sock.recv(5) == b"first"
        sock.sendall(SMALL)
        sock.shutdown(socket.SHUT_WR)
        code = (
            "import socket\n"
            "sock = socket.socket(fileno=0)\n"
            "data = b''\n"
            "while part := sock.recv(65536): data += part\n"
            "assert data == b'second' + bytes(range(256)) * 300, len(data)\n"
            "try: sock.send(b'x')\n"
            "except BrokenPipeError: pass\n"
            "else: raise SystemExit('sent after SHUT_WR')\n"
        )
        os.dup2(sock.fileno(), 0)
        os.execv(sys.executable, [sys.executable, "-c", code])

    def client(address):
        sock = connect(address)
        sock.sendall(b"first")
        sock.sendall(b"second")
        sock.sendall(bytes(range(256)) * 300)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == SMALL


class exec_serves:
    """A server forks for each connection and starts a program for it, as sshd does; the program talks at length."""

    def server(listener):
        code = (
            "import socket, select\n"
            "sock = socket.socket(fileno=7)\n"
            "assert sock.getpeername() and sock.getsockname()\n"
            "sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n"
            "poller = select.epoll()\n"
            "poller.register(sock, select.EPOLLIN)\n"
            "while True:\n"
            "    assert poller.poll(10)\n"
            "    data = sock.recv(65536)\n"
            "    if not data: break\n"
            "    sock.sendall(data)\n"
        )
        for _ in range(3):
            sock = accept(listener)
            pid = os.fork()
            if pid == 0:
                os.dup2(sock.fileno(), 7)
                os.execv(sys.executable, [sys.executable, "-c", code])
            sock.close()
            assert os.waitpid(pid, 0)[1] == 0

    def client(address):
        for _ in range(3):
            sock = connect(address)
            for i in range(200):
                sock.sendall(b"%010d" % i)
                assert read_exactly(sock, 10) == b"%010d" % i
            for i in range(20):
                sock.sendall(SMALL[: 50_000])
                assert read_exactly(sock, 50_000) == SMALL[: 50_000]
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock) == b""


class exec_connects:
    """The connecting side starts a program on its connection."""

    def server(listener):
        sock = accept(listener)
        assert read_exactly(sock, 6) == b"before"
        sock.sendall(b"to the program\n")
        assert read_all(sock) == b"margorp eht ot"

    def client(address):
        sock = connect(address)
        sock.sendall(b"before")
        code = "import os; os.write(1, os.read(0, 100).strip()[::-1])"
        os.dup2(sock.fileno(), 0)
        os.dup2(sock.fileno(), 1)
        program = sys.executable.encode()
        arguments = [ctypes.c_char_p(word) for word in (program, b"-B", b"-E", b"-s", b"-u", b"-W", b"ignore", b"-c", code.encode(), None)]
        LIBC.execl(program, *arguments)


class exec_unseen:
    """A program that does nothing with the connection that it was started on: the peer sees its end."""

    def server(listener):
        sock = accept(listener)
        assert sock.recv(1) == b"."
        pid = os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, sock.fileno(), 0)])
        sock.close()
        assert os.waitpid(pid, 0)[1] == 0
        # The service's own patience included.
        accept(listener).close()

    def client(address):
        sock = connect(address)
        sock.sendall(b".")
        assert sock.recv(1) == b""
        connect(address).close()


class passed_on:
    """A connection goes to another process by SCM_RIGHTS; the giver closes its copy."""

    def server(listener):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = os.fork()
        if pid == 0:
            ours.close()
            for _ in range(2):
                word, fds, _, _ = socket.recv_fds(theirs, 10, 1)
                assert word == b"take"
                sock = socket.socket(fileno=fds[0])
                assert read_exactly(sock, 4) == b"ping"
                sock.sendall(SMALL)
                assert read_all(sock) == SMALL[::-1]
                sock.sendall(b"end")
                sock.close()
            os._exit(0)
        theirs.close()
        for _ in range(2):
            sock = accept(listener)
            socket.send_fds(ours, [b"take"], [sock.fileno()])
            sock.close()
        assert os.waitpid(pid, 0)[1] == 0

    def client(address):
        for _ in range(2):
            sock = connect(address)
            sock.sendall(b"ping")
            assert read_exactly(sock, len(SMALL)) == SMALL
            sock.sendall(SMALL[::-1])
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock) == b"end"


class subprocess_beside:
    """Starting programs (vfork, close_fds) does not disturb connections."""

    def server(listener):
        sock = accept(listener)
        for _ in range(5):
            assert subprocess.run(["true"], check=False).returncode == 0
            sock.sendall(read_exactly(sock, 10))
        assert read_all(sock) == b""

    def client(address):
        sock = connect(address)
        for i in range(5):
            sock.sendall(b"%010d" % i)
            assert subprocess.check_output(["echo", "x"]) == b"x\n"
            assert read_exactly(sock, 10) == b"%010d" % i


LIBC = ctypes.CDLL(None, use_errno=True)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class dissolved:
    """connect to AF_UNSPEC ends a connection; the socket can be connected again, its options as they were."""

    def server(listener):
        first = accept(listener)
        first.sendall(b".")
        expect_errno([errno.ECONNRESET], first.recv, 1)
        assert read_all(accept(listener)) == b"again"

    def client(address):
        sock = connect(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poller = select.epoll()
        poller.register(sock, select.EPOLLOUT)
        copy = sock.dup()
        assert sock.recv(1) == b"."
        call(LIBC.connect, sock.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16)
        expect_errno([errno.ENOTCONN], sock.getpeername)
        assert poller.poll(1)[0][1] & select.EPOLLHUP
        sock.connect(address)
        assert copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert poller.poll(1) == [(sock.fileno(), select.EPOLLOUT)]
        sock.close()
        copy.sendall(b"again")


# accept4, sendto, recvfrom.
NUMBERS = {"x86_64": (288, 44, 45), "aarch64": (242, 206, 207)}[platform.machine()]


class by_number:
    """syscall(2) with the number of a call does what the call does."""

    def server(listener):
        accept4, sendto, recvfrom = NUMBERS
        sock = call(LIBC.syscall, accept4, listener.fileno(), None, None, socket.SOCK_CLOEXEC)
        room = ctypes.create_string_buffer(100)
        assert call(LIBC.syscall, recvfrom, sock, room, 100, 0, None, None) == 5
        assert room.raw[:5] == b"hello"
        assert call(LIBC.syscall, sendto, sock, b"world", 5, 0, None, 0) == 5
        os.close(sock)

    def client(address):
        sock = connect(address)
        sock.sendall(b"hello")
        assert read_all(sock) == b"world"


class cleared_environment:
    """Nothing is left of the environment when the first socket is made."""

    clears = True

    def server(listener):
        assert not os.environ
        sock = accept(listener)
        sock.sendall(read_exactly(sock, len(SMALL))[::-1])
        assert sock.recv(1) == b""

    def client(address):
        sock = connect(address)
        sock.sendall(SMALL)
        assert read_exactly(sock, len(SMALL)) == SMALL[::-1]
        sock.close()
