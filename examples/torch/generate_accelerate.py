"""Hugging Face accelerate over accord: trains a little, then each rank continues some of the prompts.

accord run -n 2 examples/torch/generate_accelerate.py

accelerate knows torch's own backends by name, and accepts an existing process group.
"""

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from accelerate.utils import gather_object
from character_model import batch, generate, loss_of, make_model

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
steps = parser.parse_args().steps

dist.init_process_group("accord")
accelerator = Accelerator(cpu=True)
bare = make_model()
model, optimizer = accelerator.prepare(bare, torch.optim.AdamW(bare.parameters(), lr=3e-3))
for step in range(steps):
    characters, following = batch(step, accelerator.process_index)
    loss = loss_of(model(characters), following)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % 20 == 0:
        accelerator.print(f"step {step + 1} loss {accelerator.reduce(loss.detach(), 'mean').item():.4f}", flush=True)

prompts = ["The ", "A class ", "If the ", "Python ", "An object "]
with PartialState().split_between_processes(prompts) as mine:
    texts = gather_object([generate(accelerator.unwrap_model(model), prompt, 20) for prompt in mine])
for text in texts:
    accelerator.print(repr(text))
dist.destroy_process_group()
