"""What a program may not claim: addresses of others, ports of others, listeners of a network namespace that it has left."""

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
    if os.geteuid() != 0:
        raise Skip("needs root, to make a network namespace")
    inside = """
        ip link set lo up
        echo 40000 $((40000 + $1 - 1)) > /proc/sys/net/ipv4/ip_local_port_range
        ports=$1 towpath=$2 control=$3
        shift 3
        "$towpath" up --control "$control" --detach >&2 || exit 1
        "$towpath" run --control "$control" -- "$@" many "$ports"
        "$towpath" down --control "$control" >&2
    """
    if w.kernel:
        return
    command = [find("unshare"), "--net", "sh", "-c", inside, "sh", PORTS, w.towpath, w.directory / "ns/control.sock", *PROGRAM]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=30, env=plain_environment(), check=False)
    require(done.stdout.strip() == f"connections {4 * PORTS}", f"{done.stdout} {done.stderr}")
