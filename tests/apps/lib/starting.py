"""Starting: a service that fails says so to whoever starts it, a program that cannot be run has the status that shells give it."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from lib.command_line import NOBODY, as_nobody, ip, mistake, own_place, refused, up
from lib.process import Skip, children, require
from lib.world import SERVICE_ADDRESS, TAP, find, plain_environment, run_towpath

PACKET = ("--address", f"{SERVICE_ADDRESS}/24")


def error_of(done, what):
    """The line that says why."""
    require(done.returncode == 1, f"{what}: status {done.returncode}: {done.stderr}")
    lines = [line for line in done.stderr.splitlines() if line.startswith("towpath: ")]
    require(len(lines) == 1, f"{what}: {done.stderr}")
    return lines[0]


def fails_alike(w, *flags, words, prefix=(), control=None):
    """In the foreground and with --detach: the same error, the same status, and nothing is left."""
    control = control or w.control
    before = children(os.getpid())
    said = error_of(up(w, *flags, prefix=prefix, control=control), f"up {flags}")
    for word in words:
        require(word in said, f"{flags}: it does not say {word!r}: {said}")
    detached = error_of(up(w, *flags, "--detach", prefix=prefix, control=control), f"up --detach {flags}")
    require(detached == said, f"{flags}: --detach says {detached!r} instead of {said!r}")
    require(not control.exists() and children(os.getpid()) == before, f"{flags}: something is left")


@mistake("detach_tells_failures", namespace=True, limit_s=60)
def detach_tells_failures(w):
    """Whatever keeps the port from working: `up --detach` fails with the words of the foreground."""
    ip("link", "add", "tp1", "type", "veth", "peer", "name", "tp2")
    ip("address", "add", "10.78.0.9/24", "dev", "tp1")
    ip("link", "set", "tp1", "up")
    ip("link", "add", "narrow", "mtu", "1400", "type", "veth", "peer", "name", "narrower")
    ip("link", "set", "narrow", "up")
    for flags, words in (
        (("--port", "packet:nosuch", *PACKET), ("--port packet:nosuch", "no interface")),
        (("--port", "packet:tp2", "--address", "10.78.0.2/24"), ("--port packet:tp2", "is down")),
        (("--port", "packet:lo", *PACKET), ("--port packet:lo", "Ethernet")),
        (("--port", "packet:narrow", "--mtu", "1500", *PACKET), ("--mtu",)),
        (("--port", "packet:tp1", "--address", "10.78.0.9/24"), ("--address", "10.78.0.9")),
        (("--port", "packet:tp1", "--netns", "no-such-namespace", *PACKET), ("--netns", "no-such-namespace")),
        (("--port", "tap", "--netns", "/dev/null", *PACKET), ("--netns", "/dev/null")),
        (("--port", "tap:tp1", *PACKET), ("--port tap", "tp1", "in use")),
        (("--port", "tap:a/b", *PACKET), ("--port tap", "a/b")),
        (("--port", "tap", "--mtu", "100", *PACKET), ("--mtu", "TOWPATH_MTU")),
        (("--port", "tap", "--mac", "01:00:00:00:00:01", *PACKET), ("--mac",)),
        (("--config", w.directory / "nothing.toml"), ("nothing.toml",)),
    ):
        fails_alike(w, *flags, words=words)


@mistake("detach_tells_occupied", namespace=True, limit_s=60)
def detach_tells_occupied(w):
    """What another service has: its interface, and its control socket."""
    w.up(*TAP)
    fails_alike(w, *TAP, words=("tp0", "in use"), control=w.directory / "second.sock")
    for flags in ((), ("--detach",)):
        refused(up(w, *flags), "already", str(w.service.pid))
    require(w.service.running() and w.command("stat").returncode == 0, "the first service is disturbed")


@mistake("detach_tells_missing_rights")
def detach_tells_missing_rights(w):
    prefix = as_nobody(w)
    w.directory.chmod(0o755)
    place = w.directory / "nobody"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    control = place / "control.sock"
    fails_alike(w, *TAP, words=("no permission",), prefix=prefix, control=control)
    fails_alike(w, "--port", "packet:lo", *PACKET, words=("no permission",), prefix=prefix, control=control)
    closed = w.directory / "closed"
    closed.mkdir()
    for flags in ((), ("--detach",)):
        refused(up(w, *flags, prefix=prefix, control=closed / "control.sock"), str(closed), "--control")
        refused(up(w, *flags, prefix=prefix, control=closed / "below" / "control.sock"), str(closed), "--control")


@mistake("detach_with_relative_paths")
def detach_with_relative_paths(w):
    """Paths are meant from where the command is given, detached or not, and the service leaves that folder."""
    (w.directory / "here.toml").write_text("region_mib = 19\n")
    command = [w.towpath, "up", "--detach", "--control", "here.sock", "--config", "here.toml"]
    done = subprocess.run(command, cwd=w.directory, env=plain_environment(), capture_output=True, text=True, timeout=20, check=False)
    require(done.returncode == 0, f"{done.stderr}")
    w.control = w.directory / "here.sock"
    require(w.command("stat").returncode == 0, "it is not there")
    require("region_mib = 19" in (w.directory / "here.log").read_text(), "the file is not read")
    (pid,) = children(os.getpid())
    require(os.readlink(f"/proc/{pid}/cwd") == "/", "it keeps the folder")
    done = w.command("down")
    require(done.returncode == 0 and not w.control.exists(), done.stderr)


class Manager:
    """What systemd does for `Type=notify`."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.environment = {"NOTIFY_SOCKET": str(path)}

    def heard(self, seconds=0):
        """All that was said, waiting so long for the first word."""
        said = b""
        self.socket.settimeout(seconds or None)
        if not seconds:
            self.socket.setblocking(False)
        try:
            while True:
                said += self.socket.recv(4096) + b"\n"
                self.socket.setblocking(False)
        except (BlockingIOError, TimeoutError):
            return said.decode().splitlines()


