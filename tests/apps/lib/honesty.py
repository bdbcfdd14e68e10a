"""The truth about each socket: `towpath explain`, and `run --require`, which fails where a socket would fall back."""

import errno
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from lib.command_line import mistake, refused, root_only
from lib.process import Skip, require, until
from lib.registry import test
from lib.world import HOST_ADDRESS, PEERS, PYTHON, TAP, find, free_port, plain_environment, run_towpath

HONEST = PEERS / "honest.py"


def explained(w, *arguments):
    done = w.command("explain", "--json", *arguments)
    require(done.returncode == 0, f"towpath explain {arguments}: {done.stderr}")
    return json.loads(done.stdout)["processes"]


def program(w, name, *arguments, **how):
    return w.start(name, [*PYTHON, HONEST, *arguments], accelerated=True, launcher=False, **how)


def rows(w, pid):
    of_it = [p for p in explained(w, pid) if p["pid"] == pid]
    return of_it[0]["sockets"] if of_it else []


def row(w, pid, **wanted):
    found = [r for r in rows(w, pid) if all(r.get(key) == value for key, value in wanted.items())]
    require(len(found) == 1, f"{len(found)} sockets with {wanted}: {json.dumps(rows(w, pid), indent=1)}")
    return found[0]


def waits(w, pid, limit, **wanted):
    wanted["limited_by"] = limit

    def is_there():
        return any(all(r.get(key) == value for key, value in wanted.items()) for r in rows(w, pid))

    until(is_there, 5, f"{wanted}: {json.dumps(rows(w, pid))[:2000]}")
    return row(w, pid, **wanted)


@mistake("explain")
def explain(w):
    """Each socket of two programs of one host, accelerated and not, by process and by address, as text and as JSON."""
    w.up()
    port, other = free_port(), free_port()
    kernel = socket.create_server(("127.0.0.1", other))
    server = program(w, "server", "serve", "127.0.0.1", port)
    server.until_prints("listens")
    client = program(w, "client", "connect", "127.0.0.1", port, other)
    client.until_prints("connected")
    server.until_prints("accepted")
    listener = row(w, server.pid, state="LISTEN")
    require(listener["accelerated"] and listener["limited_by"] == "connections", f"{listener}")
    # The server has sent 100 bytes that the client does not read, and reads nothing of a stream.
    made = waits(w, client.pid, "peer-reader")
    require(made["remote"] == f"127.0.0.1:{port}" and made["peer_pid"] == server.pid and made["in_flight"] > 100_000, f"{made}")
    taken = waits(w, server.pid, "reader", remote=made["local"])
    require(taken["recv_queue"] == made["in_flight"] and taken["peer_pid"] == client.pid, f"{taken}")
    fallen = row(w, client.pid, accelerated=False)
    require(fallen["reason"] == "no accelerated listener there" and "towpath run" in fallen["advice"], f"{fallen}")
    require(fallen["remote"] == f"127.0.0.1:{other}" and fallen["fd"] > 2, f"{fallen}")
    # A client of the kernel's reaches the same listener.
    plain = socket.create_connection(("127.0.0.1", port))
    until(lambda: any("peer is a kernel socket" in r.get("reason", "") for r in rows(w, server.pid)), 5, "the kernel client is shown")
    require({p["pid"] for p in explained(w)} == {server.pid, client.pid}, "without an argument all are shown")
    one = explained(w, f"{made['local']}-{made['remote']}")
    require([p["pid"] for p in one] == [client.pid] and len(one[0]["sockets"]) == 1, f"{one}")
    require({p["pid"] for p in explained(w, f":{port}")} == {server.pid, client.pid}, "by port")
    text = w.command("explain").stdout
    for words in ("no accelerated listener there", "limited by its program", "shared memory", f"({server.pid})", "-> ", "wait to be accepted"):
        require(words in text, f"no {words!r}: {text}")
    refused(w.command("explain", ":1"), "towpath explain PID")
    refused(w.command("explain", "no-such-program"), "no process is called no-such-program")
    require({p["pid"] for p in explained(w, Path(str(PYTHON[0])).name)} >= {server.pid, client.pid}, "by name")
    refused(w.command("explain", "2147483646"), "no process")
    plain.close()
    kernel.close()


