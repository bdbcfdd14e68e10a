"""two_sets ROUNDS: two forked processes have two listeners that defer accepts (TCP_DEFER_ACCEPT), and a pipe, in an epoll set of their own. One
waits in its set. The other has made its set and waits elsewhere, as a process that waits for a mutex. A connection must wake the first."""

import os
import select
import signal
import socket
import subprocess
import sys

CLIENT = """
import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
c.settimeout(20)
c.send(b"x")
sys.exit(c.recv(3) != b"ok")
"""


def listener():
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
    made.listen(511)
    made.setblocking(False)
    return made


def serve(listeners, ready, waits):
    reader, _writer = os.pipe()
    watched = select.epoll()
    for fd in (reader, *(listener.fileno() for listener in reversed(listeners))):
        watched.register(fd, select.EPOLLIN)
    os.write(ready, b"r")
    if not waits:
        signal.pause()
    while True:
        for fd, _ in watched.poll(-1):
            try:
                connection, _ = next(listener for listener in listeners if listener.fileno() == fd).accept()
            except BlockingIOError:
                continue
            connection.setblocking(True)
            connection.recv(9)
            connection.send(b"ok")
            connection.close()


answers = 0
for _ in range(int(sys.argv[1])):
    listeners = [listener(), listener()]
    reader, writer = os.pipe()
    children = []
    for waits in (True, False):
        child = os.fork()
        if child == 0:
            serve(listeners, writer, waits)
        children.append(child)
        # In this order: the process that does not wait watches the listeners last.
        os.read(reader, 1)
    port = listeners[0].getsockname()[1]
    answers += subprocess.run([sys.executable, "-c", CLIENT, str(port)], check=False).returncode == 0
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for each in listeners:
        each.close()
print(f"{answers} answers")
