"""serial_load HOST PORT PATH COUNT: GETs, each on a connection of its own, one after the other. Prints how many answers bore which
`X-Server` header, as JSON."""

import collections
import http.client
import json
import sys

host, port, path, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
servers = collections.Counter()
for _ in range(count):
    connection = http.client.HTTPConnection(host, port, timeout=20)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    servers[answer.headers["X-Server"]] += 1
    connection.close()
print(json.dumps(servers))
