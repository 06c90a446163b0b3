"""`import torch` registers the backend "accord" at almost no cost. make bench NAME=torch measures the time."""

import json
import os
import subprocess
import sys

from accord_command import BUILD

PROGRAM = """
import json, sys, torch
imported = sorted(sys.modules)
import torch.distributed as dist
known = dist.is_backend_available("accord") and dist.Backend.ACCORD
before = "accord" in sys.modules
if known:
    dist.init_process_group("accord", store=dist.HashStore(), rank=0, world_size=1)
print(json.dumps([imported, known, before, "accord" in sys.modules]))
"""


def test_importing_torch_imports_one_small_module_of_accord_and_a_group_imports_the_rest():
    found = []
    for path in ("", str(BUILD / "python")):
        command = [sys.executable, "-c", PROGRAM]
        environment = os.environ | {"PYTHONPATH": path}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(json.loads(result.stdout.splitlines()[-1]))
    without, with_accord = found
    assert without[1:] == [False, False, False]
    assert with_accord[1:] == ["accord", False, True]
    assert set(with_accord[0]) - set(without[0]) == {"accord_autoload"}
