"""Web servers of several processes: workers that share a port, workers replaced under load, and a proxy that watches its servers."""

import json
import os
import signal
import time

from lib.process import children, require, until
from lib.programs import needs, write_random
from lib.registry import add
from lib.world import PEERS, PYTHON, WAYS, free_port

NGINX = """
{user}
daemon {daemon};
{workers}
pid {directory}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen {address}:{port}{flags};
        root {files};
        add_header X-Server {name};
    }}
}}
"""
SIZE = 20_000
# A load that a test ends as soon as it has seen what it waits for.
LOAD_S = 60


class Nginx:
    """Answers say in a header which process, or which server, they come from."""

    def __init__(self, w, name="$pid", workers=1, reuse_port=False, daemon=False, deferred=False):
        self.w, self.name, self.port, self.daemon = w, name, free_port(), daemon
        self.directory = w.directory / f"nginx-{self.port}"
        self.directory.mkdir()
        self.sha256 = write_random(self.directory / "file", SIZE)
        self.configuration = self.directory / "nginx.conf"
        self.configuration.write_text(
            NGINX.format(
                user="user root;" if os.geteuid() == 0 else "",
                daemon="on" if daemon else "off",
                # A process without workers dies whole.
                workers=f"worker_processes {workers};" if workers > 1 else "master_process off;",
                directory=self.directory,
                files=self.directory,
                address=w.way.listen,
                port=self.port,
                flags=" reuseport" * reuse_port + " deferred" * deferred,
                name=name,
            )
        )
        self.start()

    def command(self, *more):
        return ["nginx", "-e", "stderr", "-p", self.directory, "-c", self.configuration, *more]

    def start(self):
        if self.daemon:
            self.w.start("nginx", self.command(), accelerated=self.w.way.server).succeed()
        else:
            self.process = self.w.server("nginx", self.command(), self.port)

    def pid(self):
        """Of the master whose turn it is; none while it changes."""
        try:
            return int((self.directory / "nginx.pid").read_text() or 0)
        except FileNotFoundError:
            return None


def start_load(w, port, sha256, threads, requests, seconds):
    command = [*PYTHON, PEERS / "http_load.py", w.way.target, port, "/file", sha256, threads, requests, seconds]
    return w.client("http_load", command)


def without_failure(load, seconds):
    """What the load saw."""
    seen = json.loads(load.succeed(seconds))
    require(not seen["failures"], f"requests failed: {seen}")
    return seen


def workers_reuseport(w):
    """Three workers, each with a listener of its own, all of which get their share."""
    server = Nginx(w, workers=3, reuse_port=True)
    kept = without_failure(start_load(w, server.port, server.sha256, 12, 50, 1), 30)
    fresh = without_failure(start_load(w, server.port, server.sha256, 6, 1, 1), 30)
    require(len(fresh["servers"]) == 3, f"of three workers there answered {fresh['servers']}")
    w.prove_way(kept["connections"] + fresh["connections"])
    return f"{fresh['answers']} connections of one request, by worker {sorted(fresh['servers'].values())}"


def answered(load):
    """The processes that have answered the load so far."""
    return {int(line.rpartition(" ")[2]) for line in load.errors().splitlines(keepends=True) if line.startswith("answered by ") and line.endswith("\n")}


def until_others_answer(load, before, count=1):
    """Waits for answers from so many processes that are none of `before`."""
    until(lambda: len(answered(load) - before) >= count, 20, f"{count} workers other than {before} answer")


def end(load):
    """Ends the load early; what it saw."""
    load.kill(signal.SIGTERM)
    return without_failure(load, 30)


def reload(reuse_port):
    """New workers take over the listeners while connections come in; the old ones serve what they have and end."""

    def run(w):
        server = Nginx(w, workers=2, reuse_port=reuse_port)
        load = start_load(w, server.port, server.sha256, 4, 1, LOAD_S)
        # A listener that all share may give everything to one of them.
        each, before = 2 if reuse_port else 1, set()
        until_others_answer(load, before, each)
        for _ in range(4):
            before.update(children(server.process.pid))
            w.start("reload", server.command("-s", "reload"), accelerated=w.way.server).succeed(10)
            until_others_answer(load, before, each)
        seen = end(load)
        w.prove_way(seen["connections"])
        return f"{seen['answers']} connections, {len(seen['servers'])} workers"

    return run