@test("cli.explain_over_tap", kernel=False, own_service=True, namespace=True)
def explain_over_tap(w):
    """What limits a connection over the port: its program, the peer's window, its own program's reading."""
    w.up(*TAP)
    with socket.create_server((HOST_ADDRESS, 0)) as far:
        port = far.getsockname()[1]
        client = program(w, "client", "stream", HOST_ADDRESS, port)
        peer = far.accept()[0]
        found = waits(w, client.pid, "receiver-window", kind="flow")
        require(found["unsent"] > 0 and found["info"]["snd_wnd"] == found["peer_window"], f"{found}")
        text = w.command("explain", client.pid).stdout
        require("the peer's window" in text and "srtt" in text and "cwnd" in text, text)
        while peer.recv(1 << 20) != b"":
            pass
        client.until_prints("written")
        waits(w, client.pid, "closing", state="FIN-WAIT-2")
        peer.sendall(bytes(1000))
        waits(w, client.pid, "reader")
    # No route but the kernel's.
    listener = socket.create_server(("127.0.0.1", 0))
    lost = program(w, "lost", "stream", "127.0.0.1", listener.getsockname()[1])
    until(lambda: any(r.get("reason") == "no accelerated listener there" for r in rows(w, lost.pid)), 5, "the fallen one")


@mistake("explain_asked_for_the_kernel")
def explain_asked_for_the_kernel(w):
    """Sockets that asked for what only the kernel has: each says what."""
    w.up()
    listener = socket.create_server(("127.0.0.1", 0))
    asker = program(w, "asker", "ask", "127.0.0.1", listener.getsockname()[1])
    asker.until_prints("asked")
    reasons = sorted(r["reason"] for r in rows(w, asker.pid))
    wanted = ["MPTCP", "SO_TIMESTAMPING", "io_uring"]
    if "no MPTCP" in asker.output():
        wanted.remove("MPTCP")
    require(reasons == wanted, f"{reasons}")


@mistake("io_uring_denied")
def io_uring_denied(w):
    """With `--io-uring deny` a program that asks for a ring hears that there is none, and its sockets are accelerated."""
    w.up()
    port = free_port()
    server = program(w, "server", "serve", "127.0.0.1", port)
    server.until_prints("listens")
    command = [w.towpath, "run", "--io-uring", "deny", "--control", w.control, "--", *PYTHON, HONEST, "ringless", "127.0.0.1", port]
    client = w.start("ringless", command)
    client.until_prints("connected")
    require(row(w, client.pid, remote=f"127.0.0.1:{port}")["accelerated"], f"{rows(w, client.pid)}")
    require(explained(w, client.pid)[0]["settings"].get("TOWPATH_IO_URING") == "deny", "explain says what was set")
    refused(run_towpath([w.towpath, "run", "--io-uring", "perhaps", "--", "true"]), "kernel", "deny", lines=8)


LIBURING = """
#include <arpa/inet.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static struct io_uring ring;
static int done(void) {
    struct io_uring_cqe *cqe;
    int result = io_uring_submit_and_wait(&ring, 1) < 1 || io_uring_peek_cqe(&ring, &cqe) ? -1 : cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return result;
}
int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 0)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int l = socket(AF_INET, SOCK_STREAM, 0), listening, error, is_first = argc > 2, fd, n;
    char bytes[64];
    error = is_first ? io_uring_queue_init(8, &ring, 0) : 0;
    listening = bind(l, (struct sockaddr *)&at, sizeof at) || listen(l, 8);
    if (!is_first)
        error = io_uring_queue_init(8, &ring, 0);
    printf("listen %d ring %s\\n", listening, error ? strerror(-error) : "ok");
    fflush(stdout);
    while (!error && (io_uring_prep_accept(io_uring_get_sqe(&ring), l, NULL, NULL, 0), fd = done()) >= 0) {
        while (io_uring_prep_recv(io_uring_get_sqe(&ring), fd, bytes, sizeof bytes, 0), (n = done()) > 0)
            io_uring_prep_send(io_uring_get_sqe(&ring), fd, bytes, n, 0), done();
        io_uring_prep_close(io_uring_get_sqe(&ring), fd), done();
    }
    return !error;
}
"""


