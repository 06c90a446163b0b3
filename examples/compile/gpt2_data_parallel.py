"""GPT-2 on each rank, with a part of the batch each.

accord run -n 2 examples/compile/gpt2_data_parallel.py
"""

import torch
import torch.distributed as dist
from small_models import report, tokens
from transformers import GPT2Config, GPT2LMHeadModel

dist.init_process_group("gloo")
torch.manual_seed(0)
config = GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=64, vocab_size=160, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config).eval()
compiled = torch.compile(model, backend="accord", dynamic=True, options={"require_full_compilation": True})
batch = tokens(6, 12)
with torch.no_grad():
    part = compiled(batch.chunk(dist.get_world_size())[dist.get_rank()].contiguous()).logits
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    report("the whole batch", torch.cat(parts), model(batch).logits)
