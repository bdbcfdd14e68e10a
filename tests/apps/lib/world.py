"""What a test runs in: the kernel alone, or a Towpath service; and the proof of which of the two carried the bytes."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lib.process import HANG_S, LOOK_S, Failure, Process, Skip, children, free_port, kill_all, require, until

HERE = Path(__file__).resolve().parent.parent
PEERS = HERE / "peers"
# Runs a peer that needs only Python's own library. Reading what is installed beside it takes longer than many a test.
PYTHON = (sys.executable, "-S")
LISTEN = "0A"

SERVICE_ADDRESS = "10.77.0.2"
HOST_ADDRESS = "10.77.0.1"
TAP = (
    "--port", "tap", "--port-name", "tp0", "--address", f"{SERVICE_ADDRESS}/24", "--host-address", f"{HOST_ADDRESS}/24",
)  # fmt: skip


SERVICE_ADDRESS_V6 = "fd00:77::2"
HOST_ADDRESS_V6 = "fd00:77::1"
TAP_V6 = (
    "--port", "tap", "--port-name", "tp0", "--address", f"{SERVICE_ADDRESS_V6}/64", "--host-address", f"{HOST_ADDRESS_V6}/64",
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """Which end is accelerated, and by which address they meet."""

    name: str
    server: bool
    client: bool
    listen: str = "127.0.0.1"
    target: str = "127.0.0.1"
    up: tuple = ()
    # The bytes stay out of the kernel's TCP on at least one end.
    carried: bool = True

    @property
    def tap(self):
        return "tap" in self.up


WAYS = {
    way.name: way
    for way in (
        Way("pair", True, True),
        Way("relay", True, True, up=("--sharing", "never")),
        Way("kernel_client", True, False, carried=False),
        Way("kernel_server", False, True, carried=False),
        Way("own_address", True, True, "0.0.0.0", SERVICE_ADDRESS, TAP),
        Way("tap_server", True, False, "0.0.0.0", SERVICE_ADDRESS, TAP),
        Way("tap_client", False, True, HOST_ADDRESS, HOST_ADDRESS, TAP),
        Way("tap6_server", True, False, "::", SERVICE_ADDRESS_V6, TAP_V6),
        Way("tap6_client", False, True, HOST_ADDRESS_V6, HOST_ADDRESS_V6, TAP_V6),
    )
}
PAIR = WAYS["pair"]


def find(program):
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")
    if path is None:
        raise Skip(f"{program} is not installed")
    return path


def plain_environment():
    """This process's environment without anything of Towpath."""
    kept = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONDONTWRITEBYTECODE") and not k.startswith("TOWPATH_")}
    # Compiled modules go where the runner says, never beside their sources.
    return kept if "PYTHONPYCACHEPREFIX" in kept else kept | {"PYTHONDONTWRITEBYTECODE": "1"}


