"""memcache_client HOST PORT CONNECTIONS KEYS: stores and reads back KEYS values on each of CONNECTIONS connections at once."""

import random
import selectors
import socket
import sys

host, port, connections, keys = sys.argv[1], *map(int, sys.argv[2:5])


def value(number, key):
    length = (10, 100, 1000, 10_000, 100_000)[key % 5]
    return random.Random(number * 1000 + key).randbytes(length)


def talk(number):
    """A conversation as a generator: yields what to send and how its answer ends; gets the answer."""
    for key in range(keys):
        data = value(number, key)
        answer = yield b"set %d:%d 0 0 %d\r\n%s\r\n" % (number, key, len(data), data), b"STORED\r\n"
        assert answer == b"STORED\r\n", answer
    for key in range(keys):
        data = value(number, key)
        answer = yield b"get %d:%d\r\n" % (number, key), b"END\r\n"
        assert answer == b"VALUE %d:%d 0 %d\r\n%s\r\nEND\r\n" % (number, key, len(data), data), (number, key, len(answer))


class Client:
    def __init__(self, number):
        self.socket = socket.create_connection((host, port))
        self.socket.setblocking(False)
        self.talk = talk(number)
        self.to_send, self.ending = next(self.talk)
        self.got = bytearray()

    def step(self):
        """True while the conversation goes on."""
        if self.to_send:
            try:
                self.to_send = self.to_send[self.socket.send(self.to_send):]
            except BlockingIOError:
                pass
            return True
        try:
            part = self.socket.recv(65536)
        except BlockingIOError:
            return True
        assert part, "memcached closed the connection"
        self.got += part
        # A value may end like an answer: then it goes on, because the length does not fit.
        if self.got.endswith(self.ending) and self.complete():
            try:
                self.to_send, self.ending = self.talk.send(bytes(self.got))
            except StopIteration:
                return False
            self.got.clear()
        return True

    def complete(self):
        if not self.got.startswith(b"VALUE "):
            return True
        head = self.got[: self.got.index(b"\r\n")]
        return len(self.got) == len(head) + 2 + int(head.split()[3]) + 7

    def events(self):
        return selectors.EVENT_WRITE if self.to_send else selectors.EVENT_READ


selector = selectors.DefaultSelector()
for i in range(connections):
    client = Client(i)
    selector.register(client.socket, client.events(), client)
while selector.get_map():
    for chosen, _ in selector.select():
        client = chosen.data
        if not client.step():
            selector.unregister(client.socket)
            client.socket.close()
        elif client.events() != chosen.events:
            selector.modify(client.socket, client.events(), client)