def upgrade(w):
    """A new program takes over the listener while connections come in, which it gets from the old one over exec."""
    # It refuses in a program that has not become a daemon.
    server = Nginx(w, workers=2, daemon=True)
    until(server.pid, 5, "nginx runs")
    old = server.pid()
    until(lambda: len(children(old)) == 2, 5, "its workers run")
    workers = set(children(old))
    load = start_load(w, server.port, server.sha256, 4, 1, LOAD_S)
    until_others_answer(load, set())
    os.kill(old, signal.SIGUSR2)
    until(lambda: server.pid() not in (None, 0, old), 10, "the new program runs")
    until_others_answer(load, workers)
    for number, leaving in ((signal.SIGWINCH, workers), (signal.SIGQUIT, {old})):
        os.kill(old, number)
        until(lambda: leaving.isdisjoint(children(os.getpid())), 20, f"{leaving} end")
    # What comes after the end of the old one is answered, too.
    w.ask("after", ["curl", "-sS", "--fail", "--noproxy", "*", "-o", "/dev/null", f"http://{w.way.target}:{server.port}/file"])
    seen = end(load)
    w.prove_way(seen["connections"])
    return f"{seen['answers']} connections, {len(seen['servers'])} workers"


# haproxy

HAPROXY = """
global
    nbthread 2
    maxconn 200
defaults
    mode http
    timeout connect 2s
    timeout client 10s
    timeout server 10s
    retries 3
    option redispatch
frontend entry
    bind {address}:{port}{flags}
    default_backend web
backend web
    balance roundrobin
    option httpchk GET /file
    http-reuse always
    default-server check inter 200ms fall 2 rise 2
    server one {target}:{one}
    server two {target}:{two}
"""


def start_haproxy(w, one, two, flags=""):
    port = free_port()
    configuration = w.directory / "haproxy.cfg"
    configuration.write_text(
        HAPROXY.format(address=w.way.listen, target=w.way.target, port=port, flags=flags, one=one.port, two=two.port)
    )
    process = w.server("haproxy", ["haproxy", "-db", "-f", configuration], port)
    return process, port


def haproxy(w):
    one, two = Nginx(w, "one"), Nginx(w, "two")
    proxy, port = start_haproxy(w, one, two)
    sure = without_failure(start_load(w, port, one.sha256, 8, 20, 1), 30)
    require(sure["servers"].keys() == {"one", "two"}, f"answers came from {sure['servers']}")
    # A server dies between requests: the health check finds out, and the other one serves.
    one.process.kill()
    proxy.until_prints("web/one is DOWN", 10)
    alone = without_failure(start_load(w, port, one.sha256, 8, 1, 1), 30)
    require(alone["servers"].keys() == {"two"}, f"answers came from {alone['servers']}")
    one.start()
    proxy.until_prints("web/one is UP", 10)
    again = without_failure(start_load(w, port, one.sha256, 4, 20, 1), 30)
    require(again["servers"].keys() == {"one", "two"}, f"answers came from {again['servers']}")
    connections = sum(seen["connections"] for seen in (sure, alone, again))
    # Health checks of a dead server end on the kernel, which refuses them.
    w.prove_share(connections)
    return f"{sum(seen['answers'] for seen in (sure, alone, again))} answers over {connections} connections"


TESTS = {
    "nginx_reuseport": needs(workers_reuseport, "nginx"),
    "nginx_reload": needs(reload(False), "nginx"),
    "nginx_reload_reuseport": needs(reload(True), "nginx"),
    "nginx_upgrade": needs(upgrade, "nginx", "curl"),
    "haproxy": needs(haproxy, "nginx", "haproxy"),
}
for name, function in TESTS.items():
    add(f"pair.{name}", function, WAYS["pair"], limit_s=60)
for name in ("nginx_reuseport", "nginx_reload", "nginx_upgrade", "haproxy"):
    add(f"tap_server.{name}", TESTS[name], WAYS["tap_server"], limit_s=60)
