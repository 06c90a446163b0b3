"""A diffusion UNet, data parallel: accord run -n 2 examples/unet_data_parallel.py unet.accord

Rank 0 exports a UNet2DConditionModel of diffusers (small, with random weights; use from_pretrained for a real one).
Every rank runs the whole network on its part of the batch, and all ranks get all results, equal to PyTorch's.
"""

import sys

import numpy as np

import accord

BATCH, SIZE, CHANNELS, TOKENS, CONTEXT = 4, 16, 4, 5, 32


def make_unet():
    import torch
    from diffusers import UNet2DConditionModel

    class Denoiser(torch.nn.Module):
        def __init__(self, unet: torch.nn.Module):
            super().__init__()
            self.unet = unet

        def forward(self, sample, timestep, context):
            return self.unet(sample, timestep, context).sample

    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=SIZE,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=CONTEXT,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    return Denoiser(unet).eval()


def make_inputs() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    sample = random.standard_normal((BATCH, CHANNELS, SIZE, SIZE), dtype=np.float32)
    timesteps = random.integers(0, 1000, BATCH)
    return [sample, timesteps, random.standard_normal((BATCH, TOKENS, CONTEXT), dtype=np.float32)]


def export(model, inputs: list[np.ndarray], path: str) -> None:
    import torch

    batch = {0: torch.export.Dim("batch", max=32)}
    tensors = tuple(map(torch.from_numpy, inputs))
    accord.export(model, tensors, path=path, dynamic_shapes=(batch, batch, batch))


def main() -> None:
    path, inputs = sys.argv[1], make_inputs()
    with accord.Communicator.from_environment() as comm:
        if comm.rank == 0:
            model = make_unet()
            export(model, inputs, path)
        comm.barrier()
        with accord.load(path) as engine:
            mine = [np.array_split(given, comm.size)[comm.rank] for given in inputs]
            part = np.array(engine.run(*mine)[0])
        counts = [len(rows) * part[0].size for rows in np.array_split(inputs[0], comm.size)]
        whole = np.empty(inputs[0].shape, np.float32)
        comm.all_gather_v(part.reshape(-1), whole.reshape(-1), counts)
        if comm.rank == 0:
            import torch

            with torch.no_grad():
                expected = model(*map(torch.from_numpy, inputs)).numpy()
            print(f"{BATCH} images on {comm.size} ranks, at most {np.abs(whole - expected).max():.1e} from PyTorch's")


if __name__ == "__main__":
    main()
