"""Image and sound models on simulated GPUs (in host memory), compared with PyTorch: the models' own classes with
small sizes and random weights."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
diffusers = pytest.importorskip("diffusers")

from tiers import mostly_slow  # noqa: E402

import accord  # noqa: E402

HEADS = {"num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96}
SOUND = {
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "num_mel_bins": 16,
}
BLOCKS = {"block_out_channels": (32, 64), "norm_num_groups": 8}


class Only(torch.nn.Module):
    """Calls a model through `call` and returns the output that `call` selects."""

    def __init__(self, model, call) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs):
        return self.call(self.model, *inputs)


def vit():
    model = transformers.ViTModel(transformers.ViTConfig(hidden_size=64, image_size=32, patch_size=8, **HEADS))
    return Only(model, lambda model, x: model(x).last_hidden_state), [(1, 3, 32, 32)]


def whisper_encoder():
    model = transformers.WhisperModel(transformers.WhisperConfig(d_model=64, max_source_positions=20, **SOUND)).encoder
    return Only(model, lambda model, x: model(x).last_hidden_state), [(1, 16, 40)]


def unet():
    model = diffusers.UNet2DConditionModel(
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=4,
        **BLOCKS,
    )
    return Only(model, lambda model, x, text: model(x, 3, text).sample), [(1, 4, 8, 8), (1, 5, 32)]


def vae_decoder():
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    model = diffusers.AutoencoderKL(latent_channels=4, **blocks, **BLOCKS)
    return Only(model, lambda model, x: model.decode(x).sample), [(1, 4, 4, 4)]


def run_on_a_device(_, path, package, inputs):
    from host_devices import library

    import accord

    library(path)
    with accord.load(package, device="cuda") as engine:
        return [np.from_dlpack(engine.run(*inputs)[0]).copy() for _ in range(2)]  # the second run is a captured graph


@pytest.mark.parametrize("make", mostly_slow([vit, whisper_encoder, unet, vae_decoder], vit, unet))
def test_a_model_matches_pytorch(make, device_process, tmp_path):
    torch.manual_seed(0)
    model, shapes = make()
    inputs = tuple(torch.randn(shape) for shape in shapes)
    package = accord.export(model.eval(), inputs, path=tmp_path / "model.accord")
    with torch.no_grad():
        right = model(*inputs).numpy()
    for given in device_process(run_on_a_device, str(package), [x.numpy() for x in inputs]):
        np.testing.assert_allclose(given, right, rtol=0, atol=1e-5 * np.abs(right).max())