@mistake("explain_liburing")
def explain_liburing(w):
    """Who accepts by liburing, whose system calls nobody sees, is served by the kernel and is told so: accelerated clients get answers."""
    w.up()
    made = compiled(w, "served", LIBURING, "-luring")
    for order in ([], ["ring first"]):
        port = free_port()
        server = w.start(f"served-{len(order)}", [made, port, *order], accelerated=True)
        server.until_prints("listen 0 ring")
        if "ring ok" not in server.output():
            raise Skip("there are no rings here")
        for i in range(3):
            with socket.create_connection(("127.0.0.1", port)) as kernel:
                kernel.sendall(b"kernel")
                require(kernel.recv(64) == b"kernel", "an answer by the kernel")
            said = w.ask(f"ask-{len(order)}-{i}", [*PYTHON, HONEST, "answered", "127.0.0.1", port])
            require("answered" in said, said)
        # A ring that comes later is found by the service, when somebody connects.
        found = [r.get("reason") for r in rows(w, server.pid)]
        require(found == (["io_uring"] if order else [None]), f"{order}: {found}")


PAST_LIBC = """
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 0)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    long number = SYS_epoll_create1, set;
    __asm__ volatile("syscall" : "=a"(set) : "a"(number), "D"(0L) : "rcx", "r11", "memory");
    int fd = socket(AF_INET, SOCK_STREAM, 0), l = socket(AF_INET, SOCK_STREAM, 0);
    int connected = connect(fd, (struct sockaddr *)&to, sizeof to), listening = listen(l, 1);
    printf("set %d connect %d listen %d\\n", set > 2, connected, listening);
    fflush(stdout);
    return argc > 2 ? pause() : 0;
}
"""


@mistake("explain_epoll_past_libc")
def explain_epoll_past_libc(w):
    """A program that waits by system calls of its own has kernel sockets and is told why; or none, with --require."""
    if platform.machine() != "x86_64":
        raise Skip("the program is written for x86-64")
    w.up()
    port = free_port()
    server = program(w, "server", "serve", "127.0.0.1", port)
    server.until_prints("listens")
    made = compiled(w, "past", PAST_LIBC)
    client = w.start("past", [made, port, "stay"], accelerated=True)
    client.until_prints("set 1 connect 0 listen 0")
    found = rows(w, client.pid)
    reason = "epoll by system calls of the program's own"
    require(len(found) == 2 and all(r.get("reason") == reason and "rustix" in r["advice"] for r in found), f"{found}")
    done = required(w, made, port)
    require("set 1 connect -1 listen -1" in done.stdout, f"{done.stdout} {done.stderr}")
    require(f"connect to 127.0.0.1:{port} fails: {reason}" in done.stderr and f"listen fails: {reason}" in done.stderr, done.stderr)


@mistake("explain_programs_unseen")
def explain_programs_unseen(w):
    """Why a process has nothing accelerated: no library, static, Go, disabled, another service."""
    w.up()
    listener = socket.create_server(("127.0.0.1", 0))
    at = [HONEST, "stream", "127.0.0.1", listener.getsockname()[1]]
    python = sys.executable

    def said(process, *words):
        until(lambda: rows(w, process.pid), 5, "a kernel socket")
        one = explained(w, process.pid)[0]
        require(not one["attached"] and one["reason"] == one["sockets"][0]["reason"], f"{one}")
        text = w.command("explain", process.pid).stdout
        for word in words:
            require(word in text, f"no {word!r}: {text}")

    said(w.start("plain", [python, *at]), "without the library", "towpath run")
    disabled = {"TOWPATH_DISABLE": "1"}
    said(w.start("disabled", [python, *at], accelerated=True, launcher=False, environment=disabled), "TOWPATH_DISABLE")
    static = static_program(w)
    process = w.start("static", [static, "127.0.0.1", listener.getsockname()[1]], accelerated=True)
    said(process, "statically linked", "dynamically linked build")
    w.service.kill()
    w.service.wait()
    done = w.command("explain", process.pid)
    require(done.returncode == 0 and "statically linked" in done.stdout, f"without a service: {done.stdout} {done.stderr}")
    refused(w.command("explain"), str(w.control))


