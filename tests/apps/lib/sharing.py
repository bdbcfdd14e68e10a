"""A connection that a parent and its child use at once: a child that writes while its parent waits in `recv`, and git, whose clients do so."""

import os
import subprocess
from pathlib import Path

from lib.process import Skip, require
from lib.programs import needs, write_random
from lib.registry import add
from lib.world import PEERS, PYTHON, WAYS, find, free_port

MIB = 1 << 20


# A search for a program has to look here first.
PATH = ":".join([*(f"/nowhere/{i}" for i in range(20)), os.environ["PATH"]])


def child_writes(w):
    """The child's bytes arrive whole and in order; its parent's thread gets the answer to them, and then the end. The connection is handed over
    once, and what it leaves is used again."""
    # The service frees the slots of closed connections after some 32 rounds, when it needs ports: they are used again.
    port, size, rounds = free_port(), MIB, 70
    write_random(w.directory / "file", size)
    program = [*PYTHON, PEERS / "shared.py"]
    server = w.server("server", [*program, "serve", w.way.listen, port, size, rounds], port)
    command = [*program, "connect", w.way.target, port, w.directory / "file", rounds]
    said = w.ask("client", command, 60, environment={"PATH": PATH})
    require(said == "done\n", said)
    server.succeed()
    w.prove_way(rounds)
    if w.way.carried and w.way.client and not w.kernel:
        stat = w.stat()
        client = next(row for row in stat["per_process"] if row["connected"] == rounds)
        require(client["requests"] < 10 * rounds, f"{client['requests']} messages to the service for {rounds} connections")
        require(stat["held_ports"] < 2 * rounds, f"{stat['held_ports']} ports are held for {rounds} connections")


# git

# Nothing of the user's or the machine's configuration.
GIT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
AUTHOR = ("-c", "user.name=A", "-c", "user.email=a@b")


def find_git_daemon():
    asked = subprocess.run([find("git"), "--exec-path"], capture_output=True, text=True, check=True)
    daemon = Path(asked.stdout.strip(), "git-daemon")
    if not daemon.exists():
        raise Skip("git-daemon is not installed")
    return daemon


class Git:
    """A git daemon with one empty repository, and what is done with it."""

    def __init__(self, w):
        self.w = w
        self.served = w.directory / "served"
        self.bare = self.served / "repository"
        daemon, port = find_git_daemon(), free_port()
        self.local(["git", "init", "-q", "--bare", "-b", "main", self.bare])
        command = [daemon, f"--listen={w.way.listen}", f"--port={port}", f"--base-path={self.served}"]
        w.server("git-daemon", [*command, "--export-all", "--enable=receive-pack", self.served], port, environment=GIT)
        host = f"[{w.way.target}]" if ":" in w.way.target else w.way.target
        self.url = f"git://{host}:{port}/repository"

    def local(self, command):
        """Runs a command beside Towpath; returns what it printed."""
        return self.w.start("git", command, environment=GIT).succeed(60).strip()

    def remote(self, name, *arguments):
        """Runs git as the way's client."""
        self.w.ask(name, ["git", *arguments], 60, environment=GIT)

    def commit(self, folder, number):
        """Commits some files that nothing can compress; returns the commit's id."""
        for i in range(4):
            write_random(folder / f"file{i}", MIB, 4 * number + i)
        self.local(["git", "-C", folder, "add", "."])
        self.local(["git", "-C", folder, *AUTHOR, "commit", "-q", "-m", f"commit {number}"])
        return self.head(folder)

    def head(self, folder):
        return self.local(["git", "-C", folder, "rev-parse", "refs/heads/main"])

    def check(self, folder, expected):
        """The repository is whole and at that commit."""
        require(self.head(folder) == expected, f"{folder.name} is not at {expected}")
        self.local(["git", "-C", folder, "fsck", "--full", "--strict"])


def git(w):
    """Pushes packs of 4 MiB, each time by a new connection, and clones what was pushed."""
    served, work, rounds = Git(w), w.directory / "work", 3
    served.local(["git", "init", "-q", "-b", "main", work])
    for i in range(rounds):
        expected = served.commit(work, i)
        served.remote(f"push{i}", "-C", work, "push", "-q", served.url, "main")
        served.check(served.bare, expected)
        copy = w.directory / f"copy{i}"
        served.remote(f"clone{i}", "clone", "-q", served.url, copy)
        served.check(copy, expected)
    w.prove_way(2 * rounds)


for way_name in ("pair", "relay", "tap_server", "tap_client"):
    add(f"{way_name}.child_writes", needs(child_writes, "cat"), WAYS[way_name], limit_s=150)
    add(f"{way_name}.git", needs(git, "git"), WAYS[way_name], limit_s=300)
