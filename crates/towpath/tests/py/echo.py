"""Echoes what it gets, each connection in a thread of its own. Prints `ready`, then one line for each peer: its address and port.
Usage: echo.py ADDRESS PORT [stop]. With `stop` it reads nothing from the first connection."""
import socket
import sys
import threading

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(128)
print("ready", flush=True)


def echo(connection):
    while True:
        got = connection.recv(65536)
        if not got:
            break
        connection.sendall(got)
    connection.close()


stopped = []
while True:
    connection, peer = listener.accept()
    print("%s:%d" % peer[:2], flush=True)
    if sys.argv[3:] == ["stop"] and not stopped:
        stopped.append(connection)
        continue
    threading.Thread(target=echo, args=(connection,)).start()
