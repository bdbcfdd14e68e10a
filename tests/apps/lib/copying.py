"""Files copied by the programs that people copy files with: rsync's daemon, which forks, and OpenSSH, which executes itself anew."""

import os
import pwd
import random

from lib.process import Skip, require
from lib.programs import needs, sha256, write_random
from lib.registry import add
from lib.world import WAYS, find, free_port

MIB = 1 << 20

# rsync

RSYNCD = """
use chroot = no
log file = {directory}/rsyncd.log
{user}
[files]
path = {directory}/served
read only = no
"""


def sums(folder):
    return {str(path.relative_to(folder)): sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def fill(folder):
    """One large file and many small ones; returns their SHA-256."""
    (folder / "small").mkdir(parents=True)
    write_random(folder / "large", 32 * MIB)
    for i in range(200):
        write_random(folder / "small" / str(i), i * 100, i)
    return sums(folder)


def change(path):
    """Some bytes in the middle, and some more at the end: rsync sends the differences."""
    with open(path, "r+b") as file:
        file.seek(10 * MIB)
        file.write(random.Random(0).randbytes(100_000))
        file.seek(0, os.SEEK_END)
        file.write(b"the end")


def rsync(w):
    port, served = free_port(), w.directory / "served"
    expected = fill(served)
    configuration = w.directory / "rsyncd.conf"
    user = "uid = root\ngid = root" if os.geteuid() == 0 else ""
    configuration.write_text(RSYNCD.format(directory=w.directory, user=user))
    w.server("rsyncd", ["rsync", "--daemon", "--no-detach", "--config", configuration, "--address", w.way.listen, "--port", port], port)
    url = f"rsync://{w.way.target}:{port}/files/"
    copy = w.directory / "copy"
    options = ["rsync", "-a", "--contimeout", 10, "--timeout", 20]
    w.ask("rsync-down", [*options, url, f"{copy}/"], 30)
    require(sums(copy) == expected, "files came changed")
    change(copy / "large")
    (copy / "small" / "7").unlink()
    said = w.ask("rsync-up", [*options, "--checksum", "--delete", "--stats", f"{copy}/", url], 30)
    require(sums(served) == sums(copy), "files went changed")
    literal = next(line for line in said.splitlines() if line.startswith("Literal data:"))
    require(int(literal.split()[2].replace(",", "")) < 2 * MIB, f"more than the differences went: {literal}")
    w.prove_way(2)


# OpenSSH

SSHD = """
Port {port}
ListenAddress {listen}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""


def separate_privileges():
    """What a server that runs as root needs, to serve those who have not logged in from a process that may do nothing."""
    try:
        pwd.getpwnam("sshd")
    except KeyError:
        raise Skip("there is no user sshd") from None
    # The distribution's service makes it when it starts.
    os.makedirs("/run/sshd", 0o755, exist_ok=True)


def start_sshd(w):
    """Returns the options that its clients need."""
    port, directory = free_port(), w.directory
    for name in ("host_key", "user_key"):
        w.start("ssh-keygen", ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name]).succeed()
    (directory / "sshd_config").write_text(SSHD.format(port=port, listen=w.way.listen, directory=directory))
    host_key = " ".join((directory / "host_key.pub").read_text().split()[:2])
    (directory / "known_hosts").write_text(f"[{w.way.target}]:{port} {host_key}\n")
    if os.geteuid() == 0:
        separate_privileges()
    w.server("sshd", [find("sshd"), "-D", "-e", "-f", directory / "sshd_config"], port)
    settings = (f"Port={port}", f"IdentityFile={directory}/user_key", f"UserKnownHostsFile={directory}/known_hosts")
    settings += ("BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10", "Ciphers=aes128-gcm@openssh.com")
    return ["-F", "none", *[part for setting in settings for part in ("-o", setting)]]


def is_locked(user):
    """sshd lets nobody in whose password begins with `!`, whatever key they have."""
    with open("/etc/shadow") as accounts:
        return any(line.startswith(f"{user}:!") for line in accounts)


def ssh(w):
    user = pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() == 0 and is_locked(user):
        raise Skip(f"the account {user} is locked")
    options = start_sshd(w)
    who = f"{user}@{w.way.target}"
    expected = write_random(w.directory / "sent", 64 * MIB)
    with open(w.directory / "sent", "rb") as sent:
        said = w.ask("ssh", ["ssh", *options, who, "sha256sum"], 30, stdin=sent)
    require(said.split()[0] == expected, "64 MiB went changed")
    for name, source, target in (("up", "sent", f"{who}:{w.directory}/there"), ("down", f"{who}:{w.directory}/there", "back")):
        w.ask(f"scp-{name}", ["scp", "-q", *options, source, target], 30)
    require(sha256(w.directory / "there") == expected and sha256(w.directory / "back") == expected, "scp changed 64 MiB")
    files = fill(w.directory / "served")
    shell = " ".join(["ssh", *options])
    w.ask("rsync", ["rsync", "-a", "-e", shell, f"{who}:{w.directory}/served/", f"{w.directory}/copy/"], 30)
    require(sums(w.directory / "copy") == files, "rsync changed files")
    w.prove_way(4)


for way_name in ("pair", "tap_server", "tap_client"):
    add(f"{way_name}.rsync", needs(rsync, "rsync"), WAYS[way_name], limit_s=60)
    # Its server locks itself in with seccomp before anybody has logged in.
    add(f"{way_name}.ssh", needs(ssh, "sshd", "ssh", "scp", "rsync"), WAYS[way_name], limit_s=90)
