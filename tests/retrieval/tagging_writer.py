"""Processes that tag items: python -m tests.retrieval.tagging_writer, then one line FILE NAME COUNT SIZE for each.

A process is forked for each line, and its id printed. It makes COUNT changes, each of which tags SIZE new items, and
writes a line to FILE.NAME when a change is stored.
"""

import os
import signal
import sys

from aureole.retrieval import Tags


def write(file: str, name: str, count: int, size: int) -> None:
    """Tag items, in as many changes."""
    log = os.open(f"{file}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Tags(file) as tags:
        for i in range(count):
            tags.add([f"{name}-{i}-{k}" for k in range(size)], "tag", name, author=name)
            os.write(log, b"%d\n" % i)


def main() -> None:
    """Fork a process for each line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended processes disappear
    for line in sys.stdin:
        file, name, count, size = line.rsplit(maxsplit=3)
        child = os.fork()
        if not child:
            try:
                write(file, name, int(count), int(size))
                os._exit(0)
            finally:
                os._exit(1)
        print(child, flush=True)


if __name__ == "__main__":
    main()
