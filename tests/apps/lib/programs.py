"""Unmodified programs of the distribution, each as server and as client, each way."""

import hashlib
import json
import os
import random
import re
import sys

from lib.process import require, until
from lib.registry import add
from lib.world import PEERS, PYTHON, WAYS, find, free_port


def write_random(path, size, seed=1):
    """A file of that size; returns its SHA-256."""
    data = random.Random(seed).randbytes(size)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


# redis


def start_redis(w):
    port = free_port()
    command = ["redis-server", "--port", port, "--bind", w.way.listen, "--protected-mode", "no", "--save", "", "--dir", w.directory]
    return w.server("redis-server", command, port), port


def redis_commands(w, port):
    """Values of 1 MB, a long pipeline, and MONITOR; returns the number of connections made."""
    cli = ["redis-cli", "-h", w.way.target, "-p", port]
    require("PONG" in w.ask("ping", [*cli, "ping"]), "redis-cli ping gave no PONG")

    write_random(w.directory / "value", 1_000_000)
    with open(w.directory / "value", "rb") as value:
        require("OK" in w.ask("set", [*cli, "-x", "set", "big"], stdin=value), "set of 1 MB gave no OK")
    w.ask("get", [*cli, "--raw", "get", "big"])
    # redis-cli ends its output with a newline of its own.
    require(
        (w.directory / "get.out").read_bytes() == (w.directory / "value").read_bytes() + b"\n", "1 MB came back changed"
    )

    pipeline = "".join(f"SET key:{i} value:{i}\r\n" for i in range(50_000))
    (w.directory / "pipeline").write_text(pipeline)
    with open(w.directory / "pipeline", "rb") as lines:
        said = w.ask("pipe", [*cli, "--pipe"], stdin=lines)
    require("errors: 0, replies: 50000" in said, f"redis-cli --pipe: {said!r}")
    require(w.ask("last", [*cli, "get", "key:49999"]).strip().strip('"') == "value:49999", "a pipelined value is missing")

    monitor = w.client("monitor", [*cli, "monitor"])
    monitor.until_prints("OK")
    w.ask("incr", [*cli, "-r", "100", "incr", "counter"])
    until(lambda: monitor.output().count('"incr" "counter"') == 100, 10, "MONITOR shows 100 commands")
    monitor.kill()
    return 7


def redis(w):
    _, port = start_redis(w)
    w.prove_way(redis_commands(w, port))


def redis_benchmark(w):
    _, port = start_redis(w)
    command = ["redis-benchmark", "-h", w.way.target, "-p", port, "--csv"]
    rates = []
    for flags in (
        ["-c", 50, "-n", 40_000, "-t", "get,set"],
        ["-c", 50, "-n", 100_000, "-t", "get", "-P", 16],
        ["-c", 1, "-n", 5_000, "-t", "get"],
        ["-c", 20, "-n", 10_000, "-t", "set", "-d", 10_000, "--threads", 2],
    ):
        said = w.ask("redis-benchmark", [*command, *flags], 60)
        rows = [line.split(",") for line in said.splitlines() if line.startswith('"') and "rps" not in line]
        require(len(rows) == str(flags).count("get") + str(flags).count("set"), f"redis-benchmark printed {said!r}")
        rates.append(float(rows[-1][1].strip('"')))
    w.prove_way(50 + 50 + 50 + 1 + 20)
    return f"GET/s {rates[0]:.0f} at c50, {rates[1]:.0f} at c50 p16, {rates[2]:.0f} at c1"


# memcached


def memcached(w):
    port = free_port()
    command = ["memcached", "-l", w.way.listen, "-p", port, "-U", 0, "-t", 4, "-c", 1024, "-m", 256]
    if os.geteuid() == 0:
        command += ["-u", "root"]
    w.server("memcached", command, port)
    w.ask("client", [*PYTHON, PEERS / "memcache_client.py", w.way.target, port, 64, 40], 40)
    w.prove_way(64)


# iperf3


def iperf3(w):
    port = free_port()
    # Without an address it listens on a dual-stack wildcard, as it does by default.
    w.server("iperf3-server", ["iperf3", "-s", "-p", port, "--forceflush"], port)
    rates = []
    for flags in (["-t", 1], ["-t", 1, "-P", 4], ["-t", 1, "-R"], ["-n", "20M", "-l", "1000"]):
        said = w.ask("iperf3", ["iperf3", "-c", w.way.target, "-p", port, "-J", *flags], 40)
        result = json.loads(said)
        require("error" not in result, f"iperf3 {flags}: {result.get('error')}")
        rate = result["end"]["sum_received"]["bits_per_second"]
        require(rate > 0, f"iperf3 {flags}: nothing received")
        rates.append(rate / 1e9)
    w.prove_way(2 + 5 + 2 + 2)
    return "Gbit/s " + ", ".join(f"{name} {rate:.1f}" for name, rate in zip(("1", "-P 4", "-R"), rates))


