"""Services and programs in PID namespaces: numbers of processes mean something else there, or nothing."""

import json
import os
import platform
import socket
import subprocess

from lib.process import Skip, children, kill_all, require, until
from lib.registry import add, test
from lib.world import PEERS, PYTHON, TAP, find, free_port

PROGRAM = [*PYTHON, PEERS / "contained.py"]
HOST = ()
# As a container has it, with a /proc of its own; with the /proc of the namespace above; and with users of its own, too.
CONTAINER = ("--pid", "--fork", "--mount-proc")
BARE = ("--pid", "--fork")
OWN_USERS = ("--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
# A process can be found from another namespace.
HAS_INODES = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 9)
RECORDS, RECORD = 3000, 4000


def within(flags):
    """What stands before a command that is to run in new namespaces."""
    return [find("unshare"), *flags, "--"] if flags else []


def needs_namespaces(flags=CONTAINER):
    if os.geteuid() != 0:
        raise Skip("needs root, to make PID namespaces")
    if subprocess.run([*within(flags), "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise Skip(f"unshare {' '.join(flags)} is not allowed here")


def number_of(process):
    """The number that a program has here: what `unshare` started, or what was started at once."""
    if not process.command[0].endswith("/unshare"):
        return process.pid
    return until(lambda: children(process.pid), 60, f"{process.name} has started its program")[0]


def start(w, name, flags, role, port, stdin=None):
    return w.start(name, [*within(flags), *w.prefix(), *PROGRAM, role, port], stdin=stdin)


def ask(w, prefix, *arguments):
    """What `towpath` says where `prefix` leads."""
    done = subprocess.run(
        [*prefix, w.towpath, *arguments, "--control", w.control], capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"NO_COLOR": "1"}
    )
    return done.returncode, done.stdout, done.stderr


def prove_shown(w, server, client, port, is_known):
    """`ss` and `explain` name the right processes, or say that they do not know them."""
    rows = [row for row in w.sockets() if f":{port}" in row["local"] + row["remote"]]
    expected = {number_of(server), number_of(client)} if is_known else {None}
    require({row["pid"] for row in rows} == expected, f"expected {expected}: {rows}")
    require(len(rows) == 3 and all(row["process"].startswith("python") for row in rows), f"a listener and two ends: {rows}")
    require(len({row["application"] for row in rows}) == 2, f"two programs: {rows}")
    everything = w.report("explain")["processes"]
    require({p["pid"] for p in everything} == expected and len(everything) == 2, f"{everything}")
    require(all(p["attached"] and all(s["accelerated"] for s in p["sockets"]) for p in everything), f"{everything}")
    require(sorted(len(p["sockets"]) for p in everything) == [1, 2], f"each has its own: {everything}")
    require(w.command("explain").returncode == 0 and w.command("ss").returncode == 0, "as text, too")
    for process, sockets in ((server, 2), (client, 1)):
        done = w.command("explain", str(number_of(process)))
        require(done.returncode == 0, done.stderr)
        if is_known:
            require(f"{sockets} accelerated, 0 on the kernel" in done.stdout, done.stdout)


def combination(name, service, server, client):
    def run(w):
        for flags in {service, server, client} - {HOST}:
            needs_namespaces(flags)
        w.up(within=within(service))
        port = free_port()
        serving = start(w, "server", server, "serve", port)
        serving.until_prints("waits")
        connecting = start(w, "client", client, "connect", port)
        connecting.until_prints("talks")
        serving.until_prints("answered")
        # The listener, and both ends.
        w.prove_accelerated(3)
        prove_shown(w, serving, connecting, port, service == HOST or HAS_INODES)
        os.kill(number_of(connecting), 9)
        serving.until_prints("ended")
        another = start(w, "another", client, "connect", port)
        another.until_prints("talks")
        os.kill(number_of(serving), 9)
        another.until_prints("ended")
        w.prove_accelerated(5)
        until(lambda: not w.sockets(), 60, "nothing is left of them")

    add(f"pid_namespaces.{name}", run, kernel=False, own_service=True)


combination("programs_inside", HOST, CONTAINER, CONTAINER)
combination("one_program_inside", HOST, CONTAINER, HOST)
combination("programs_inside_with_the_hosts_proc", HOST, BARE, BARE)
combination("service_inside", CONTAINER, HOST, HOST)
combination("service_inside_with_the_hosts_proc", BARE, HOST, HOST)
combination("siblings", CONTAINER, CONTAINER, CONTAINER)
combination("users_of_their_own", HOST, OWN_USERS, OWN_USERS)
combination("service_with_users_of_its_own", OWN_USERS, HOST, CONTAINER)
combination("siblings_with_users_of_their_own", CONTAINER, OWN_USERS, CONTAINER)


@test("pid_namespaces.root_of_a_container_is_no_administrator", kernel=False, own_service=True)
def no_administrator(w):
    needs_namespaces()
    w.up()
    for flags in (CONTAINER, BARE):
        status, _, complaint = ask(w, within(flags), "down")
        require(status == 1 and "only the service's own user and root may end it" in complaint, f"{status}: {complaint}")
    # Nor is the host's root where the service is in a container.
    require(w.command("down").returncode == 0, "the service's own root may end it")
    w.service.succeed()
    w.up(within=within(CONTAINER))
    refused = w.command("down")
    require(refused.returncode == 1 and "only the service's own user" in refused.stderr, refused.stderr)
    again = w.command("up")
    require(again.returncode == 1 and "already up at" in again.stderr and "pid 0" not in again.stderr, again.stderr)


@test("pid_namespaces.an_agent_outside_is_heard", kernel=False, own_service=True, namespace=True)
def agent_outside(w):
    needs_namespaces()
    service, place = w.directory / "cc", w.directory / "agent"
    for flags in (HOST, CONTAINER):
        w.up(*TAP, "--cc-socket", service, "--cc-agents", place, within=within(flags))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
            agent.bind(str(place))
            agent.sendto(b"", str(service))

            def heard():
                known = json.loads(w.command("cc", "list", "--json").stdout)["agents"][0]
                return known if known["attached"] else None

            pid = until(heard, 60, "the service has heard the agent")["pid"]
            require(pid == (None if flags else os.getpid()), f"{flags}: {pid}")
            words = "there, in another PID namespace" if flags else f"pid {os.getpid()}"
            require(words in w.command("cc", "list").stdout, words)
        place.unlink()
        kill_all(children(w.service.pid) or [w.service.pid])
        w.service.wait()


@test("pid_namespaces.processes_that_are_not_visible_have_no_number", kernel=False, own_service=True)
def not_visible(w):
    needs_namespaces()
    w.up(within=within(CONTAINER))
    port = free_port()
    server = start(w, "server", CONTAINER, "serve", port)
    server.until_prints("waits")
    # In a container of its own `towpath` sees neither.
    for flags in (CONTAINER, BARE):
        status, text, _ = ask(w, within(flags), "ss")
        require(status == 0 and "(-)" in text, text)
        status, text, _ = ask(w, within(flags), "stat")
        require(status == 0, text)
        status, text, _ = ask(w, within(flags), "explain")
        require(status == 0 and "(-): 1 accelerated" in text and "another PID namespace" in text, text)
        status, _, complaint = ask(w, within(flags), "explain", "1")
        require(status == 0 or "no process" in complaint, complaint)


@test("pid_namespaces.a_listener_that_has_not_waited_is_looked_at_from_its_own_namespace", kernel=False, own_service=True)
def looked_at(w):
    needs_namespaces()
    w.up()
    port = free_port()
    # It holds its standard input open.
    server = start(w, "server", CONTAINER, "hold", port, stdin=subprocess.PIPE)
    server.until_prints("listens")
    join = [find("nsenter"), "--target", number_of(server), "--pid", "--mount", "--"]
    neighbour = w.start("neighbour", [*join, *w.prefix(), *PROGRAM, "connect", port])
    neighbour.until_prints("connected")
    w.prove_accelerated(2)
    stranger = start(w, "stranger", CONTAINER, "connect", port)
    stranger.until_prints("connected")
    reasons = w.stat()["by_reason"]
    require(any("may not see whether it has an io_uring" in reason for reason in reasons), f"{reasons}")


@test("pid_namespaces.a_child_of_another_namespace_shares_the_connection", kernel=False, own_service=True)
def shared(w):
    needs_namespaces()
    w.up()
    port = free_port()
    server = start(w, "server", HOST, "count", port)
    w.until_listening(server, port, True)
    sharing = start(w, "sharing", HOST, "share", port)
    require(sharing.succeed().split() == ["child", "0"], sharing.output())
    n = RECORDS * RECORD
    told = server.succeed().split("\n")[-2]
    require(told == f"c {n} p {n}", f"each has sent {n}: {told}")