class World:
    """One test's directory, programs and service."""

    def __init__(self, options, directory, way=PAIR):
        self.options = options
        self.kernel = options.kernel
        self.directory = Path(directory)
        self.way = way
        self.processes = []
        self.service = None
        self.control = self.directory / "control.sock"
        # Variables for those who ask the service.
        self.asking = {}
        self.towpath = options.bin_dir / "towpath"
        self.preload = options.bin_dir / "libtowpath_preload.so"

    # Starting programs.

    def start(self, name, command, accelerated=False, launcher=True, stdin=None, environment=None):
        """Starts a program, through Towpath if `accelerated` says so and this is not the kernel's turn."""
        variables = plain_environment() | (environment or {})
        command = [find(str(command[0])), *command[1:]]
        if accelerated and not self.kernel:
            if launcher:
                command = [*self.prefix(), *command]
            else:
                variables |= {"LD_PRELOAD": str(self.preload), "TOWPATH_CONTROL": str(self.control)}
        if any(p.name == name for p in self.processes):
            name = f"{name}-{len(self.processes)}"
        process = Process(name, command, variables, self.directory, stdin)
        self.processes.append(process)
        return process

    def prefix(self, *flags):
        """What stands before a command that is to go through Towpath."""
        return [self.towpath, "run", "--control", self.control, *flags, "--"]

    def server(self, name, command, port, seconds=HANG_S, **how):
        """Starts the way's server and waits until it listens."""
        process = self.start(name, command, accelerated=self.way.server, **how)
        self.until_listening(process, port, self.way.server, seconds)
        return process

    def client(self, name, command, **how):
        """Starts the way's client."""
        return self.start(name, command, accelerated=self.way.client, **how)

    def ask(self, name, command, seconds=HANG_S, **how):
        """Runs the way's client to its good end; returns what it printed."""
        return self.client(name, command, **how).succeed(seconds)

    def program(self, name):
        """Path of a program of tests/apps/c."""
        return self.options.programs / name

    def until_listening(self, process, port, accelerated=False, seconds=HANG_S):
        """The kernel socket listens, and the service knows of it where it must."""

        def listening():
            require(process.running(), f"{process.name} ended with status {process.popen.poll()}")
            if accelerated and self.service is not None:
                return any(is_listener(row, port) for row in self.sockets())
            return kernel_listens(process.pid, port)

        until(listening, seconds, f"{process.name} listens at port {port}", LOOK_S)

    # The service.

    def up(self, *flags, within=()):
        """Starts the service and waits until it answers. `within`: what stands before its command."""
        if self.kernel:
            return
        self.service = Process(
            f"service{len(self.processes)}",
            [*within, self.towpath, "up", "--control", self.control, *self.way.up, *flags],
            plain_environment(),
            self.directory,
        )
        self.processes.append(self.service)
        self.until_up()

    def until_up(self, seconds=HANG_S):
        def answers():
            require(self.service.running(), f"towpath up ended with status {self.service.popen.poll()}")
            return self.command("stat", "--json").returncode == 0

        until(answers, seconds, "the service answers", LOOK_S)

    def command(self, *arguments, seconds=HANG_S):
        """Runs `towpath ARGUMENTS --control ...`, with lines that are not wrapped; returns the completed process."""
        environment = {"COLUMNS": "1000", **(self.asking or {})}
        return run_towpath([self.towpath, *arguments, "--control", self.control], seconds, environment)

    def report(self, what):
        done = self.command(what, "--json")
        require(done.returncode == 0, f"towpath {what} --json: status {done.returncode}: {done.stderr.strip()}")
        try:
            return json.loads(done.stdout)
        except ValueError as problem:
            raise Failure(f"towpath {what} --json printed no JSON: {problem}: {done.stdout[:200]!r}") from None

    def sockets(self):
        """Rows of `towpath ss --json`."""
        report = self.report("ss")
        return report if isinstance(report, list) else report["sockets"]

    def stat(self):
        return self.report("stat")

    def service_descriptors(self):
        """The service's descriptors without those that hold ports, which stay for later connections."""
        return self.service.descriptors() - self.stat()["held_ports"]

    # Proof.

    def prove_accelerated(self, connections, fallen_back=0):
        """At least so many sockets went through Towpath, and at most so many that could have did not."""
        if self.kernel:
            return
        stat = self.stat()
        require(
            stat["accelerated"] >= connections and stat["fallen_back"] <= fallen_back,
            f"expected at least {connections} sockets accelerated and at most {fallen_back} fallen back: {json.dumps(stat)[:1500]}",
        )

    def prove_way(self, connections, fallen_back=0):
        """The programs' connections went the way that this test is about; a pair counts at both of its ends."""
        if self.way.carried:
            self.prove_accelerated(connections * (self.way.server + self.way.client), fallen_back)

    def prove_share(self, connections):
        """As `prove_way`, for programs some of whose sockets meet nobody: of twenty at most one is the kernel's."""
        if self.way.carried and not self.kernel:
            self.prove_way(connections, self.stat()["accelerated"] // 19)

    def prove_clean(self, seconds=HANG_S):
        """When all applications are gone the service lives, and no socket is left but those that TCP keeps a while."""
        if self.kernel or self.service is None:
            return
        # Workers too, which their master's death does not end.
        kill_all(pid for pid in children(os.getpid()) if pid != self.service.pid)
        for process in self.processes:
            if process is not self.service:
                process.wait()
        require(self.service.running(), f"the service ended with status {self.service.popen.poll()}")
        left = []

        def clean():
            left[:] = [row for row in self.sockets() if not self.may_linger(row)]
            return not left

        try:
            until(clean, seconds, "all sockets gone")
        except Failure:
            raise Failure(f"all applications are gone, sockets are left after {seconds} s: {left[:5]}") from None

    def may_linger(self, row):
        """True for a connection that outlives its application: only one that leaves this host does."""
        return self.way.tap and is_lingering(row)

    def transcript(self):
        lines = []
        for process in self.processes:
            if process is self.service or process.popen.poll() != 0:
                lines += process.transcript()
        if self.service is not None and self.service.running():
            # What was dropped and what was asked in vain is in the counters only.
            try:
                traffic = self.report("stat")["traffic"]
            except Failure as problem:
                # It hangs, perhaps: what the test failed of is to be told all the same.
                traffic = problem
            lines.append(f"  traffic: {traffic}")
        return lines


def run_towpath(command, seconds=HANG_S, environment=None):
    try:
        return subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=plain_environment() | (environment or {}),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"{' '.join(str(part) for part in command)}: no end within {seconds} s") from None


def is_listener(row, port):
    return row["state"].upper().startswith("LISTEN") and row["local"].endswith(f":{port}")


def is_lingering(row):
    """States in which a connection outlives its application."""
    return row["state"].upper().replace("-", "_") in {"TIME_WAIT", "FIN_WAIT", "FIN_WAIT_1", "FIN_WAIT_2", "FIN_WAIT1", "FIN_WAIT2", "CLOSING", "LAST_ACK"}


def kernel_listens(pid, port):
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


__all__ = ["HERE", "HOST_ADDRESS", "PAIR", "PEERS", "PYTHON", "SERVICE_ADDRESS", "TAP", "WAYS", "Way", "World", "find", "free_port"]
