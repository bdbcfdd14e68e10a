"""What a program may not claim: addresses of others, ports of others, listeners of a network namespace that it has left."""

import json
import os
import subprocess

from lib.process import Skip, require
from lib.registry import test
from lib.world import PEERS, PYTHON, find, free_port, plain_environment

PROGRAM = [*PYTHON, PEERS / "claimed.py"]
PORTS = 10


def as_on_the_kernel(w, what):
    """Runs once on the kernel and once accelerated: both print the same."""
    kernel = w.start(f"kernel-{what}", [*PROGRAM, what]).succeed(20)
    ours = w.start(what, [*PROGRAM, what], accelerated=True).succeed(20)
    require(ours == kernel, f"on the kernel {kernel!r}, accelerated {ours!r}")


@test("claims.no_two_connections_have_the_same_ends", limit_s=40)
def same_ends(w):
    as_on_the_kernel(w, "same")
    w.prove_accelerated(4)


@test("claims.no_connection_comes_from_a_foreign_address", limit_s=40)
def foreign_source(w):
    as_on_the_kernel(w, "source")


@test("claims.a_program_that_leaves_its_namespace_reaches_nothing_there", limit_s=40)
def left_namespace(w):
    if os.geteuid() != 0:
        raise Skip("needs root, to change a network namespace")
    port = free_port()
    server = w.start("server", [*PROGRAM, "serve", port], accelerated=True)
    w.until_listening(server, port, True)
    told = w.start("leaver", [*PROGRAM, "leave", port], accelerated=True).succeed(20)
    require(told.split() in (["before", "reached", "after", "ENETUNREACH"], ["before", "reached", "skipped"]), told)
    # The last one is the kernel's.
    w.prove_accelerated(2, fallen_back=1)


@test("claims.a_local_port_serves_each_destination", limit_s=40)
def ports_per_destination(w):
    if w.kernel:
        return
    told, accelerated = with_few_ports(w, PORTS, "many", PORTS)
    require(told == f"connections {4 * PORTS}" and accelerated >= 4 * PORTS, f"{told}, {accelerated} accelerated")


def with_few_ports(w, ports, *what):
    """Runs the program in a network namespace with so many local ports and a service; returns what it prints and how many sockets were accelerated."""
    if os.geteuid() != 0:
        raise Skip("needs root, to make a network namespace")
    inside = """
        ip link set lo up
        echo 40000 $((40000 + $1 - 1)) > /proc/sys/net/ipv4/ip_local_port_range
        towpath=$2 control=$3 stat=$4
        shift 4
        "$towpath" up --control "$control" --detach >&2 || exit 1
        "$towpath" run --control "$control" -- "$@"
        "$towpath" stat --json --control "$control" > "$stat"
        "$towpath" down --control "$control" >&2
    """
    control, stat = w.directory / "ns/control.sock", w.directory / "stat.json"
    command = [find("unshare"), "--net", "sh", "-c", inside, "sh", ports, w.towpath, control, stat, *PROGRAM, *what]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=30, env=plain_environment(), check=False)
    require(done.stdout, done.stderr)
    return done.stdout.strip(), json.loads(stat.read_text())["accelerated"]


@test("claims.a_connectors_port_is_taken_at_its_address_only", limit_s=40)
def beside(w):
    as_on_the_kernel(w, "beside")
    # Three connections each with two ends, and those of the sockets beside them.
    w.prove_accelerated(2 * 6 + 2 * 2)


@test("claims.ports_are_free_after_resets", limit_s=40)
def after_resets(w):
    if w.kernel:
        return
    told, accelerated = with_few_ports(w, 51, "resets", 200)
    require(told == "rounds 200" and accelerated >= 3 * 2 * 200, f"{told}, {accelerated} accelerated")
