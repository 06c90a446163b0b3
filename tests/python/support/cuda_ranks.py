"""Rank processes that share one GPU: NCCL accepts several ranks on one GPU if it takes each for a host of its own."""

import os

from ranks import Ranks


def started(size, program):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    environment = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "CUDA_VISIBLE_DEVICES": visible}
    if "CUDA_TEST_NCCL" in os.environ:
        environment["ACCORD_NCCL"] = os.environ["CUDA_TEST_NCCL"]
    hosts = [{"NCCL_HOSTID": f"accord-rank-{rank}"} for rank in range(size)]
    return Ranks(size, environment=environment, environments=hosts, program=program)
