"""The command line: mistakes end with one clear line and a status, the rest does what it says."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

from lib.process import CLONE_NEWNS, Process, Skip, children, require, unshare, until
from lib.registry import test
from lib.world import HOST_ADDRESS, SERVICE_ADDRESS, TAP, find, free_port, plain_environment, run_towpath

NOBODY = 65534


def root_only():
    if os.geteuid() != 0:
        raise Skip("needs root")


def refused(done, *words, lines=1):
    """It failed, with so many lines at most on standard error, which say what is wrong."""
    said = done.stderr.strip()
    require(done.returncode not in (0, 101) and done.returncode > 0, f"status {done.returncode}: {done.stdout} {said}")
    require(said, "it failed without a word")
    shown = [line for line in said.splitlines() if line.strip()]
    require(len(shown) <= lines, f"{len(shown)} lines where {lines} should do: {said}")
    require("panicked" not in said and "RUST_BACKTRACE" not in said, said)
    for word in words:
        options = word if isinstance(word, tuple) else (word,)
        require(any(option.lower() in said.lower() for option in options), f"it does not say {' or '.join(options)!r}: {said}")


def up(w, *flags, control=None, seconds=10, prefix=()):
    """`towpath up`, expected to end by itself."""
    return run_towpath([*prefix, w.towpath, "up", "--control", control or w.control, *flags], seconds)


def as_nobody(w):
    """A command's beginning that makes it nobody's; the program is copied to where nobody may read it."""
    root_only()
    setpriv = find("setpriv")
    places = w.directory / "bin"
    if not places.exists():
        places.mkdir()
        for name in (w.towpath, w.preload):
            shutil.copy(name, places / name.name)
            (places / name.name).chmod(0o755)
    w.towpath, w.preload = places / w.towpath.name, places / w.preload.name
    return [setpriv, "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]


def own_place(w):
    """How a command begins that uses its user's own place, with an environment; root's place is the machine's."""
    place = w.directory / "runtime"
    place.mkdir()
    prefix = []
    if os.geteuid() == 0:
        w.directory.chmod(0o755)
        prefix = as_nobody(w)
        os.chown(place, NOBODY, NOBODY)
    w.control = place / "towpath-private" / "control.sock"
    w.asking = {"TOWPATH_TRUST_UID": str(NOBODY)}
    return [*prefix, w.towpath, "run"], {"XDG_RUNTIME_DIR": str(place), "TOWPATH_CONTROL": str(w.control)}


def mistake(name, **properties):
    return test(f"cli.{name}", kernel=False, own_service=True, **properties)


@mistake("unknown_flag")
def unknown_flag(w):
    # The parser adds a hint and the usage.
    refused(run_towpath([w.towpath, "up", "--frobnicate"]), "--frobnicate", lines=8)
    refused(run_towpath([w.towpath, "frobnicate"]), "frobnicate", lines=8)


@mistake("bad_values")
def bad_values(w):
    for flags in (
        ["--address", "10.77.0.300/24"],
        ["--address", "10.77.0.2/40"],
        ["--port", "carrier-pigeon"],
        ["--sharing", "sometimes"],
        ["--fault-loss", "200%"],
        ["--cores", "0"],
        ["--ring-max", "5000"],
        ["--log", "service=loud"],
        ["--log", "warning"],
    ):
        done = up(w, *flags)
        refused(done, tuple(flags[0].lstrip("-").replace("-", c) for c in "-_"), lines=8)
        require(not w.control.exists(), f"{flags}: a control socket is left behind")


@mistake("bad_configuration")
def bad_configuration(w):
    file = w.directory / "towpath.toml"
    refused(up(w, "--config", file), str(file))
    for text in ("cores = \n", 'cores = "many"\n'):
        file.write_text(text)
        refused(up(w, "--config", file), str(file), lines=8)
    # All keys are listed.
    file.write_text("# comment\ncors = 1\n")
    refused(up(w, "--config", file), str(file), "line 2", "did you mean `cores`?", lines=40)


