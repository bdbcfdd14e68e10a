"""Many connections on one epoll set: none lost, none mixed up; and what they cost while nobody speaks."""

import re
import resource
import time

from lib.process import Skip, require, until
from lib.registry import add, test
from lib.world import WAYS, Way, free_port

IPV6 = Way("ipv6", True, True, "::1", "::1")
DUAL_STACK = Way("dual_stack", True, True, "::", "127.0.0.1")
OTHER_LOOPBACK = Way("127_0_0_2", True, True, "127.0.0.2", "127.0.0.2")
WILDCARD = Way("wildcard", True, True, "0.0.0.0", "127.0.0.3")
WILDCARD_IPV6 = Way("wildcard_ipv6", True, True, "::", "::1")
DESCRIPTORS_BESIDE = 100


def need_descriptors(connections):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < connections + DESCRIPTORS_BESIDE:
        raise Skip(f"{connections} connections need a limit of {connections + DESCRIPTORS_BESIDE} descriptors, it is {hard}")


def start_echo(w, mode="level"):
    port = free_port()
    server = w.server("echo_server", [w.program("echo_server"), w.way.listen, port, mode], port, launcher=False)
    return server, port


def load(w, port, connections, messages, size=64, seconds=60, name="echo_load"):
    said = w.ask(name, [w.program("echo_load"), w.way.target, port, connections, messages, size], seconds, launcher=False)
    return re.search(r"connections (\d+) messages (\d+) p50_us ([0-9.]+) p99_us ([0-9.]+)", said)


def echo(connections, messages, size=64, mode="level", seconds=60):
    def run(w):
        need_descriptors(connections)
        server, port = start_echo(w, mode)
        began = time.monotonic()
        result = load(w, port, connections, messages, size, seconds)
        require(result and int(result[2]) == connections * messages, f"echo_load counted {result}")
        require(server.running(), "the server ended")
        w.prove_way(connections)
        rate = connections * messages / (time.monotonic() - began)
        return f"{rate:.0f} messages/s with connecting, p50 {result[3]} us, p99 {result[4]} us"

    return run


for way in WAYS.values():
    add(f"{way.name}.epoll_1024", echo(1024, 20), way, limit_s=60)
    add(f"{way.name}.epoll_edge", echo(64, 200, 20_000, "edge"), way, limit_s=60)
for way in (IPV6, DUAL_STACK, OTHER_LOOPBACK, WILDCARD, WILDCARD_IPV6):
    add(f"{way.name}.epoll", echo(64, 100), way, limit_s=30)
for name in ("pair", "tap_server"):
    add(f"{name}.epoll_10000", echo(10_000, 100, 64, "level", 150), WAYS[name], limit_s=180)


def through_all_doors(w, doors):
    """Clients of every kind at the same listener at the same time."""
    server, port = start_echo(w)
    clients = [
        w.start(f"load-{target}-{accelerated}", [w.program("echo_load"), target, port, 50, 100, 64], accelerated, launcher=False)
        for target, accelerated in doors
    ]
    for client in clients:
        require("messages 5000 " in client.succeed(40), f"{client.name} printed {client.output()}")
    require(server.running(), "the server ended")


@test("pair.beside_kernel_clients", limit_s=60)
def beside_kernel_clients(w):
    through_all_doors(w, [("127.0.0.1", True), ("127.0.0.1", False), ("127.0.0.1", True)])
    w.prove_accelerated(200)


@test("tap_server.beside_all_others", way=WAYS["tap_server"], limit_s=60)
def beside_all_others(w):
    through_all_doors(w, [("127.0.0.1", True), ("127.0.0.1", False), (w.way.target, True), (w.way.target, False)])
    w.prove_accelerated(250)


@test("pair.connections_come_and_go", limit_s=120)
def come_and_go(w):
    """Slots, ports and descriptors come back: more connections in turn than any table holds at once."""
    server, port = start_echo(w)
    load(w, port, 500, 1, name="warm")
    before = (server.descriptors(), w.service_descriptors() if w.service else 0)
    for _ in range(20):
        load(w, port, 500, 1)

    # The server's last closes may still be under way.
    def is_over():
        after = (server.descriptors(), w.service_descriptors() if w.service else 0)
        return all(a <= b + 2 for a, b in zip(after, before))

    until(is_over, 30, f"no more descriptors of server and service than the {before} before, and 2")
    w.prove_way(10_000)


@test("pair.idle_1000", limit_s=60, kernel=False)
def idle(w):
    """A thousand open, silent connections cost nobody CPU."""
    server, port = start_echo(w)
    client = w.client("echo_load", [w.program("echo_load"), "127.0.0.1", port, 1000, 1, 64, 0, 30], launcher=False)
    client.until_prints("p99_us", 20)
    # What is still being tidied up, or spinning for a moment, may end.
    time.sleep(0.5)
    watched = {"service": w.service, "server": server, "client": client}
    began, before = time.monotonic(), {name: p.cpu_seconds() for name, p in watched.items()}
    time.sleep(4)
    lasted = time.monotonic() - began
    used = {name: (p.cpu_seconds() - before[name]) / lasted for name, p in watched.items()}
    shown = ", ".join(f"{name} {100 * part:.2f} %" for name, part in used.items())
    require(all(part < 0.01 for part in used.values()), f"of a core while idle: {shown}")
    w.prove_accelerated(1000)
    return shown


