"""Adds calls to a traced graph."""

from __future__ import annotations

import torch
from torch._guards import detect_fake_mode


class Calls:
    """Adds calls before a node of a traced graph. They get the node's place in the model, and sizes as torch traces
    them."""

    def __init__(self, before: torch.fx.Node):
        self.before = before
        self.fake = detect_fake_mode([node.meta["val"] for node in before.graph.find_nodes(op="placeholder")])

    def __call__(self, op: torch._ops.OpOverload, *args: object) -> torch.fx.Node:
        graph = self.before.graph
        with graph.inserting_before(self.before), self.fake, torch.no_grad():
            node = graph.call_function(op, args)
            node.meta = {**self.before.meta, "val": op(*torch.fx.map_arg(args, lambda given: given.meta["val"]))}
        return node
