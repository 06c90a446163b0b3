"""The soak test of a language model's requests: random requests from several threads, cancellations, and killed
ranks.

    scripts/soak --requests 10000 --seed 1

Episodes of some hundred requests are played on two or three rank processes. In most episodes one process is killed
and replaced. The test checks that finished answers are those of transformers (sampled ones: always the same), that an
error names the killed rank, that nothing hangs, and that no process holds more resources than before. One process
lives for the whole test.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from processes import LONGEST, Process, SoakFailed, gather, shared_names, soak_until, weigh

RANKS = 4  # processes, two or three of which play
PROMPTS = 40
LONGEST_ANSWER = 32
VOCABULARY = 320
PACKAGE, KNOWN = "model.accord", "known.json"


def make_model(folder: Path) -> None:
    """Writes the package of a small Llama, and prompts with the tokens that transformers generates after them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import accord

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        vocab_size=VOCABULARY,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config).eval()
    accord.export(model, path=folder / PACKAGE, sharding="auto")
    choice = random.Random(0)
    known = []
    with torch.inference_mode():
        for number in range(PROMPTS):
            # Some prompts share a prefix, which is then found in the cache.
            common = [7 * k % VOCABULARY for k in range(choice.choice([0, 0, 40]))]
            prompt = common + [choice.randrange(VOCABULARY) for _ in range(1 + number * 2 % 83)]
            answer, cache = [], None
            tokens = prompt
            while len(answer) < LONGEST_ANSWER:
                output = model(torch.tensor([tokens]), past_key_values=cache, use_cache=True)
                best = output.logits[0, -1].topk(2)
                # Sums in another order may prefer the second-best token.
                if answer and best.values[0] - best.values[1] < 1e-4:
                    break
                tokens, cache = [int(best.indices[0])], output.past_key_values
                answer += tokens
            known.append({"prompt": prompt, "answer": answer})
    (folder / KNOWN).write_text(json.dumps(known))


class Soak:
    def __init__(self, seed: int, folder: Path, model: Path) -> None:
        self.seed, self.folder, self.model = seed, folder, model
        self.started = 0
        self.processes = [self.start() for _ in range(RANKS)]
        self.counts: collections.Counter[str] = collections.Counter()
        self.sampled: dict[str, list[int]] = {}
        self.longest = 0.0
        self.description = ""

    def start(self) -> Process:
        self.started += 1
        return Process(self.folder, self.started, "requests_rank.py")

    def episode(self, number: int) -> None:
        choice = random.Random(f"{self.seed}/{number}")
        size = choice.choice([2, 2, 3])
        kills = choice.random() < 0.7
        chosen = [self.processes[0], *choice.sample(self.processes[1:], size - 1)]
        # The first process is never at fault, so that its memory reveals leaks.
        victim = chosen[1] if kills else None
        choice.shuffle(chosen)
        lost = chosen.index(victim) if victim else None
        requests = choice.choice([100, 300])
        notify_at = choice.randrange(requests) if kills else -1
        self.description = f"episode {number}: {size} ranks, {requests} requests, rank {lost} killed at {notify_at}"
        began = time.monotonic()
        deadline = began + LONGEST
        gather([process for process in chosen if process.is_new], "ready", deadline)
        store = self.folder / f"store{number}"
        for rank, process in enumerate(chosen):
            process.is_new = False
            process.send_episode(
                {
                    "store": str(store),
                    "rank": rank,
                    "size": size,
                    "seed": f"{self.seed}/{number}",
                    "package": str(self.model / PACKAGE),
                    "known": str(self.model / KNOWN),
                    "requests": requests,
                    "notify_at": notify_at,
                }
            )
        gather(chosen, "began", deadline)
        if kills:
            if choice.random() < 0.9:  # otherwise the kill comes while the engine is being loaded
                gather(chosen[:1], "reached", deadline)
            time.sleep(choice.random() * 0.02)
            victim.child.send_signal(signal.SIGKILL)
        results = gather(chosen, "resources", deadline)
        self.longest = max(self.longest, time.monotonic() - began)
        for rank, process in enumerate(chosen):
            self.judge(rank, lost, results[rank], size)
            weigh(process, results[rank])
            if results[rank] is None or process is victim:
                process.end()
                self.processes[self.processes.index(process)] = self.start()
        self.counts["episodes in which a rank was killed" if kills else "episodes without a kill"] += 1
        shutil.rmtree(store)

    def judge(self, rank: int, lost: int | None, result: dict | None, size: int) -> None:
        if result is None:
            if rank != lost:
                raise SoakFailed(f"rank {rank} ended")
            return
        if "error" in result:
            raise SoakFailed(f"rank {rank}: {result['error']}")
        if result.get("wrong"):
            raise SoakFailed(f"rank {rank} saw {result['wrong']}")
        for error in result["errors"]:
            if lost is None or error[0] != "PeerLost" or error[1] != [lost]:
                raise SoakFailed(f"rank {rank} saw {error}")
        for kind in ("finished", "cancelled", "lost", "tokens"):
            self.counts[f"requests {kind}" if kind != "tokens" else kind] += result.get(kind, 0)
        for name, tokens in result.get("sampled", {}).items():
            known = self.sampled.setdefault(f"{size} {name}", tokens)
            common = min(len(known), len(tokens))
            if known[:common] != tokens[:common]:
                raise SoakFailed(f"rank {rank}: {name} gave {tokens}, and {known} before")
            self.sampled[f"{size} {name}"] = max(known, tokens, key=len)

    def submitted(self) -> int:
        return sum(count for name, count in self.counts.items() if name.startswith("requests"))

    def end(self) -> None:
        for process in self.processes:
            process.end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak --requests", description="random requests to a language model")
    parser.add_argument("--requests", type=int, required=True, help="how many")
    parser.add_argument("--seed", type=int, default=None, help="what follows from it is the same every time")
    parser.add_argument("--model", type=Path, default=None, help="a folder for the model, which is kept there")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(1 << 31)
    print(f"soak: {given.requests} requests, --seed {seed}", flush=True)
    before = shared_names()
    with tempfile.TemporaryDirectory(prefix="accord-soak-") as folder:
        model = given.model or Path(folder)
        if not (model / KNOWN).exists():
            make_model(model)
        soak = Soak(seed, Path(folder), model)
        return soak_until(
            soak,
            is_enough=lambda: soak.submitted() >= given.requests,
            number_of=lambda episode: episode,
            done=lambda: f"{soak.submitted()} requests",
            seed=seed,
            before=before,
        )


if __name__ == "__main__":
    sys.exit(main())
