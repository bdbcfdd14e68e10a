"""Processes of a test: started, watched, and none left behind."""

import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)
_ports_given = set()
# Only detects hangs: a busy machine takes its time.
HANG_S = 60
# Seconds between two looks that start a program each: each costs some milliseconds of a processor.
LOOK_S = 0.01


class Failure(Exception):
    """What a test found wrong."""


class Skip(Exception):
    """Why a test cannot run here."""


def require(condition, message):
    if not condition:
        raise Failure(message)


def until(condition, seconds, what, pause=0.001):
    """Waits for the condition to become true, first so long between two looks; returns what it returned."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def become_subreaper():
    """Whatever is started below this process and loses its parent becomes a child of this process."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def unshare(flags):
    if _libc.unshare(flags) != 0:
        raise Skip(f"unshare: {os.strerror(ctypes.get_errno())}")


def own_network():
    """Moves this process into a new network namespace that has a loopback device and nothing else."""
    unshare(CLONE_NEWNET)
    subprocess.run([shutil.which("ip") or "/sbin/ip", "link", "set", "lo", "up"], check=True)


def _end_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def children(root):
    """All live descendants of a process."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except (OSError, UnicodeDecodeError):
                continue
            if fields[0] != "Z":
                parents.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [root]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_descendants():
    """Ends every process below this one, and collects them."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return
        kill_all(children(os.getpid()))
        time.sleep(0.005)


def kill_all(pids):
    """Kills processes; some may be gone already, because their parent has waited for them."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def free_port():
    """A port outside the range from which the kernel gives local ports, free on all addresses now."""
    while True:
        port = random.randrange(15000, 32000)
        if port in _ports_given:
            continue
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            try:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                probe.bind(("::", port))
            except OSError:
                continue
        _ports_given.add(port)
        return port


class Process:
    """A started program; its outputs are files."""

    def __init__(self, name, command, environment, directory, stdin=None):
        self.name = name
        self.command = [str(part) for part in command]
        self.stdout_path = Path(directory, f"{name}.out")
        self.stderr_path = Path(directory, f"{name}.err")
        with open(self.stdout_path, "wb") as out, open(self.stderr_path, "wb") as err:
            self.popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=directory,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self.pid = self.popen.pid

    def output(self):
        return self.stdout_path.read_text(errors="replace")

    def lines(self):
        """What it has printed in whole lines: one may be half written."""
        return [line.rstrip("\n") for line in self.output().splitlines(keepends=True) if line.endswith("\n")]

    def errors(self):
        return self.stderr_path.read_text(errors="replace")

    def running(self):
        return self.popen.poll() is None

    def wait(self, seconds=HANG_S):
        """Waits for its end; returns the exit status (negative: the signal)."""
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} did not end within {seconds} s") from None

    def succeed(self, seconds=HANG_S):
        """Waits for its good end; returns what it printed."""
        status = self.wait(seconds)
        require(status == 0, f"{self.name} ended with status {status}")
        return self.output()

    def kill(self, number=signal.SIGKILL):
        if self.running():
            os.kill(self.pid, number)

    def until_prints(self, text, seconds=HANG_S):
        """Waits until either of its outputs contains the text."""

        def condition():
            if text in self.output() or text in self.errors():
                return True
            require(self.running(), f"{self.name} ended with status {self.popen.poll()} and never said {text!r}")
            return False

        until(condition, seconds, f"{self.name} says {text!r}")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident_bytes(self):
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def cpu_seconds(self):
        """CPU time of all its threads, exact to nanoseconds."""
        total = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            total += int(Path(f"/proc/{self.pid}/task/{task}/schedstat").read_text().split()[0])
        return total / 1e9

    def transcript(self, lines=12):
        """Its last lines, for a report of failure."""
        shown = [f"{self.name}: {' '.join(self.command)}", f"  status {self.popen.poll()}"]
        for label, text in (("out", self.output()), ("err", self.errors())):
            shown += [f"  {label}: {line[:300]}" for line in text.splitlines()[-lines:]]
        return shown
