"""A job on two nodes of Ray on this machine, of which one dies: python -m tests.scale.two_nodes SOURCE ENCODER OUT.

The table is named from a folder that the nodes do not run in. A process of its own, since a cluster inside another
process may keep it from ending. Prints what embed reported.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from ray.cluster_utils import Cluster

from aureole.scale import EmbedOptions, SourceSpec, build_lists, embed

_MEMORY = 100 * 2**20


def main(source: str, encoder: str, out: str) -> None:
    head = {"num_cpus": 1, "object_store_memory": _MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1, object_store_memory=_MEMORY)
    cluster.wait_for_nodes()
    os.chdir(Path(out).parent)  # the nodes stay where they were started
    out = Path(out).name
    arrived: list[int] = []

    def observe(now):
        arrived.append(now.done)
        if len(arrived) == 4:  # some chunks are in, most are not
            cluster.remove_node(second, allow_graceful=False)

    report = embed(
        SourceSpec(source, rows_per_chunk=64), encoder, out, workers=2, address=cluster.address,
        options=EmbedOptions(batch=32, commit_seconds=0.2), observer=observe,
    )  # fmt: skip
    nodes = len(cluster.list_all_nodes())
    build_lists(out, lists=12, probes=12, workers=2, address=cluster.address)
    cluster.shutdown()
    print(json.dumps({**asdict(report), "nodes": nodes, "chunks": len(arrived)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