# nginx, curl, wrk

NGINX = """
{user}
daemon off;
worker_processes 2;
pid {directory}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen {listen}:{port};
        root {directory}/files;
    }}
}}
"""


def start_nginx(w):
    port = free_port()
    files = w.directory / "files"
    files.mkdir()
    sums = {name: write_random(files / name, size, size) for name, size in (("1k", 1024), ("10m", 10 << 20))}
    user = "user root;" if os.geteuid() == 0 else ""
    configuration = w.directory / "nginx.conf"
    configuration.write_text(NGINX.format(user=user, directory=w.directory, listen=w.way.listen, port=port))
    w.server("nginx", ["nginx", "-e", "stderr", "-p", w.directory, "-c", configuration], port)
    return f"http://{w.way.target}:{port}", sums


def fetch(w, urls, sums):
    """All of them over one connection of curl."""
    command = ["curl", "-sS", "--fail", "--noproxy", "*", "-w", "%{num_connects}\\n"]
    for i, url in enumerate(urls):
        command += ["-o", w.directory / f"got{i}", url]
    connects = sum(int(n) for n in w.ask("curl", command, 40).split())
    require(connects == 1, f"curl made {connects} connections where keep-alive needs 1")
    for i, url in enumerate(urls):
        require(sha256(w.directory / f"got{i}") == sums[url.rpartition("/")[2]], f"{url} came changed")


def nginx(w):
    base, sums = start_nginx(w)
    for _ in range(3):
        fetch(w, [f"{base}/1k", f"{base}/10m", f"{base}/1k"], sums)
    w.prove_way(3)


def wrk(w):
    base, _ = start_nginx(w)
    rates = []
    for flags in (["-c", 32, f"{base}/1k"], ["-c", 4, f"{base}/10m"]):
        # On a busy machine 10 MB may take longer than the two seconds after which wrk counts an error.
        said = w.ask("wrk", ["wrk", "-t", 2, "-d", "2s", "--timeout", "20s", *flags], 30)
        require("Socket errors" not in said and "Non-2xx" not in said, f"wrk: {said}")
        rates.append(float(re.search(r"Requests/sec:\s*([0-9.]+)", said)[1]))
        require(rates[-1] > 0, f"wrk: {said}")
    w.prove_way(36)
    return f"requests/s {rates[0]:.0f} of 1 KB, {rates[1]:.0f} of 10 MB"


# python3 -m http.server, and curl


def http_server(w):
    port = free_port()
    files = w.directory / "files"
    files.mkdir()
    expected = write_random(files / "20m", 20 << 20)
    command = [sys.executable, "-m", "http.server", port, "--bind", w.way.listen, "--directory", files]
    w.server("http.server", command, port)
    url = f"http://{w.way.target}:{port}/20m"
    clients = [
        w.client(f"curl{i}", ["curl", "-sS", "--fail", "--noproxy", "*", "-o", w.directory / f"got{i}", url]) for i in range(4)
    ]
    for i, client in enumerate(clients):
        client.succeed(40)
        require(sha256(w.directory / f"got{i}") == expected, "20 MB came changed")
    w.prove_way(4)


# Dynamically linked programs only: a static build cannot be preloaded.


def needs(function, *programs):
    def checked(w):
        for program in programs:
            find(program)
        return function(w)

    return checked


PROGRAMS = {
    "redis": needs(redis, "redis-server", "redis-cli"),
    "redis_benchmark": needs(redis_benchmark, "redis-server", "redis-benchmark"),
    "memcached": needs(memcached, "memcached"),
    "iperf3": needs(iperf3, "iperf3"),
    "nginx": needs(nginx, "nginx", "curl"),
    "wrk": needs(wrk, "nginx", "wrk"),
    "http_server": needs(http_server, "curl"),
}
ALL = tuple(PROGRAMS)
CHOICE = {
    "pair": ALL,
    "relay": ("redis", "redis_benchmark", "iperf3", "nginx"),
    "kernel_client": ("redis", "redis_benchmark", "memcached", "nginx", "http_server"),
    "kernel_server": ("redis", "redis_benchmark", "memcached", "nginx", "http_server"),
    "own_address": ("redis", "iperf3", "nginx"),
    "tap_server": ALL,
    "tap_client": ALL,
}

for way_name, names in CHOICE.items():
    for program_name in names:
        add(f"{way_name}.{program_name}", PROGRAMS[program_name], WAYS[way_name], limit_s=90)