@mistake("ready_is_said_of_a_port_that_works", namespace=True)
def ready_is_said_of_a_port_that_works(w):
    """READY=1 comes when the port is open and the socket accepts, and never from a service that fails or that `run` starts."""
    manager = Manager(w.directory / "notify")
    base = [w.towpath, "up", "--control", w.control]
    refused(run_towpath([*base, "--port", "packet:nosuch", *PACKET], environment=manager.environment), "nosuch")
    require(manager.heard() == [], "a service that failed was ready")
    done = run_towpath([*base, "--detach"], environment=manager.environment)
    require(done.returncode == 0 and manager.heard() == [], f"a detached service is not the manager's: {done.stderr}")
    require(w.command("down").returncode == 0, "down failed")
    w.service = w.start("service", [*base, *TAP], environment=manager.environment)
    said = manager.heard(10)
    require("READY=1" in said and any(line.startswith("STATUS=port: tap tp0") for line in said), f"{said}")
    require(w.command("stat").returncode == 0, "it was not ready")
    subprocess.run([find("ip"), "link", "show", "tp0"], check=True, capture_output=True)
    require(w.command("down").returncode == 0 and w.service.wait(5) == 0, "down failed")
    require(manager.heard(5) == ["STOPPING=1"], "it says when it stops")


