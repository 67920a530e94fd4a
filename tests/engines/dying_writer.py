"""A process that is killed while it writes a FAISS gallery: python -m tests.engines.dying_writer PATH."""

import os
import signal
import sys

from aureole.caps import CredibleIndex


def main(where: str) -> None:
    """Build an index, and die when half of the new file is written."""

    def dies(handle: int) -> None:
        os.ftruncate(handle, os.fstat(handle).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = dies
    CredibleIndex.open(where).build("ivf", lists=4)


if __name__ == "__main__":
    main(*sys.argv[1:])
