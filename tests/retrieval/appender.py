"""A process whose children append batches until they are killed: python -m tests.retrieval.appender ADDRESS.

For each line on its input, a round's number, it forks a child; the child prints its process id, then the number of each
batch when the index has taken it. Forked, since starting anew would take seconds each time.
"""

import os
import sys

import torch

import aureole as au
from aureole.retrieval import CredibleIndex

BATCH, DIM = 50, 8


def work(where: str, round_: int) -> None:
    index = CredibleIndex.open(where)
    rng = torch.Generator().manual_seed(round_)
    for batch in range(10_000):
        mu = torch.nn.functional.normalize(torch.randn(BATCH, DIM, generator=rng), dim=-1)
        index.append(au.VonMisesFisher(mu, 5.0), [f"{round_}/{batch}/{i}" for i in range(BATCH)])
        os.write(1, f"{batch}\n".encode())


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.write(1, f"pid {os.getpid()}\n".encode())
            work(sys.argv[1], int(line))
        os.waitpid(child, 0)
        os.write(1, b"end\n")


if __name__ == "__main__":
    main()
