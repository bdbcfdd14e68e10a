"""Several processes that accept from one listener, made before they were forked: each is woken as on Linux, each gets its share, and their
client connects without asking the service."""

import json
import os
import platform
from pathlib import Path

from lib.process import Skip, require
from lib.programs import needs, write_random
from lib.registry import add, test
from lib.web import Nginx, start_haproxy, start_load, without_failure
from lib.world import PEERS, PYTHON, WAYS, free_port

# A client that connects to one address asks a few times, for its registration and for grants: 9 to 12 times for 300 connections.
QUESTIONS_MOST = 40

# The shortest configuration in which Apache serves a file. All settings of the MPM have their defaults.
APACHE = """
ServerName localhost
ServerRoot {directory}
PidFile {directory}/pid
Mutex posixsem
ErrorLog /dev/stderr
Listen {address}:{port}
Listen {address}:{second}
LoadModule mpm_{mpm}_module {modules}/mod_mpm_{mpm}.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule reqtimeout_module {modules}/mod_reqtimeout.so
{user}
DocumentRoot {directory}
<Directory {directory}>
    Require all granted
</Directory>
"""
MODULES = "/usr/lib/apache2/modules"


def ask_beside_silence(w, port, rounds=10):
    """In each round one connection is silent while another asks and is answered; then the silent one asks. How many connections there were."""
    w.ask("silent", [*PYTHON, PEERS / "silent.py", w.way.target, port, "/file", rounds], 50)
    return 2 * rounds


def apache(mpm):
    """Two listeners, so that its processes wait for both in a set; on Linux a deferred accept is its default. New connections come one after
    the other and many at once, some after its processes have begun to wait."""

    def run(w):
        directory = w.directory / "apache"
        directory.mkdir()
        sha256 = write_random(directory / "file", 20_000)
        port, second = free_port(), free_port()
        # Root's processes serve as another user, which must find the file.
        user = "User www-data\nGroup www-data" if os.geteuid() == 0 else ""
        for folder in (directory, w.directory, w.directory.parent):
            os.chmod(folder, os.stat(folder).st_mode | 0o011)
        (directory / "conf").write_text(
            APACHE.format(
                directory=directory, address=w.way.listen, port=port, second=second, mpm=mpm, modules=MODULES, user=user
            )
        )
        w.server("apache", ["apache2", "-DFOREGROUND", "-f", directory / "conf"], port)
        connections = 0
        for to, threads in ((port, 1), (second, 1), (port, 8), (second, 8)):
            seen = without_failure(start_load(w, to, sha256, threads, 1, 1), 30)
            connections += seen["connections"] + ask_beside_silence(w, to)
        w.prove_way(connections)
        return f"{connections} connections of one request"

    return run


def deferred(w):
    """nginx and HAProxy as their settings for TCP_DEFER_ACCEPT say: silent clients keep nobody from an answer, and get theirs."""
    one, two = Nginx(w, "one", deferred=True), Nginx(w, "two", workers=2, deferred=True)
    _, port = start_haproxy(w, one, two, " defer-accept")
    connections = sum(ask_beside_silence(w, to) for to in (one.port, two.port, port))
    w.prove_share(connections)
    return f"{connections} connections"


def require_direct(w, connections):
    """The one process that has made so many connections has not asked the service about each."""
    if w.kernel:
        return ""
    clients = [p for p in w.stat()["per_process"] if p["connected"] >= connections]
    require(len(clients) == 1, f"the client made {connections} connections: {clients}")
    asked = clients[0]["requests"]
    require(0 < asked <= QUESTIONS_MOST, f"{asked} questions to the service for {connections} connections")
    return f", {asked} questions"


def require_equal(counts, connections, workers=3):
    counts = sorted(counts)
    require(len(counts) == workers and sum(counts) == connections, f"of {workers} workers these answered: {counts}")
    require(counts[-1] <= 1.3 * counts[0], f"shares of {workers} workers: {counts}")


def may_see_syscalls():
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    is_bound = scope.exists() and scope.read_text().strip() != "0"
    return os.access("/proc/self/syscall", os.R_OK) and (os.geteuid() == 0 or not is_bound)


def forked(how):
    """Three children accept from their parent's listener. The client connects only while all three sleep, so their turns alone decide."""

    def run(w):
        if not may_see_syscalls() or platform.machine() != "x86_64":
            raise Skip("needs to read /proc/PID/syscall of other processes, and x86-64's numbers")
        port, connections = free_port(), 300
        server = w.server("forked", [*PYTHON, PEERS / "forked.py", "serve", how, w.way.listen, port], port)
        server.until_prints("workers")
        workers = server.output().split()[1:]
        command = [*PYTHON, PEERS / "forked.py", "ask", w.way.target, port, connections, *workers]
        answers = json.loads(w.ask("ask", command, 100))
        counts = sorted(answers.values())
        require(sum(counts) == connections, f"answers: {counts}")
        # Linux wakes of exclusive sets always the first that sleeps.
        if not (w.kernel and how == "set"):
            require_equal(counts, connections)
        w.prove_way(connections)
        return f"shares {counts}{require_direct(w, connections)}"

    return run


def shares(w):
    """One connection after the other to three idle workers that wait in exclusive sets."""
    server = Nginx(w, workers=3)
    command = [*PYTHON, PEERS / "serial_load.py", w.way.target, server.port, "/file", 300]
    counts = sorted(json.loads(w.ask("serial_load", command, 60)).values())
    require_equal(counts, 300)
    w.prove_way(300)
    return f"shares {counts}{require_direct(w, 300)}"


@test("accept.two_sets", limit_s=60)
def two_sets(w):
    """Two processes have a deferred listener in sets of their own. One waits there, the other elsewhere: the first one is woken."""
    command = [*PYTHON, PEERS / "two_sets.py", 4]
    said = w.start("two_sets", command, accelerated=True).succeed(50)
    require("4 answers" in said, said)
    w.prove_accelerated(8)


for name in ("worker", "event", "prefork"):
    add(f"pair.apache_{name}", needs(apache(name), "apache2"), WAYS["pair"], limit_s=60)
add("tap_server.apache_event", needs(apache("event"), "apache2"), WAYS["tap_server"], limit_s=60)
add("pair.deferred", needs(deferred, "nginx", "haproxy"), WAYS["pair"], limit_s=60)
for how in ("blocked", "set"):
    add(f"pair.forked_{how}", forked(how), WAYS["pair"], limit_s=120)
add("pair.nginx_shares", needs(shares, "nginx"), WAYS["pair"], limit_s=60, alone=True)
