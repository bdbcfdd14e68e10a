"""kill -9, of an application in the middle of a transfer and of the service under its applications."""

import os
import signal
import time

from lib.process import HANG_S, free_port, require, until
from lib.registry import add, test
from lib.world import PEERS, PYTHON, SERVICE_ADDRESS, TAP, WAYS

WARM, ROUNDS = 10, 200
# A survivor that is not told of a death finds it when the service ends what the dead left, not before this time. To be told takes some
# milliseconds: the quickest quarter of many rounds is below this limit however busy the machine is.
UNTOLD_NS = 500_000_000
# Of 50 rounds, each of which must leave nothing.
# The ring of 4 MiB between a core and the slow path is written from its beginning to its end before any of it is used again.
GROWTH_BYTES, GROWTH_DESCRIPTORS = (2 << 20) + (4 << 20), 5


class Survivor:
    """The end that lives: one process for all rounds. Its output is one line per event."""

    def __init__(self, w, mode, listens, port):
        self.w, self.mode, self.port = w, mode, port
        self.listener = None
        self.read = 0
        if listens:
            self.listener = w.start("survivor", self.command("listen"), accelerated=w.way.server, launcher=False)
            w.until_listening(self.listener, port, w.way.server)

    def command(self, role):
        host = self.w.way.listen if role == "listen" else self.w.way.target
        return [self.w.program("peer"), role, host, self.port, self.mode]

    def line(self, process, skip, what):
        def there():
            lines = process.lines()
            return lines[skip] if len(lines) > skip else None

        return until(there, HANG_S, what)


def let_input_come(survivor, victim, mode):
    """Waits until a victim that reads nothing has unread input: without it Linux sends FIN for the dead, not RST."""
    if mode == "mute":
        survivor.line(victim, 0, "the victim has unread input")
    time.sleep(0.005)


def victim_connects(w, survivor, mode):
    """One round: returns what the survivor saw, and after how many nanoseconds."""
    skip = len(survivor.listener.lines())
    command = [w.program("peer"), "connect", w.way.target, survivor.port, mode]
    victim = w.start("victim", command, accelerated=w.way.client, launcher=False)
    survivor.line(survivor.listener, skip, "the transfer is under way")
    let_input_come(survivor, victim, mode)
    killed = time.monotonic_ns()
    victim.kill()
    saw, at = survivor.line(survivor.listener, skip + 1, "the survivor sees the end").split()
    victim.wait()
    return saw, int(at) - killed


def victim_listens(w, survivor, mode):
    """The same with the roles changed; the port must be free again for the next round."""
    command = [w.program("peer"), "listen", w.way.listen, survivor.port, mode]
    victim = w.start("victim", command, accelerated=w.way.server, launcher=False)
    w.until_listening(victim, survivor.port, w.way.server, HANG_S)
    client = w.start("survivor", survivor.command("connect"), accelerated=w.way.client, launcher=False)
    survivor.line(client, 0, "the transfer is under way")
    let_input_come(survivor, victim, mode)
    killed = time.monotonic_ns()
    victim.kill()
    saw, at = survivor.line(client, 1, "the survivor sees the end").split()
    victim.wait()
    require(client.wait() == 0, f"the survivor ended with status {client.popen.returncode}")
    return saw, int(at) - killed


def forget(w):
    """Processes that have ended would fill the report."""
    w.processes = [p for p in w.processes if p.running()]


def size_of_service(w):
    if w.service is None:
        return 0, 0
    # What died is freed, but for what TCP owes to the peers.
    until(lambda: all(row["state"] == "LISTEN" or w.may_linger(row) for row in w.sockets()), HANG_S, "everything of the dead is freed")
    return w.service_descriptors(), w.service.resident_bytes()