@mistake("run_status_without_a_program")
def run_status_without_a_program(w):
    """As env, timeout and shells: 127 for a program that is not there, 126 for one that cannot be run; and no service is started for it."""
    base, environment = own_place(w)
    file, folder = w.directory / "file", w.directory / "folder"
    file.write_text("#!/bin/sh\n")
    folder.mkdir()
    for command, status in (
        ("no-such-program-anywhere", 127),
        (w.directory / "nothing", 127),
        (file / "below", 127),
        (file, 126),
        (folder, 126),
    ):
        for flags in ((), ("--quiet",), ("--require",)):
            done = run_towpath([*base, *flags, "--", command], environment=environment)
            require(done.returncode == status, f"{command}: status {done.returncode}: {done.stderr}")
            refused(done, str(command))
    require(not w.control.parent.exists(), "a service was started for nothing")
    # What the kernel finds out only when it starts the program.
    broken = w.directory / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    done = run_towpath([*base, "--", broken], environment=environment)
    require(done.returncode == 127, f"status {done.returncode}: {done.stderr}")
    refused(done, str(broken))
    require(w.command("down").returncode == 0, "the private service does not leave")


@mistake("run_where_no_service_is")
def run_where_no_service_is(w):
    """A place that is named must have a service: nothing is made there, and one line says what to do."""
    place = w.directory / "not" / "there" / "control.sock"
    for flags, environment, word in (
        (["--control", place], {}, "--control"),
        ([], {"TOWPATH_CONTROL": str(place)}, "TOWPATH_CONTROL"),
        (["--require", "--control", place], {}, "--control"),
    ):
        done = run_towpath([w.towpath, "run", *flags, "--", "echo", "started"], environment=environment)
        refused(done, word, str(place), "towpath up")
        require(done.returncode == 125 and "started" not in done.stdout, f"status {done.returncode}: {done.stdout}")
        require(not (w.directory / "not").exists(), "a folder was made")
    # Left by a service that died.
    w.up()
    w.service.kill()
    w.service.wait()
    refused(run_towpath([w.towpath, "run", "--control", w.control, "--", "echo", "started"]), "--control", "towpath up")
    require(not children(os.getpid()), "a service was started")


@mistake("run_with_a_relative_control")
def run_with_a_relative_control(w):
    """The program finds the service from any folder."""
    w.up()
    program = "import os, socket; os.chdir('/'); l = socket.create_server(('127.0.0.1', 0)); print(os.environ['TOWPATH_CONTROL'])"
    command = [w.towpath, "run", "--control", w.control.name, "--", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=w.control.parent, env=plain_environment(), capture_output=True, text=True, timeout=20, check=False)
    require(done.returncode == 0 and done.stdout.strip() == str(w.control), f"{done.stdout} {done.stderr}")
    w.prove_accelerated(1)


@mistake("install", limit_s=60)
def install(w):
    """`make install` puts everything below DESTDIR/PREFIX, where the program finds its library; `make uninstall` leaves no file."""
    if shutil.which("make") is None:
        raise Skip("make is not installed")
    source = Path(__file__).resolve().parents[3]
    root = w.directory / "root"

    def make(target):
        command = ["make", "-C", source, target, f"DESTDIR={root}", "PREFIX=/opt/towpath", f"BUILT={w.options.bin_dir}"]
        done = run_towpath(command, 30)
        require(done.returncode == 0, f"make {target}: {done.stdout} {done.stderr}")

    make("install")
    top = root / "opt" / "towpath"
    unit = (top / "lib" / "systemd" / "system" / "towpath.service").read_text()
    require("ExecStart=/opt/towpath/bin/towpath up" in unit and "@PREFIX" not in unit and "Type=notify" in unit, unit)
    require((top / "share" / "doc" / "towpath" / "README.md").exists(), "no documents")
    w.towpath = top / "bin" / "towpath"
    w.up()
    program = "import socket; socket.create_server(('127.0.0.1', 0)); print(open('/proc/self/maps').read())"
    done = run_towpath([w.towpath, "run", "--control", w.control, "--", sys.executable, "-c", program])
    require(str(top / "lib" / "towpath" / "libtowpath_preload.so") in done.stdout, f"the library is not found: {done.stderr}")
    w.prove_accelerated(1)
    require(w.command("down").returncode == 0, "down failed")
    make("uninstall")
    left = [path for path in root.rglob("*") if not path.is_dir()]
    require(not left, f"left behind: {left}")
