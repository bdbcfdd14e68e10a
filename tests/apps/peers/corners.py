"""corners NAME server|client HOST PORT: one end of one corner of TCP's semantics, on plain sockets.

Each corner is a class: `server` gets the listener, `client` the address. They assert what Linux does; the kernel run of the
tests proves the assertions. `status` is the server's exit status where it is not 0, `fallen_back` the number of sockets that may
end up on the kernel; `environment` is what both ends run with beside; with `clears` they clear it all first.
"""

import os
import socket
import sys

from corner import ends, families, pointers, streams, urgent, waits

CORNERS = {
    name: value
    for module in (ends, streams, waits, families, pointers, urgent)
    for name, value in vars(module).items()
    if isinstance(value, type) and hasattr(value, "server")
}

if __name__ == "__main__":
    name, role, host, port = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if getattr(CORNERS[name], "clears", False):
        os.environ.clear()
    if role == "server":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        CORNERS[name].server(socket.create_server((host, port), family=family, backlog=128))
    else:
        CORNERS[name].client((host, port))
