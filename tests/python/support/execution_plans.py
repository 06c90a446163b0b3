"""A plan in MSCCL++'s format."""


def execution_plan() -> dict:
    """Returns an all_reduce of two ranks in MSCCL++'s format. Each rank puts its input into the other's scratch
    buffer as packets."""

    def gpu(rank: int) -> dict:
        return {
            "id": rank,
            "input_chunks": 1,
            "output_chunks": 1,
            "scratch_chunks": 2,
            "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}],
            "remote_buffers": [{"rank": 1 - rank, "type": "s", "access_channel_types": ["memory"]}],
            "semaphores": [],
            "threadblocks": [
                {
                    "id": 0,
                    "channels": [{"channel_type": "memory", "channel_ids": [0]}],
                    "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
                    "ops": [
                        {
                            "name": "ppkt",
                            "channel_type": "memory",
                            "channel_ids": [0],
                            "src_buff": [{"type": "i", "index": 0, "size": 1}],
                            "dst_buff": [{"buffer_id": 0, "index": rank, "size": 1}],
                        },
                        {
                            "name": "repkt",
                            "src_buff": [
                                {"type": "i", "index": 0, "size": 1},
                                {"type": "s", "index": 1 - rank, "size": 1},
                            ],
                            "dst_buff": [{"type": "o", "index": 0, "size": 1}],
                        },
                    ],
                }
            ],
        }

    return {
        "name": "two_ranks",
        "collective": "allreduce",
        "protocol": "LL",
        "inplace": False,
        "gpus": [gpu(0), gpu(1)],
    }
