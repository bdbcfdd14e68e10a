"""`towpath link` between the interfaces `va` and `vb`."""

import json
import signal

from lib.process import Process
from lib.world import plain_environment


def emulate(w, *flags):
    command = [w.towpath, "link", "packet:va", "packet:vb", "--json", *flags]
    link = Process("link", command, plain_environment(), w.directory)
    w.processes.append(link)
    link.until_prints("is up")
    return link


def finish(link):
    link.kill(signal.SIGINT)
    return json.loads(link.succeed(10).splitlines()[-1])