@mistake("explain_after_the_services_end")
def explain_after_the_services_end(w):
    """A connection of a service that is gone: that is the reason, whether no service answers or a new one does."""
    w.up()
    port, other = free_port(), free_port()
    kernel = socket.create_server(("127.0.0.1", other))
    server = program(w, "server", "serve", "127.0.0.1", port)
    server.until_prints("listens")
    client = program(w, "client", "connect", "127.0.0.1", port, other)
    client.until_prints("connected")
    idle = w.start("idle", [sys.executable, "-c", "import time; print('idle', flush=True); time.sleep(60)"], accelerated=True, launcher=False)
    idle.until_prints("idle")
    w.service.kill()
    w.service.wait()

    def told():
        for process, state, words in (
            (client, "LOST", "the service which had the connection is gone"),
            (client, "ESTABLISHED", "told to the service which is gone"),
            (server, "LOST", "the service which had the connection is gone"),
            (server, "LISTEN", "the service which had the listener is gone"),
        ):
            found = [r for r in rows(w, process.pid) if r["state"] == state]
            require(any(words in r["reason"] for r in found), f"{process.name} {state}: {rows(w, process.pid)}")
            text = w.command("explain", process.pid).stdout
            require("the service which had its connections is gone" in text and "not registered" not in text, text)

    told()
    require({p["pid"] for p in explained(w)} == {server.pid, client.pid}, "all that the service had")
    require("no service" in w.command("explain", idle.pid).stdout, "one that has opened nothing")
    refused(w.command("explain", f":{port}"), "is gone", str(server.pid), str(client.pid), lines=2)
    w.up()
    told()
    refused(w.command("explain", f":{port}"), "is gone", str(server.pid), str(client.pid), lines=2)
    kernel.close()


STATIC = """
#include <arpa/inet.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(argc > 2 ? atoi(argv[2]) : 1)};
    inet_pton(AF_INET, argc > 1 ? argv[1] : "127.0.0.1", &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (argc > 2 && connect(fd, (struct sockaddr *)&to, sizeof to) != 0) return 1;
    return argc > 2 ? pause() : 0;
}
"""


def static_program(w):
    return compiled(w, "static", STATIC, "-static")


def compiled(w, name, text, *flags):
    source, made = w.directory / f"{name}.c", w.directory / name
    source.write_text(text)
    subprocess.run([find("cc"), "-o", made, source, *flags], check=True)
    return made


