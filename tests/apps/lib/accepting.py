"""Several processes that accept from one listener, made before they were forked: each is woken as on Linux, and each gets its share."""

import json
import os
import sys

from lib.process import require
from lib.programs import needs, write_random
from lib.registry import add, test
from lib.web import Nginx, start_load, without_failure
from lib.world import PEERS, WAYS, free_port

# The shortest configuration in which Apache serves a file. All settings of the MPM have their defaults.
APACHE = """
ServerName localhost
ServerRoot {directory}
PidFile {directory}/pid
Mutex posixsem
ErrorLog /dev/stderr
Listen {address}:{port}
Listen {address}:{second}
LoadModule mpm_{mpm}_module {modules}/mod_mpm_{mpm}.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule reqtimeout_module {modules}/mod_reqtimeout.so
{user}
DocumentRoot {directory}
<Directory {directory}>
    Require all granted
</Directory>
"""
MODULES = "/usr/lib/apache2/modules"


def apache(mpm):
    """Two listeners, so that its processes wait for both in a set; on Linux a deferred accept is its default. New connections come one after
    the other and many at once, some after its processes have begun to wait."""

    def run(w):
        directory = w.directory / "apache"
        directory.mkdir()
        sha256 = write_random(directory / "file", 20_000)
        port, second = free_port(), free_port()
        # Root's processes serve as another user, which must find the file.
        user = "User www-data\nGroup www-data" if os.geteuid() == 0 else ""
        for folder in (directory, w.directory, w.directory.parent):
            os.chmod(folder, os.stat(folder).st_mode | 0o011)
        (directory / "conf").write_text(
            APACHE.format(
                directory=directory, address=w.way.listen, port=port, second=second, mpm=mpm, modules=MODULES, user=user
            )
        )
        w.server("apache", ["apache2", "-DFOREGROUND", "-f", directory / "conf"], port)
        connections = 0
        for to, threads in ((port, 1), (second, 1), (port, 8), (second, 8)):
            seen = without_failure(start_load(w, to, sha256, threads, 1, 1), 30)
            connections += seen["connections"]
        w.prove_way(connections)
        return f"{connections} connections of one request"

    return run


def shares(w):
    """One connection after the other to three idle workers that wait in exclusive sets."""
    server = Nginx(w, workers=3)
    command = [sys.executable, PEERS / "serial_load.py", w.way.target, server.port, "/file", 300]
    counts = sorted(json.loads(w.ask("serial_load", command, 60)).values())
    require(len(counts) == 3, f"only {len(counts)} of three workers answered: {counts}")
    require(counts[-1] <= 1.3 * counts[0], f"shares of three workers: {counts}")
    w.prove_way(300)
    return f"shares {counts}"


@test("accept.two_sets", limit_s=60)
def two_sets(w):
    """Two processes have a deferred listener in sets of their own. One waits there, the other elsewhere: the first one is woken."""
    command = [sys.executable, PEERS / "two_sets.py", 4]
    said = w.start("two_sets", command, accelerated=True).succeed(50)
    require("4 answers" in said, said)
    w.prove_accelerated(8)


for name in ("worker", "event", "prefork"):
    add(f"pair.apache_{name}", needs(apache(name), "apache2"), WAYS["pair"], limit_s=60)
add("tap_server.apache_event", needs(apache("event"), "apache2"), WAYS["tap_server"], limit_s=60)
add("pair.nginx_shares", needs(shares, "nginx"), WAYS["pair"], limit_s=60, alone=True)