def killed(victim_role, mode, expected):
    """A victim that sends, or one that has unread input, killed again and again."""

    def run(w):
        survivor = Survivor(w, "watch" if mode == "pump" else "feed", victim_role == "connect", free_port())
        one = victim_connects if victim_role == "connect" else victim_listens
        late = []
        for i in range(WARM + ROUNDS):
            if i == WARM:
                before = size_of_service(w)
            saw, after_ns = one(w, survivor, mode)
            require(saw == expected, f"round {i}: the survivor saw {saw}, not {expected}")
            late.append(after_ns)
            forget(w)
        after = size_of_service(w)
        require(after[0] <= before[0] + GROWTH_DESCRIPTORS, f"the service had {before[0]} descriptors before and {after[0]} after {ROUNDS} deaths")
        require(
            after[1] <= before[1] + GROWTH_BYTES,
            f"the service had {before[1] >> 10} KiB before and {after[1] >> 10} KiB after {ROUNDS} deaths",
        )
        late.sort()
        median, p95, worst = (late[int(len(late) * part)] / 1e6 for part in (0.5, 0.95, 0.999))
        shown = f"seen after {median:.1f} ms, 95 % within {p95:.1f} ms, worst {worst:.1f} ms"
        require(late[len(late) // 4] < UNTOLD_NS, f"{shown}: it is not told of the death")
        w.prove_way(WARM + ROUNDS)
        return shown

    return run


# Two hundred deaths, two or four times each way. Linux sends FIN for the dead, and RST where they had not read all their input.
for way_name in ("pair", "relay", "tap_server", "tap_client"):
    roles = {"tap_server": ("listen",), "tap_client": ("connect",)}.get(way_name, ("connect", "listen"))
    for role in roles:
        for victim_mode, seen in (("pump", "eof"), ("mute", "reset")):
            add(f"{way_name}.killed_{role}_{victim_mode}", killed(role, victim_mode, seen), WAYS[way_name], limit_s=180)


@test("pair.killed_with_200_connections", limit_s=120)
def killed_server_with_many(w):
    """A server with 200 connections is killed: every client sees it."""
    port = free_port()
    server = w.server("echo_server", [w.program("echo_server"), "127.0.0.1", port, "level"], port, launcher=False)
    command = [*PYTHON, PEERS / "orphan.py", "many", "127.0.0.1", port]
    client = w.client("clients", command, launcher=False)
    client.until_prints("waiting", HANG_S)
    server.kill()
    require("ended 200" in client.succeed(HANG_S), client.output())


def slow_children(w):
    """A child that does not run for 0.8 s answers the client for which it was forked, whatever its relatives do."""
    port, connections = free_port(), 12
    command = [*PYTHON, PEERS / "slow_child.py"]
    server = w.start("server", [*command, "serve", w.way.listen, port, connections], accelerated=w.way.server, launcher=False)
    w.until_listening(server, port, w.way.server)
    whole = int(w.ask("client", [*command, "ask", w.way.target, port, connections], launcher=False))
    require(whole == connections, f"{whole} of {connections} answers were whole")
    require(server.wait(HANG_S) == 0, f"the server ended with status {server.popen.returncode}")
    w.prove_way(connections)


for way_name in ("pair", "relay"):
    add(f"{way_name}.slow_children", slow_children, WAYS[way_name])


# The service.


def orphan_times(process, label):
    """Milliseconds after which each of its blocked calls returned, from lines `label what errno nanoseconds`."""
    found = {}
    for line in process.lines():
        kind, _, rest = line.partition(" ")
        if kind == label:
            what, error, at = rest.split()
            found[what] = (error, int(at))
    return found


BLOCKED = ("recv", "send", "poll", "epoll", "select")


def kill_service(w, port):
    """Kills the service under applications that wait in every way; returns their processes and the worst delay in ms."""
    server = w.server("server", [*PYTHON, PEERS / "orphan.py", "server", "127.0.0.1", port], port, launcher=False)
    client = w.client("orphan", [*PYTHON, PEERS / "orphan.py", "client", "127.0.0.1", port], launcher=False)
    client.until_prints("waiting", HANG_S)
    # Most of its threads sleep by now; one that makes its call later finds the same error.
    time.sleep(0.3)
    w.prove_accelerated(2 * len(BLOCKED))
    when = time.monotonic_ns()
    w.service.kill()
    w.service.wait()
    until(lambda: len(orphan_times(client, "blocked")) == len(BLOCKED), HANG_S, "every blocked call of the client returns")
    seen = orphan_times(client, "blocked")
    for what, (error, _) in seen.items():
        require(error in ("ECONNRESET", "EPIPE"), f"{what} ended with {error}")
    return server, client, max(at - when for _, at in seen.values()) / 1e6


@test("service.killed", limit_s=240, kernel=False, own_service=True)
def service_killed(w):
    """Blocked calls fail; the same processes go on with kernel sockets, and with Towpath when it is back."""
    w.up()
    port = free_port()
    server, client, worst = kill_service(w, port)
    # The same client makes a new connection to the same server, and both a new listener: on the kernel.
    began = time.monotonic()
    os.kill(client.pid, signal.SIGUSR1)
    client.until_prints("fresh 1", HANG_S)
    fresh = time.monotonic() - began
    for process in (server, client):
        require(process.running(), f"{process.name} ended with status {process.popen.poll()}")
    w.up()
    # After a vain attempt a process asks for the service again 250 ms later at the earliest.
    time.sleep(0.5)
    os.kill(client.pid, signal.SIGUSR1)
    client.until_prints("fresh 2", HANG_S)
    # The old listener stays the kernel's: one connection to it.
    w.prove_accelerated(2, fallen_back=1)
    return f"the last of {len(BLOCKED)} blocked calls returned after {worst:.1f} ms, new sockets after {1000 * fresh:.0f} ms"


@test("service.stopped", limit_s=240, kernel=False, own_service=True)
def service_stopped(w):
    """`towpath down` under load: applications see resets, nobody hangs or crashes, nothing is left."""
    w.up()
    port = free_port()
    server = w.server("echo_server", [w.program("echo_server"), "127.0.0.1", port, "level"], port, launcher=False)
    client = w.client("echo_load", [w.program("echo_load"), "127.0.0.1", port, 50, 1, 64, 20], launcher=False)
    client.until_prints("open", HANG_S)
    # Some messages may flow; an end before the first one is the same to the client.
    time.sleep(0.3)
    done = w.command("down", seconds=HANG_S)
    require(done.returncode == 0, f"towpath down: {done.stderr}")
    require(w.service.wait(HANG_S) == 0, f"the service ended with status {w.service.popen.returncode}")
    require(not w.control.exists(), "the control socket is left behind")
    require(client.wait(HANG_S) == 1, f"the client ended with status {client.popen.returncode}")
    require("Connection reset" in client.errors() or "Broken pipe" in client.errors(), client.errors())
    require(server.running(), f"the server ended with status {server.popen.poll()}")


@test("service.killed_under_transfer", limit_s=180, kernel=False, own_service=True)
def service_killed_under_transfer(w):
    """Ten times: kill -9 of the service while bytes flow; neither end hangs or dies of a signal."""
    for _ in range(10):
        w.up()
        port = free_port()
        command = [w.program("peer"), "listen", "127.0.0.1", port, "watch"]
        listener = w.server("listener", command, port, launcher=False)
        client = w.client("client", [w.program("peer"), "connect", "127.0.0.1", port, "pump"], launcher=False)
        listener.until_prints("ready", HANG_S)
        w.service.kill()
        w.service.wait()
        require(client.wait(HANG_S) == 0, f"the client ended with status {client.popen.returncode}")
        listener.until_prints("reset", HANG_S)
        require(listener.running(), f"the server ended with status {listener.popen.poll()}")
        listener.kill()
        forget(w)


@test("tap_server.heirs", kernel=False, own_service=True, namespace=True, limit_s=150)
def heirs(w):
    """What the children of a forking server lend in its memory comes back, however they end: five times as much as it has."""
    w.up(*TAP, "--region-mib", "4")
    port, connections = free_port(), 320
    command = [*PYTHON, PEERS / "heirs.py"]
    server = w.start("server", [*command, "serve", SERVICE_ADDRESS, port], accelerated=True, launcher=False)
    w.until_listening(server, port, True)
    client = w.start("client", [*command, "ask", SERVICE_ADDRESS, port, connections], accelerated=False)
    whole = int(client.succeed(HANG_S))
    require(whole == connections, f"{whole} of {connections} answers were whole")
    w.prove_accelerated(connections)