@mistake("explain_of_another_user")
def explain_of_another_user(w):
    """Root sees the kernel sockets of a nobody's process; nobody does not see root's."""
    root_only()
    w.up()
    setpriv = [find("setpriv"), "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    w.control.chmod(0o666)
    w.directory.chmod(0o755)
    port = free_port()
    server = program(w, "server", "serve", "127.0.0.1", port)
    server.until_prints("listens")
    places = w.directory / "bin"
    places.mkdir()
    shutil.copy(w.towpath, places / "towpath")
    (places / "towpath").chmod(0o755)
    done = run_towpath([*setpriv, places / "towpath", "explain", "--control", w.control, server.pid])
    require("root" in done.stdout + done.stderr, f"{done.stdout} {done.stderr}")


REFUSED = """
import errno, select, socket, sys
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    blocking, other = socket.socket(family), socket.socket(family)
    assert blocking.connect_ex((host, int(sys.argv[1]))) == errno.ECONNREFUSED
    other.setblocking(False)
    assert other.connect_ex((host, int(sys.argv[1]))) in (errno.EINPROGRESS, errno.ECONNREFUSED)
    select.select([], [other], [], 5)
    assert other.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (errno.ECONNREFUSED, 0)
taken = socket.socket()
taken.setblocking(False)
taken.connect_ex(("127.0.0.1", int(sys.argv[2])))
select.select([], [taken], [], 5)
taken.getpeername()
"""


@mistake("refused_connects")
def refused_connects(w):
    """A connect that nobody answers is no socket left to the kernel; one that the kernel's listener answers is."""
    w.up()
    with socket.create_server(("127.0.0.1", 0)) as kernel:
        ports = [free_port(), kernel.getsockname()[1]]
        program = w.start("program", [sys.executable, "-c", REFUSED, *ports], accelerated=True, launcher=False)
        program.succeed(20)
        stat = w.stat()
    require((stat["refused"], stat["fallen_back"]) == (4, 1), f"{stat}")
    require(stat["by_reason"] == {"no accelerated listener there": 1}, f"{stat}")
    require("nobody listened there: 4" in w.command("stat").stdout, "for people, too")


def required(w, *command, **how):
    return run_towpath([w.towpath, "run", "--require", "--control", w.control, "--", *command], **how)


@mistake("require_sockets")
def require_sockets(w):
    """A socket that would fall back gets an errno, and one line says why; accelerated ones, UNIX and UDP sockets work."""
    w.up()
    kernel = socket.create_server(("127.0.0.1", 0))
    done = required(w, *PYTHON, HONEST, "required", "127.0.0.1", kernel.getsockname()[1], seconds=20)
    require(done.returncode == 0, f"{done.stdout} {done.stderr}")
    told = [line for line in done.stderr.splitlines() if "TOWPATH_REQUIRE" in line]
    for words in (
        f"connect to 127.0.0.1:{kernel.getsockname()[1]} fails: no accelerated listener there",
        "connect to 192.0.2.1:9 fails: no port leads there",
        f"connect to 127.0.0.1:{kernel.getsockname()[1]} fails: SO_TIMESTAMPING",
        "listen fails: SO_TIMESTAMPING",
        "io_uring_setup fails",
        "accept: a connection is reset",
    ):
        require(sum(words in line for line in told) == 1, f"not one line of {words!r}: {done.stderr}")
    stat = w.stat()
    require(stat["fallen_back"] == 0 and stat["accelerated"] >= 3, f"{stat}")
    kernel.settimeout(0.1)
    try:
        kernel.accept()
        raise AssertionError("a connection came to the kernel's listener")
    except TimeoutError:
        pass


@mistake("require_programs")
def require_programs(w):
    """Programs that the library cannot see are refused before they start; without --require one line says so, unless --quiet."""
    w.up()
    static = static_program(w)
    script = w.directory / "script"
    script.write_text(f"#!{static}\n")
    script.chmod(0o755)
    for command in ([static], [script]):
        done = required(w, *command)
        refused(done, "statically linked", str(command[0]))
        require(done.returncode == 126, f"status {done.returncode}")
        done = run_towpath([w.towpath, "run", "--control", w.control, "--", *command])
        require(done.returncode == 0 and done.stderr.count("\n") == 1, f"{done.returncode} {done.stderr}")
        require("statically linked" in done.stderr and "--quiet" in done.stderr, done.stderr)
        done = run_towpath([w.towpath, "run", "--quiet", "--control", w.control, "--", *command])
        require((done.returncode, done.stderr) == (0, ""), f"{done.returncode} {done.stderr}")
    if os.geteuid() == 0:
        own = w.directory / "set-user-id"
        shutil.copy(find("true"), own)
        os.chown(own, 65534, -1)
        own.chmod(0o4755)
        refused(required(w, own), "set-user-id")
        done = run_towpath([w.towpath, "run", "--control", w.control, "--", own])
        require(done.returncode == 0 and "set-user-id" in done.stderr and done.stderr.count("\n") == 1, done.stderr)
    require(required(w, "true").returncode == 0, "an ordinary program")
    require(required(w, "sh", "-c", "exit 7").returncode == 7, "its status")
    done = run_towpath([w.towpath, "run", "--require", "--control", w.control, "--", "true"], environment={"TOWPATH_DISABLE": "1"})
    refused(done, "TOWPATH_DISABLE")


@mistake("require_go", limit_s=200)
def require_go(w):
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise Skip("no Go")
    w.up()
    (w.directory / "main.go").write_text("package main\n\nfunc main() {}\n")
    environment = plain_environment() | {"HOME": str(w.directory), "GOCACHE": str(w.directory / "cache"), "GOTOOLCHAIN": "local"}
    for flags in ([], ["-ldflags=-s -w -buildid="]):
        subprocess.run([go, "build", *flags, "-o", "prog", "main.go"], cwd=w.directory, env=environment, check=True, capture_output=True)
        refused(required(w, w.directory / "prog"), "Go program")
        done = run_towpath([w.towpath, "run", "--control", w.control, "--", w.directory / "prog"])
        require(done.returncode == 0 and "Go program" in done.stderr and done.stderr.count("\n") == 1, done.stderr)


@mistake("require_service")
def require_service(w):
    """No service, and none to be had: an error before the program starts. A service that goes: an error of the socket."""
    nowhere = Path("/proc/towpath/control.sock")
    done = run_towpath([w.towpath, "run", "--require", "--control", nowhere, "--", "echo", "started"])
    refused(done, "/proc/towpath")
    require("started" not in done.stdout, "it started")
    w.up()
    process = w.start("orphan", [w.towpath, "run", "--require", "--control", w.control, "--", *PYTHON, HONEST, "orphan"], stdin=subprocess.PIPE)
    process.until_prints("ready")
    w.service.kill()
    w.service.wait()
    process.popen.stdin.write(b"\n")
    process.popen.stdin.flush()
    process.until_prints(f"connect {errno.ENETDOWN}")
    require(process.wait(5) == 0 and "no service answers" in process.errors(), process.errors())
