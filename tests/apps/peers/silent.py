"""silent HOST PORT PATH ROUNDS: in each round one connection says nothing while another asks and is answered. Then the first one asks."""

import http.client
import sys

host, port, path, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])


def ask(connection):
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status


for _ in range(rounds):
    silent, speaking = (http.client.HTTPConnection(host, port, timeout=20) for _ in range(2))
    silent.connect()
    ask(speaking)
    ask(silent)
    speaking.close()
    silent.close()
