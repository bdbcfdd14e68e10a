"""Sends as much as it can over so many connections, until they end. Usage: bulk.py ADDRESS PORT CONNECTIONS"""
import socket
import sys
import threading


def send(connection):
    piece = bytes(65536)
    try:
        while True:
            connection.sendall(piece)
    except OSError:
        pass


peer = (sys.argv[1], int(sys.argv[2]))
connections = [socket.create_connection(peer) for _ in range(int(sys.argv[3]))]
print("ready", flush=True)
for connection in connections:
    threading.Thread(target=send, args=(connection,)).start()
