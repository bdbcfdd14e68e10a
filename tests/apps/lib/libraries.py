"""What the libraries that programs load ask of the system's C library."""

import re
import subprocess

from lib.process import require
from lib.registry import test
from lib.world import find

# The oldest glibc that the libraries run with.
FLOOR = (2, 17)
LIBRARIES = ("libtowpath_preload.so", "libtowpath.so")


def asked_for(library):
    """The symbols that a library must have, each with its version of glibc. It does without a weak one."""
    shown = subprocess.run([find("readelf"), "--dyn-syms", "--wide", library], capture_output=True, text=True, check=True).stdout
    for line in shown.splitlines():
        if " UND " in line and " WEAK " not in line and (found := re.search(r" (\S+)@+GLIBC_([0-9.]+)", line)):
            yield found[1], tuple(int(part) for part in found[2].split("."))


def needed(library):
    shown = subprocess.run([find("readelf"), "--dynamic", "--wide", library], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", shown)


@test("libraries.run_with_glibc_2_17", kernel=False, own_service=True)
def run_with_old_glibc(w):
    for name in LIBRARIES:
        library = w.options.bin_dir / name
        symbols = dict(asked_for(library))
        require(symbols.get("dlsym") and len(symbols) > 20, f"{name}: {symbols}")
        newer = {symbol: version for symbol, version in symbols.items() if version > FLOOR}
        require(not newer, f"{name} asks for newer versions than glibc {FLOOR} has: {newer}")
        # Where these functions were before glibc 2.34.
        require({"libdl.so.2", "libpthread.so.0", "libc.so.6"} <= set(needed(library)), f"{name} needs {needed(library)}")
