"""Takes one connection after the other and reads each to its end. Prints `ready`, then for each the number of bytes that came, and `end` or
the errno. Usage: sink.py ADDRESS PORT"""
import socket
import sys

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(16)
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    count, how = 0, "end"
    try:
        while got := connection.recv(65536):
            count += len(got)
    except OSError as error:
        how = error.errno
    connection.close()
    print(count, how, flush=True)
