"""Connections before, while and after the service is stopped, each with one request. Waits for a line before each step."""
import socket
import sys
import threading

COUNT = 20


def serve(s):
    while data := s.recv(64):
        s.sendall(data)


def accept(listener):
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def listen():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    return listener.getsockname()


def request(sockets):
    for s in sockets:
        s.sendall(b"q")
        assert s.recv(1) == b"q"
    return len(sockets)


# A listener for each connection: no right to connect without the service is left over.
places = [listen() for _ in range(3 * COUNT)]
dial = lambda: [socket.create_connection(places.pop()) for _ in range(COUNT)]
old = dial()
for _ in range(3):
    request(old)
print("connected", flush=True)
sys.stdin.readline()
print("old", request(old), flush=True)
new = dial()
print("new", request(new), flush=True)
sys.stdin.readline()
# The first question after the pause brings the late answer.
print("old", request(old + new) - COUNT, flush=True)
print("again", request(dial()), flush=True)
sys.stdin.readline()
