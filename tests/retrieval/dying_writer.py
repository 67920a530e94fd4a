"""A process that is killed while it writes a FAISS snapshot: python -m tests.retrieval.dying_writer PATH FILE."""

import os
import signal
import sys

from aureole.retrieval import CredibleIndex

FILES = ["rows", "index", "manifest"]  # in the order in which a snapshot writes them


def main(where: str, file: str) -> None:
    """Build an index, and die when half of a file of the snapshot is written."""
    fsync, files = os.fsync, iter(FILES)

    def dies(handle: int) -> None:
        if next(files) == file:
            os.ftruncate(handle, os.fstat(handle).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(handle)

    os.fsync = dies
    CredibleIndex.open(where).build("ivf", lists=4)


if __name__ == "__main__":
    main(*sys.argv[1:])
