"""Profiles: named sets of the library's variables. Each variable does what it says (the safe profile's: corner bad_pointers)."""

import json
import sys

from lib.command_line import mistake, refused
from lib.honesty import explained, row, waits
from lib.process import require, until
from lib.registry import test
from lib.world import HOST_ADDRESS, PEERS, PYTHON, TAP, free_port, run_towpath

PROFILED = PEERS / "profiled.py"
TRIES = 4


def program(w, name, profile, *arguments):
    environment = {"TOWPATH_PROFILE": profile} if profile else {}
    return w.start(name, [*PYTHON, PROFILED, *arguments], accelerated=True, launcher=False, environment=environment)


@mistake("profile_names")
def profile_names(w):
    """`run --profile` sets the variable, refuses names that it does not know, and its help says what each profile sets."""
    w.up()
    base = [w.towpath, "run", "--control", w.control]
    done = run_towpath([*base, "--profile", "latency", "--", "env"])
    require("TOWPATH_PROFILE=latency\n" in done.stdout, done.stdout)
    refused(run_towpath([*base, "--profile", "fast", "--", "env"]), "latency", "throughput", "safe", lines=8)
    shown = run_towpath([w.towpath, "run", "--help"]).stdout
    for words in ("TOWPATH_SPIN_US=1000", "TOWPATH_QUICK_ACK=1", "TOWPATH_RING_MIN=262144", "TOWPATH_CHECK_POINTERS=1", "--require"):
        require(words in shown, f"no {words} in the help: {shown}")
    environment = {"LD_PRELOAD": str(w.preload), "TOWPATH_CONTROL": str(w.control), "TOWPATH_PROFILE": "fast"}
    done = run_towpath([sys.executable, "-c", "import socket; socket.socket(); socket.socket()"], environment=environment)
    require(done.returncode == 0 and done.stderr.count("no such profile") == 1, done.stderr)


def tried(what, measure, is_it):
    """What `measure` says when it is as it should be; tried again because other programs of the machine disturb it."""
    seen = [measure()]
    while not is_it(*seen[-1]) and len(seen) < TRIES:
        seen.append(measure())
    require(is_it(*seen[-1]), f"{what}: {seen}")
    return seen[-1]


def switches(w, profile, port):
    """Times that a client sleeps in 300 answers of 150 us each."""
    server = program(w, "server", profile, "answer", "127.0.0.1", port)
    w.until_listening(server, port, True)
    slept = int(program(w, "client", profile, "ask", "127.0.0.1", port).succeed(30))
    server.kill()
    server.wait()
    return slept


@mistake("profile_spinning", limit_s=120, timed=True)
def profile_spinning(w):
    """A client whose answers take 150 us sleeps for each in the throughput profile, and seldom in the latency profile (more often
    where the server has to wait for a processor)."""
    w.up()
    latency, throughput = tried(
        "sleeps (latency, throughput)",
        lambda: (switches(w, "latency", free_port()), switches(w, "throughput", free_port())),
        lambda latency, throughput: latency < 0.8 * throughput and throughput >= 290,
    )
    return f"{latency} and {throughput} sleeps for 300 answers"


def crowd_switches(w, profile):
    """Times that a server of many connections sleeps in 300 rounds, between which its client works for 150 us."""
    port = free_port()
    server = program(w, "server", profile, "answer_all", "127.0.0.1", port)
    w.until_listening(server, port, True)
    program(w, "client", profile, "ask_all", "127.0.0.1", port).succeed(30)
    return int(server.succeed(10))


@mistake("profile_spinning_crowd", limit_s=120, timed=True)
def profile_spinning_crowd(w):
    """Nor does a server of many connections in the latency profile, that otherwise sleeps as soon as nothing has come."""
    w.up()
    latency, plain = tried(
        "sleeps (latency, no profile)",
        lambda: (crowd_switches(w, "latency"), crowd_switches(w, None)),
        lambda latency, plain: latency < 0.5 * plain,
    )
    return f"{latency} and {plain} sleeps in 300 rounds"


@mistake("spinning_outside", limit_s=120, timed=True)
def spinning_outside(w):
    """Who spins for up to a second still hears at once of what only the kernel knows: a pipe, a connection of another program."""
    w.up()
    environment = {"TOWPATH_SPIN_US": "1000000"}
    command = [*PYTHON, PROFILED, "outside", "127.0.0.1", free_port()]
    late = json.loads(w.start("program", command, accelerated=True, launcher=False, environment=environment).succeed(60))
    require(len(late) == 4 and all(s < 0.25 for s in late.values()), f"seconds late: {late}")
    return ", ".join(f"{name} {s * 1e6:.0f} us late" for name, s in late.items())


@mistake("profile_rings")
def profile_rings(w):
    """A send of 100 bytes lends a ring of 4 KiB, and one of 256 KiB in the throughput profile; `explain` says both."""
    w.up()
    for profile, ring in ((None, 4096), ("throughput", 262_144)):
        port = free_port()
        server = program(w, "server", None, "hold", "127.0.0.1", port)
        w.until_listening(server, port, True)
        client = program(w, "client", profile, "write", "127.0.0.1", port)
        until(lambda: "written" in client.output(), 5, "written")
        found = waits(w, client.pid, "peer-reader")
        require((found["ring"], found["in_flight"]) == (ring, 100), f"{profile}: {found}")
        settings = explained(w, client.pid)[0]["settings"]
        require(settings.get("TOWPATH_RING_MIN") == (str(ring) if profile else None), f"{settings}")
        require(row(w, client.pid)["accelerated"], "one socket")


def acknowledgements(w, profile):
    """Segments that a kernel gets for 50 bytes, each of which is answered after 5 ms."""
    port = free_port()
    server = w.start("kernel", [*PYTHON, PROFILED, "trickle", HOST_ADDRESS, port])
    server.until_prints("listens")
    client = program(w, "client", profile, "take", HOST_ADDRESS, port)
    client.succeed(30)
    return int(server.succeed(10).split()[-1])


@test("cli.profile_quick_ack", kernel=False, own_service=True, namespace=True, limit_s=120)
def profile_quick_ack(w):
    """In the latency profile a connection over the port acknowledges a request at once, else with the answer."""
    w.up(*TAP)
    quick, plain = tried(
        "segments back (latency, no profile)",
        lambda: (acknowledgements(w, "latency"), acknowledgements(w, None)),
        lambda quick, plain: quick >= 90 and plain < 75,
    )
    return f"{quick} and {plain} segments back for 50"
