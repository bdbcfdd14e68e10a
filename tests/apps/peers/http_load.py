"""http_load HOST PORT PATH SHA256 THREADS REQUESTS SECONDS: GETs for so long, REQUESTS on each connection.

Prints one line of JSON: how many answers were right, what went wrong, and which `X-Server` headers were seen.
"""

import collections
import hashlib
import http.client
import json
import sys
import threading
import time

host, port, path, expected = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
threads, requests, seconds = map(int, sys.argv[5:8])
end = time.monotonic() + seconds
answers, connections, failures = collections.Counter(), collections.Counter(), collections.Counter()


def ask(connection):
    connection.request("GET", path)
    answer = connection.getresponse()
    digest = hashlib.sha256(answer.read()).hexdigest()
    assert answer.status == 200, f"status {answer.status}"
    assert digest == expected, "the body is another"
    return answer.headers.get("X-Server")


def talk(servers):
    """One connection."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        for _ in range(requests):
            servers[ask(connection)] += 1
    except (OSError, http.client.HTTPException, AssertionError) as problem:
        failures[f"{problem}" or repr(problem)] += 1
    finally:
        connection.close()


def load(number):
    mine = collections.Counter()
    while time.monotonic() < end:
        talk(mine)
        connections[number] += 1
    answers.update(mine)


running = [threading.Thread(target=load, args=(number,)) for number in range(threads)]
for thread in running:
    thread.start()
for thread in running:
    thread.join()
print(json.dumps({"answers": answers.total(), "connections": connections.total(), "failures": failures, "servers": answers}))
