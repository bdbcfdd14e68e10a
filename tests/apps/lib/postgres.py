"""PostgreSQL: a server that accepts in one process and serves in another, forked for each connection."""

import hashlib
import os
import shutil
from pathlib import Path

from lib.process import Skip, require
from lib.registry import add
from lib.world import WAYS, find, free_port

# It refuses to run as root: then this user, whom no file belongs to, runs it.
NOBODY = 65534
# What each transaction changes by the same amount.
TABLES = {"accounts": "abalance", "branches": "bbalance", "tellers": "tbalance", "history": "delta"}


def folder():
    """Where the newest version's programs lie; distributions keep most of them out of the search path."""
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "postgres").exists()]
    if not versions:
        raise Skip("PostgreSQL's server is not installed")
    return max(versions, key=lambda path: int(path.parent.name))


def as_nobody(command):
    if os.geteuid() != 0:
        return command
    return ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", *command]


class Postgres:
    def __init__(self, w):
        self.w, self.port, self.programs = w, free_port(), folder()
        if os.geteuid() == 0:
            find("setpriv")
        data = w.directory / "data"
        data.mkdir(mode=0o700)
        self.environment = {}
        if os.geteuid() == 0:
            os.chown(data, NOBODY, NOBODY)
            if not w.kernel:
                # Where the library was built this user may have no business.
                self.environment["TOWPATH_PRELOAD"] = str(shutil.copy(w.preload, w.directory))
        w.start("initdb", self.command("initdb", "-D", data, "-A", "trust", "-U", "test", "-N", "--locale", "C", "-E", "UTF8")).succeed(30)
        with open(data / "pg_hba.conf", "a") as rules:
            rules.write("host all all all trust\n")
        # No UNIX socket: whoever comes, comes over TCP.
        settings = ("unix_socket_directories=", "fsync=off", "shared_buffers=16MB", "max_connections=90")
        flags = [part for setting in settings for part in ("-c", setting)]
        command = self.command("postgres", "-D", data, "-h", w.way.listen, "-p", self.port, *flags)
        self.server = w.server("postgres", command, self.port, environment=self.environment)
        self.server.until_prints("ready to accept connections")

    def command(self, program, *arguments):
        return as_nobody([self.programs / program, *arguments])

    def client(self, program, *arguments, seconds=30):
        where = ("-h", self.w.way.target, "-p", self.port, "-U", "test")
        return self.w.ask(program, self.command(program, *where, *arguments), seconds, environment=self.environment)

    def query(self, sql):
        return self.client("psql", "-XAtc", sql, "postgres").strip()


def pgbench(w):
    """Its four tables must add up to the same in the end, whatever order the transactions took."""
    server = Postgres(w)
    server.client("pgbench", "-i", "-q", "postgres")
    # The same transactions over connections that last, with prepared statements, and one connection for each.
    for flags in (("-c", 12, "-j", 2, "-t", 40), ("-c", 12, "-t", 40, "-M", "prepared"), ("-c", 4, "-t", 20, "-C")):
        said = server.client("pgbench", "-n", *flags, "postgres")
        wanted = f"{flags[1] * flags[flags.index('-t') + 1]}/"
        require(f"actually processed: {wanted}" in said, f"pgbench: {said}")
    sums = ", ".join(f"(select sum({column}) from pgbench_{table})" for table, column in TABLES.items())
    *balances, count = server.query(f"select {sums}, (select count(*) from pgbench_history)").split("|")
    require(len(set(balances)) == 1 and int(count) == 12 * 40 * 2 + 80, f"the tables add up to {balances}, {count} transactions")
    server.client("pgbench", "-n", "-S", "-c", 12, "-T", 1, "postgres")
    # A long answer, and a long question.
    text = "".join(hashlib.md5(str(i).encode()).hexdigest() for i in range(100_000))
    require(server.query("select string_agg(md5(i::text), '' order by i) from generate_series(0, 99999) i") == text, "3 MB came changed")
    (w.directory / "question.sql").write_text(f"select md5('{text}')")
    digest = hashlib.md5(text.encode()).hexdigest()
    require(server.client("psql", "-XAt", "-f", w.directory / "question.sql", "postgres").strip() == digest, "3 MB went changed")
    w.prove_way(12 * 3 + 80)


def crowd(w):
    """More servers at once than a family of processes may have: the late ones go on by descriptors, or are the kernel's; all are served."""
    server = Postgres(w)
    server.client("psql", "-XAtc", "create table seen (number int)", "postgres")
    (w.directory / "crowd.sql").write_text("insert into seen values (:client_id);")
    said = server.client("pgbench", "-n", "-c", 80, "-t", 3, "-f", w.directory / "crowd.sql", "postgres")
    require("actually processed: 240/240" in said, f"pgbench: {said}")
    require(server.query("select count(*), count(distinct number) from seen") == "240|80", "rows are missing")


for way_name in ("pair", "tap_server"):
    add(f"{way_name}.postgres", pgbench, WAYS[way_name], limit_s=60)
for way_name in ("pair", "tap_server", "own_address"):
    add(f"{way_name}.postgres_crowd", crowd, WAYS[way_name], limit_s=60)
