"""A Llama sharded over the ranks of several hosts, from packages, checked against PyTorch. On host H of 2, which meet
at host 0:

    accord run --nnodes 2 --node-rank H -n 2 --rdzv-endpoint HOST0:29400 examples/compile/llama_over_hosts.py FOLDER

Hosts share no folder: the first rank of each host writes the package, with the same weights, and every rank reads its
part of it.
"""

import os
import sys

import numpy as np
import small_models
import torch

import accord

NEW_TOKENS = 16

package = f"{sys.argv[1]}/llama_of_host_{os.environ['GROUP_RANK']}.accord"
model = small_models.llama()
prompt = small_models.tokens(1, 20)
rows = np.arange(prompt.numel())
with accord.Communicator.from_environment() as comm:
    if os.environ["LOCAL_RANK"] == "0":
        accord.export(model, path=package, sharding="auto")
    comm.barrier()
    with torch.no_grad(), accord.load(package, {"tp": comm}) as engine:
        (logits,) = engine.run(prompt[0].numpy(), rows, rows)
        small_models.report("logits", torch.from_numpy(np.array(logits)), model(prompt).logits[0], comm.rank)
        language_model = accord.LanguageModel.create(engine)
        if comm.rank > 0:
            language_model.follow()
        else:
            stream = language_model.submit(prompt[0].tolist(), max_new_tokens=NEW_TOKENS)
            tokens = [event.token for event in stream if event.token is not None]
            language_model.stop()
            ids = prompt
            for _ in range(NEW_TOKENS):
                ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
            equal = tokens == ids[0, prompt.numel() :].tolist()
            print(f"greedy text of {comm.size} ranks equal to PyTorch's: {equal}")