@mistake("configuration_sources")
def configuration_sources(w):
    """The same key as flag, variable and file key: flag over variable over file, shown in the banner."""
    file = w.directory / "towpath.toml"
    file.write_text("region_mib = 17\nspin_us = 7\nmax_applications = 5\n")
    service = Process(
        "service",
        [w.towpath, "up", "--control", w.control, "--config", file, "--region-mib", 19],
        plain_environment() | {"TOWPATH_REGION_MIB": "18", "TOWPATH_SPIN_US": "8"},
        w.directory,
    )
    w.processes.append(service)
    w.service = service
    w.until_up()
    for line in ("region_mib = 19", "spin_us = 8", "max_applications = 5"):
        require(line in service.errors(), f"the banner does not say {line!r}: {service.errors()}")


@mistake("no_service")
def no_service(w):
    for command in (["ss"], ["ss", "--json"], ["stat"], ["stat", "--json"], ["down"]):
        refused(w.command(*command), str(w.control))


@mistake("already_up")
def already_up(w):
    w.up()
    refused(up(w), "already", str(w.service.pid))
    refused(up(w, "--detach"), "already")
    require(w.service.running() and w.command("stat").returncode == 0, "the first service is disturbed")


@mistake("stale_socket")
def stale_socket(w):
    """A socket left by a killed service is no obstacle."""
    w.up()
    w.service.kill()
    w.service.wait()
    require(w.control.exists(), "the test is wrong: nothing is left behind")
    refused(w.command("stat"), str(w.control))
    w.up()


@mistake("control_path")
def control_path(w):
    file = w.directory / "file"
    file.write_text("precious")
    refused(up(w, control=file), str(file))
    require(file.read_text() == "precious", "a file in the way was removed")
    refused(up(w, control=w.directory), str(w.directory))
    refused(up(w, control=file / "below.sock"), str(file))
    refused(up(w, control=w.directory / ("x" * 120)), "108")
    foreign = w.directory / "foreign.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(foreign))
        listener.listen()
        refused(up(w, control=foreign), str(foreign))
        require(foreign.exists(), "another program's socket was removed")


@mistake("unreadable_socket")
def unreadable_socket(w):
    """Another user, and no right to the control socket: a reason, and programs run on the kernel."""
    prefix = as_nobody(w)
    w.up()
    w.control.chmod(0o600)
    for command in ("stat", "ss", "down"):
        refused(run_towpath([*prefix, w.towpath, command, "--control", w.control]), str(w.control))
    refused(run_towpath([*prefix, w.towpath, "up", "--control", "/proc/towpath.sock"]), "/proc/towpath.sock")
    works_on_the_kernel(w, [*prefix, "/usr/bin/python3"])


def works_on_the_kernel(w, python):
    """A preloaded program that no service takes still has its sockets; returns what it said on standard error."""
    program = (
        "import socket as s; l = s.create_server(('127.0.0.1', 0)); c = s.create_connection(l.getsockname());"
        "a = l.accept()[0]; c.sendall(b'works'); print(a.recv(5).decode())"
    )
    environment = {"LD_PRELOAD": str(w.preload), "TOWPATH_CONTROL": str(w.control)}
    done = run_towpath([*python, "-c", program], environment=environment)
    require(done.stdout == "works\n" and done.returncode == 0, f"{done.stdout} {done.stderr}")
    return done.stderr


@mistake("library_without_service")
def library_without_service(w):
    """Preloaded, and nobody at the control socket, or nothing of the name: the kernel."""
    works_on_the_kernel(w, [sys.executable])


@mistake("wrong_version_of_library")
def wrong_version_of_library(w):
    """The service refuses another version of the library: one line says so, and the program runs on the kernel."""
    reason = b"this service speaks version 2; use the library of the service's version"
    refusal = b"\x06" + b"\x02" + bytes([len(reason)]) + reason
    child = os.fork()
    if child == 0:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                # It listens before it can be found.
                listener.bind(f"{w.control}.new")
                listener.listen()
                os.rename(f"{w.control}.new", w.control)
                while True:
                    line = listener.accept()[0]
                    if line.recv(4096):
                        line.send(b"\0\x01" + refusal)
                    line.close()
        finally:
            os._exit(0)
    until(w.control.exists, 5, "the false service listens")
    said = works_on_the_kernel(w, [sys.executable])
    require(reason.decode() in said, f"it does not say why: {said!r}")
    require(said.count(reason.decode()) == 1, f"it says so more than once: {said!r}")


