"""Servers that hand a listening socket to other programs to accept from, or what they have accepted: xinetd, Dovecot, and what is read of a
connection that is reset."""

import os
import pwd
import sys

from lib.process import HANG_S, Skip, require
from lib.programs import needs
from lib.registry import add
from lib.world import PEERS, WAYS, find, free_port

HANDED = PEERS / "handed.py"

# xinetd

XINETD = """
defaults
{{
    log_type = FILE {directory}/xinetd.log
    instances = 50
    cps = 1000 1
}}
"""

SERVICE = """
service {name}
{{
    type = UNLISTED
    socket_type = stream
    protocol = tcp
    flags = {flags}
    bind = {listen}
    port = {port}
    wait = {wait}
    user = {user}
    server = {server}
    server_args = {arguments}
}}
"""


def xinetd(w):
    """One service accepts for itself, one connection each time it is started; of the other xinetd accepts, and a program gets each one."""
    listener, connection = free_port(), free_port()
    common = {"listen": w.way.listen, "user": pwd.getpwuid(os.geteuid()).pw_name, "flags": "IPv6" if ":" in w.way.listen else "IPv4"}
    parts = [
        XINETD.format(directory=w.directory),
        SERVICE.format(name="listener", port=listener, wait="yes", server=sys.executable, arguments=f"{HANDED} accept", **common),
        SERVICE.format(name="connection", port=connection, wait="no", server=find("tr"), arguments="a-z A-Z", **common),
    ]
    configuration = w.directory / "xinetd.conf"
    configuration.write_text("".join(parts))
    w.server("xinetd", ["xinetd", "-dontfork", "-f", configuration, "-pidfile", w.directory / "pid"], listener)
    rounds = 5
    for i in range(rounds):
        for port in (listener, connection):
            said = w.ask("ask", [sys.executable, HANDED, "ask", w.way.target, port, f"round {i}"])
            require(said.strip() == f"ROUND {i}", f"port {port} answered {said!r}")
    w.prove_way(2 * rounds)


# Dovecot

DOVECOT = """
base_dir = {directory}/run
state_dir = {directory}/state
log_path = {directory}/dovecot.log
protocols = imap pop3
listen = {listen}
ssl = no
disable_plaintext_auth = no
mail_location = maildir:{directory}/mail/%u
import_environment = TZ LD_PRELOAD TOWPATH_CONTROL TOWPATH_LOG
passdb {{
  driver = static
  args = password=word
}}
userdb {{
  driver = static
  args = uid=nobody gid=nogroup home={directory}/mail/%u
}}
service imap-login {{
  inet_listener imap {{
    port = {imap}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service pop3-login {{
  inet_listener pop3 {{
    port = {pop}
  }}
  inet_listener pop3s {{
    port = 0
  }}
}}
"""


def dovecot(w):
    """Its master listens and never accepts. A program of its own does for each log-in, with 64 MiB of address space and in a directory
    out of which no service is seen, and hands the connection to a third one."""
    if os.geteuid() != 0:
        raise Skip("Dovecot wants to be root")
    imap, pop = free_port(), free_port()
    # Mail is nobody's, who has to find it.
    mail = w.directory / "mail"
    mail.mkdir()
    for folder, mode in ((mail, 0o777), (w.directory, 0o711), (w.directory.parent, 0o711)):
        folder.chmod(mode)
    configuration = w.directory / "dovecot.conf"
    configuration.write_text(DOVECOT.format(directory=w.directory, listen=w.way.listen, imap=imap, pop=pop))
    w.server("dovecot", ["dovecot", "-F", "-c", configuration], imap)
    users, rounds = 4, 3
    said = w.ask("mail", [sys.executable, HANDED, "mail", w.way.target, imap, pop, users, rounds], 60)
    require("done" in said, said)
    w.prove_way(2 * users * rounds)


# Resets


def reset(what, expected):
    """What was sent before a reset is read, then ECONNRESET: each time."""
    rounds = 300

    def run(w):
        port = free_port()
        command = [sys.executable, PEERS / "resets.py"]
        server = w.server("server", [*command, "serve", w.way.listen, port, what, rounds], port)
        said = w.ask("client", [*command, "connect", w.way.target, port, what, rounds])
        served = server.succeed(HANG_S)
        seen = (served if what == "request" else said).strip()
        require(seen == str({expected: rounds}), f"read: {seen}")
        w.prove_way(rounds)

    return run


for way_name in ("pair", "relay", "tap_server"):
    for what in ("unread", "linger"):
        add(f"{way_name}.reset_behind_{what}", reset(what, "19 bytes, ECONNRESET"), WAYS[way_name], limit_s=60)
for way_name in ("pair", "relay"):
    add(f"{way_name}.reset_behind_request", reset("request", "2500 bytes, ECONNRESET"), WAYS[way_name], limit_s=60)

for way_name in ("pair", "relay", "tap_server"):
    add(f"{way_name}.xinetd", needs(xinetd, "xinetd"), WAYS[way_name], limit_s=60)
    add(f"{way_name}.dovecot", needs(dovecot, "dovecot"), WAYS[way_name], limit_s=90)
