"""A service of its own for a suite, and what it has counted."""

import json
import subprocess
import time
from pathlib import Path


class Service:
    """`towpath up` in a directory of its own."""

    def __init__(self, towpath, folder):
        self.towpath, self.control = towpath, Path(folder) / "control.sock"
        self.log = Path(folder) / "log"
        self.process = subprocess.Popen(
            [towpath, "up", "--control", self.control], stdout=subprocess.DEVNULL, stderr=self.log.open("wb")
        )
        end = time.monotonic() + 10
        while not self.control.exists():
            assert self.process.poll() is None and time.monotonic() < end, "the service did not start"
            time.sleep(0.02)

    def prefix(self):
        return [str(self.towpath), "run", "--control", str(self.control), "--"]

    def counts(self):
        out = subprocess.run([self.towpath, "stat", "--control", self.control, "--json"], capture_output=True, check=True)
        return json.loads(out.stdout)

    def is_alive(self):
        return self.process.poll() is None

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