@mistake("launcher_of_another_version")
def launcher_of_another_version(w):
    """A launcher and a library of different builds: one line says what to do, and the program does not start to work."""
    w.up()
    library = w.options.bin_dir / "libtowpath_preload.so"
    environment = {**plain_environment(), "LD_PRELOAD": str(library), "TOWPATH_CONTROL": str(w.control), "TOWPATH_VERSIONS": "9.9"}
    command = [sys.executable, "-c", "import socket; socket.socket(); print('went on')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10, check=False)
    require(done.returncode != 0, "it went on")
    require("9.9" in done.stderr and done.stderr.count("\n") == 1, f"not one clear line: {done.stderr!r}")


@mistake("down_is_for_the_owner")
def down_is_for_the_owner(w):
    prefix = as_nobody(w)
    w.up()
    w.control.chmod(0o666)
    refused(run_towpath([*prefix, w.towpath, "down", "--control", w.control]))
    require(w.service.running(), "anybody may end the service")


@mistake("detach")
def detach(w):
    """It is up when the command returns, and gone without a trace when `down` returns."""
    done = up(w, "--detach")
    require(done.returncode == 0, done.stderr)
    require(w.command("stat").returncode == 0, "up --detach returned before the service answers")
    require(len(children(os.getpid())) == 1, "one process should be in the background")
    done = w.command("down")
    require(done.returncode == 0, done.stderr)
    require(not w.control.exists(), "the control socket is left behind")
    until(lambda: not children(os.getpid()), 2, "the service is gone")


@mistake("signals")
def signals(w):
    """SIGTERM and SIGINT end the service cleanly."""
    for number in (signal.SIGTERM, signal.SIGINT):
        w.up()
        w.service.kill(number)
        require(w.service.wait(5) == 0, f"{number.name}: status {w.service.popen.returncode}")
        require(not w.control.exists(), f"{number.name}: the control socket is left behind")


@mistake("run_status")
def run_status(w):
    """`run` ends as its command does."""
    w.up()
    base = [w.towpath, "run", "--control", w.control, "--"]
    for command, status in ((["true"], 0), (["false"], 1), (["sh", "-c", "exit 37"], 37), (["sh", "-c", "kill -9 $$"], -9)):
        done = run_towpath([*base, *command])
        require(done.returncode == status, f"{command}: status {done.returncode}: {done.stderr}")
    done = run_towpath([*base, "printf", "%s|", "a b", "--help", "$HOME"])
    require(done.stdout == "a b|--help|$HOME|", done.stdout)


@mistake("private_service")
def private_service(w):
    """Two `run` without a service share one that leaves with the last of them."""
    port = free_port()
    run, environment = own_place(w)
    server = w.start("redis-server", [*run, "--", find("redis-server"), "--port", port, "--save", ""], environment=environment)
    server.until_prints("Ready to accept")
    until(lambda: any(row["local"].endswith(f":{port}") for row in w.sockets()), 5, "the server is known to a service")
    done = run_towpath([*run, "--", find("redis-cli"), "-p", port, "ping"], environment=environment)
    require("PONG" in done.stdout, f"no PONG: {done.stdout} {done.stderr}")
    w.prove_accelerated(2)
    server.kill(signal.SIGTERM)
    require(server.wait() == 0, f"redis-server ended with status {server.popen.returncode}")
    until(lambda: not w.control.exists(), 5, "the private service leaves")
    until(lambda: not children(os.getpid()), 5, "its process is gone")


@mistake("many_start_at_once")
def many_start_at_once(w):
    """Eight `run` at the same instant start one service between them."""
    run, environment = own_place(w)
    program = "import socket, time; socket.create_server(('127.0.0.1', 0)); print('listening', flush=True); time.sleep(3)"
    together = [w.start("sleeper", [*run, "--", "/usr/bin/python3", "-c", program], environment=environment) for _ in range(8)]
    for process in together:
        process.until_prints("listening", 30)
    services = [pid for pid in children(os.getpid()) if b"--session" in command_of(pid)]
    require(len(services) == 1, f"{len(services)} services")
    for process in together:
        process.succeed()


def command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


@mistake("ss_and_stat")
def ss_and_stat(w):
    """`ss` and `stat` name addresses, state, process and counts, as text and as JSON."""
    w.up()
    port = free_port()
    server = w.server("echo_server", [w.program("echo_server"), "127.0.0.1", port, "level"], port, launcher=False)
    client = w.client("echo_load", [w.program("echo_load"), "127.0.0.1", port, 3, 10, 64, 0, 30], launcher=False)
    client.until_prints("p99_us")
    rows = w.sockets()
    made = [row for row in rows if row["state"] == "ESTABLISHED" and row["pid"] == client.pid]
    taken = [row for row in rows if row["state"] == "ESTABLISHED" and row["pid"] == server.pid]
    require(len(made) == len(taken) == 3, f"3 connections have 6 ends: {rows}")
    require(all(row["remote"] == f"127.0.0.1:{port}" and row["process"] == "echo_load" for row in made), str(made))
    require(all(row["bytes_in"] == row["bytes_out"] == 640 for row in made + taken), str(made + taken))
    require({row["local"] for row in made} == {row["remote"] for row in taken}, "the ends' addresses do not match")
    for what, words in (("ss", [str(client.pid), str(server.pid), "LISTEN", "ESTAB", f"127.0.0.1:{port}"]), ("stat", ["echo_load"])):
        text = w.command(what).stdout
        require(all(word in text for word in words), text)
    stat_of = {row["pid"]: row for row in w.stat()["per_process"]}
    require(stat_of[client.pid]["accelerated"] == 3 and stat_of[client.pid]["fallen_back"] == 0, str(stat_of))
    require(stat_of[server.pid]["accelerated"] >= 4, str(stat_of))


@mistake("disabled")
def disabled(w):
    """TOWPATH_DISABLE=1 passes everything through."""
    w.up()
    port = free_port()
    environment = {"TOWPATH_DISABLE": "1"}
    command = [w.program("echo_server"), "127.0.0.1", port, "level"]
    server = w.start("echo_server", command, accelerated=True, launcher=False, environment=environment)
    w.until_listening(server, port)
    command = [w.program("echo_load"), "127.0.0.1", port, 3, 10, 64]
    w.start("echo_load", command, accelerated=True, launcher=False, environment=environment).succeed()
    require(w.stat()["accelerated"] == 0, str(w.stat()))


@mistake("no_tun", namespace=True)
def no_tun(w):
    root_only()
    unshare(CLONE_NEWNS)
    subprocess.run([find("mount"), "--make-rprivate", "/"], check=True)
    subprocess.run([find("mount"), "-t", "tmpfs", "none", "/dev/net"], check=True)
    refused(up(w, *TAP), "/dev/net/tun")


@mistake("no_root")
def no_root(w):
    prefix = as_nobody(w)
    w.directory.chmod(0o777)
    place = w.directory / "nobody"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    refused(up(w, *TAP, control=place / "control.sock", prefix=prefix), ("root", "CAP_NET_ADMIN", "permi"))


def ip(*words):
    subprocess.run([find("ip"), *words], check=True)


@mistake("port_name_in_use", namespace=True)
def port_name_in_use(w):
    ip("link", "add", "tp0", "type", "veth", "peer", "name", "tp1")
    refused(up(w, *TAP), "tp0")


@mistake("address_in_use", namespace=True)
def address_in_use(w):
    ip("address", "add", f"{SERVICE_ADDRESS}/32", "dev", "lo")
    refused(up(w, *TAP), SERVICE_ADDRESS)


@mistake("second_service_same_port", namespace=True)
def second_service_same_port(w):
    """A second service may not take the first one's interface."""
    w.up(*TAP)
    refused(up(w, *TAP, control=w.directory / "second.sock"), "tp0")
    require(w.service.running() and w.command("stat").returncode == 0, "the first service is disturbed")


@mistake("tap_leaves_nothing", namespace=True)
def tap_leaves_nothing(w):
    """The interface comes with `up`, with its address, and goes with `down`."""
    w.up(*TAP)
    shown = subprocess.run([find("ip"), "address", "show", "tp0"], capture_output=True, text=True, check=True).stdout
    require(HOST_ADDRESS in shown and "UP" in shown, shown)
    subprocess.run([shutil.which("ping") or "true", "-c", "1", "-W", "2", SERVICE_ADDRESS], check=True, capture_output=True)
    require(w.command("down").returncode == 0, "down failed")
    require(subprocess.run([find("ip"), "link", "show", "tp0"], capture_output=True, check=False).returncode != 0, "tp0 is left behind")


@mistake("socket_is_private")
def socket_is_private(w):
    """A service of an ordinary user makes a socket that others cannot use."""
    prefix = as_nobody(w)
    place = w.directory / "nobody"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    control = place / "control.sock"
    command = [*prefix, w.towpath, "up", "--control", control]
    w.service = Process("service", command, plain_environment(), w.directory)
    w.processes.append(w.service)
    w.control = control
    w.asking = {"TOWPATH_TRUST_UID": str(NOBODY)}
    w.until_up()
    require(stat.S_ISSOCK(control.stat().st_mode), "no socket")


PASSES = """// A listener answers.
    0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
   +0 bind(3, ..., ...) = 0
   +0 listen(3, 1) = 0
  +.1 < S 0:0(0) win 32792 <mss 1000>
   +0 > S. 0:0(0) ack 1 <mss WANTED>
"""


@mistake("script")
def script(w):
    """Scripts by outcome: 0 all passed, 1 one failed, 2 none failed and one is unsupported."""

    def run(*arguments):
        return run_towpath([w.towpath, "script", *arguments], 20)

    good, bad, strange, broken = (w.directory / f"{name}.pkt" for name in ("good", "bad", "strange", "broken"))
    good.write_text(PASSES.replace("WANTED", "1460"))
    bad.write_text(PASSES.replace("WANTED", "1459"))
    strange.write_text("0 socket(..., SOCK_DGRAM, IPPROTO_UDP) = 3\n")
    broken.write_text("0 socket(..., \n")
    for files, status, words in (
        ([good], 0, ("good.pkt: passed", "1 passed, 0 failed, 0 unsupported")),
        ([good, bad, strange], 1, ("bad.pkt:6: failed", "strange.pkt:1: unsupported", "1 passed, 1 failed, 1 unsupported")),
        ([good, strange], 2, ("1 passed, 0 failed, 1 unsupported",)),
        ([broken], 1, ("broken.pkt:", "failed")),
        (["-q", good], 0, ("1 passed",)),
        (["-D", "BACKLOG=1", "-v", good], 0, ("< S 0:0(0) win 32792", "> S. 0:0(0) ack 1", "listen() = 0")),
        (["--ip-version", "ipv4-mapped-ipv6", good], 0, ("good.pkt: passed",)),
    ):
        done = run(*files)
        require(done.returncode == status, f"{files}: status {done.returncode}: {done.stdout} {done.stderr}")
        for word in words:
            require(word in done.stdout, f"{files}: no {word!r}: {done.stdout}")
    require("good.pkt" not in run("-q", good).stdout, "-q tells of what passed")
    # An IPv6 packet carries twenty bytes less.
    require(run("--ip-version", "ipv6", good).returncode == 1, "IPv6 announces IPv4's MSS")
    good.write_text(PASSES.replace("WANTED", "1440"))
    require(run("--ip-version", "ipv6", good).returncode == 0, "a script over IPv6")
    told = json.loads(run("--json", good, bad, strange).stdout)
    require((told["passed"], told["failed"], told["unsupported"]) == (0, 2, 1), f"{told}")
    require([Path(s["file"]).name for s in told["scripts"]] == ["good.pkt", "bad.pkt", "strange.pkt"], f"{told}")
    capture = w.directory / "out.pcapng"
    require(run("--ip-version", "ipv6", "--pcap", capture, good).returncode == 0, "a capture")
    require(capture.read_bytes()[:4] == b"\x0a\x0d\x0d\x0a", "no pcapng")
    require(capture.stat().st_size > 200, "a capture without packets")
    for arguments in ([w.directory / "absent.pkt"], [w.directory], ["--ip-version", "ipv5", good], ["-o", "warp=9", good], ["--pcap", w.directory, good]):
        refused(run(*arguments))
    refused(run(), "FILE", lines=8)
