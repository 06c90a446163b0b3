"""GPT-2, data parallel: accord run -n 2 examples/gpt2_data_parallel.py gpt2.accord

Rank 0 exports a GPT-2 (small, with random weights; use from_pretrained for a real one). Every rank has the whole
model and answers its share of the prompts, batched. All ranks get all answers, and rank 0 compares them with those of
transformers.
"""

import sys

import numpy as np

import accord

PROMPTS = [[7 * i % 300 + 2 for i in range(length)] for length in (3, 9, 5, 14, 6)]
NEW_TOKENS = 12


def make_model():
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).eval()


def expected_answer(model, prompt: list[int]) -> list[int]:
    import torch

    ids = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0)
    return ids[0, len(prompt) :].tolist()


def main() -> None:
    path = sys.argv[1]
    with accord.Communicator.from_environment() as comm:
        if comm.rank == 0:
            model = make_model()
            accord.export(model, path=path)
        comm.barrier()
        answers = np.full((len(PROMPTS), NEW_TOKENS), -1, np.int64)
        with accord.load(path) as engine:
            language_model = accord.LanguageModel.create(engine)
            mine = range(comm.rank, len(PROMPTS), comm.size)
            streams = {index: language_model.submit(PROMPTS[index], max_new_tokens=NEW_TOKENS) for index in mine}
            for index, stream in streams.items():
                answers[index] = [event.token for event in stream if event.token is not None]
            language_model.stop()
        comm.all_reduce(answers, "max")
        if comm.rank == 0:
            equal = sum(answers[i].tolist() == expected_answer(model, prompt) for i, prompt in enumerate(PROMPTS))
            print(f"{equal} of {len(PROMPTS)} answers of {comm.size} ranks are those of transformers")


if __name__ == "__main__":
    main()
