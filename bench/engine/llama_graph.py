"""Files of the benchmark's Llamas for llama.cpp, and for engines that take a plain graph: OpenVINO, onnxruntime,
AOTInductor.

    python -m bench.engine.llama_graph NAME PRECISION FILE      .gguf, .xml, .onnx or .pt2 says for whom

Run it with an interpreter that has torch, transformers and the packages of the peer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from bench.engine import llama


class Graph(nn.Module):
    """Takes token ids [1, T] and the keys and values of P tokens before them, [1, kv heads, P, head size] for each
    layer. Returns the logits [1, vocabulary] of the last token, and the keys and values of all P + T."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, config = model, model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head = config.hidden_size // self.heads
        steps = torch.arange(0, self.head, 2).float() / self.head
        self.register_buffer("frequencies", 1.0 / config.rope_parameters["rope_theta"] ** steps)

    def forward(self, ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        model = self.model.model
        before, count = past[0].shape[2], ids.shape[1]
        positions = torch.arange(before, before + count)
        angles = torch.cat([positions[:, None].float() * self.frequencies] * 2, -1)
        cosine, sine = angles.cos(), angles.sin()
        seen = torch.arange(before + count)[None, :] <= positions[:, None]
        x = model.embed_tokens(ids)
        present: list[Tensor] = []
        for layer, keys, values in zip(model.layers, past[::2], past[1::2], strict=True):
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            query = self.rotated(self.split(attention.q_proj(normed), self.heads), cosine, sine)
            key = self.rotated(self.split(attention.k_proj(normed), self.kv_heads), cosine, sine)
            keys = torch.cat([keys, key], 2)
            values = torch.cat([values, self.split(attention.v_proj(normed), self.kv_heads)], 2)
            present += [keys, values]
            output = scaled_dot_product_attention(query, self.repeated(keys), self.repeated(values), attn_mask=seen)
            x = x + attention.o_proj(output.transpose(1, 2).reshape(1, -1, self.heads * self.head))
            normed = layer.post_attention_layernorm(x)
            x = x + layer.mlp.down_proj(silu(layer.mlp.gate_proj(normed)) * layer.mlp.up_proj(normed))
        return linear(model.norm(x[:, -1]), self.model.lm_head.weight), *present

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(1, -1, heads, self.head).transpose(1, 2)

    def repeated(self, x: Tensor) -> Tensor:
        times = self.heads // self.kv_heads
        return x[:, :, None].expand(-1, -1, times, -1, -1).reshape(1, self.heads, -1, self.head)

    def rotated(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        first, second = x.float().chunk(2, -1)
        return (x.float() * cosine + torch.cat([-second, first], -1) * sine).to(x.dtype)


def examples(model: nn.Module, before: int, count: int) -> tuple[Tensor, ...]:
    config = model.config
    head = config.hidden_size // config.num_attention_heads
    past = [torch.zeros(1, config.num_key_value_heads, before, head, dtype=model.dtype)] * 2 * config.num_hidden_layers
    return torch.arange(count)[None], *past


def names(model: nn.Module, kind: str) -> list[str]:
    return [f"{kind}.{k}.{what}" for k in range(model.config.num_hidden_layers) for what in ("key", "value")]


def write_openvino(model: nn.Module, precision: str, path: Path) -> None:
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation

    converted = openvino.convert_model(Graph(model), example_input=examples(model, 2, 3))
    past, present = names(model, "past"), names(model, "present")
    for port, name in zip(converted.inputs, ["ids", *past], strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(converted.outputs, ["logits", *present], strict=True):
        port.get_tensor().set_names({name})
    config = model.config
    head = config.hidden_size // config.num_attention_heads
    shapes = {name: [1, config.num_key_value_heads, -1, head] for name in past}
    converted.reshape({"ids": [1, -1], **shapes})
    apply_make_stateful_transformation(converted, dict(zip(past, present, strict=True)))
    if precision.startswith("int"):
        import nncf

        mode = nncf.CompressWeightsMode.INT8_SYM if precision == "int8" else nncf.CompressWeightsMode.INT4_SYM
        more = {} if precision == "int8" else {"group_size": 32, "all_layers": True}
        converted = nncf.compress_weights(converted, mode=mode, **more)
    openvino.save_model(converted, path, compress_to_fp16=False)


def write_onnx(model: nn.Module, path: Path) -> None:
    past, present = names(model, "past"), names(model, "present")
    axes = {name: {2: "before"} for name in past} | {name: {2: "all"} for name in present} | {"ids": {1: "count"}}
    torch.onnx.export(
        Graph(model),
        examples(model, 2, 3),
        str(path),
        input_names=["ids", *past],
        output_names=["logits", *present],
        dynamic_axes=axes,
        dynamo=False,
    )


def write_package(model: nn.Module, path: Path) -> None:
    """AOTInductor: one package for a prompt, and one for a token after others."""
    for case, before, count in (("decode", llama.CONTEXT, 1), ("prefill", 0, llama.PREFILL)):
        exported = torch.export.export(Graph(model), examples(model, before, count))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path.with_suffix(f".{case}.pt2")))
    path.touch()


def write_gguf(model, precision: str, path: Path) -> None:
    """llama.cpp's file: the same weights, in the format of that precision."""
    import gguf

    config = model.config
    kinds = gguf.GGMLQuantizationType
    kind = {"fp32": kinds.F32, "bf16": kinds.BF16, "int8": kinds.Q8_0, "int4": kinds.Q4_0}[precision]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for full, weights in model.named_parameters():
        module = full.removesuffix(".weight")
        if module in outer:
            short = name = outer[module]
        else:
            _, _, layer, inner = module.split(".", 3)
            short = names[inner]
            name = f"blk.{layer}.{short}"
        values = weights.detach().to(torch.float32).numpy()
        if short in heads:  # llama.cpp rotates adjacent elements, transformers halves of a head
            rows, columns = values.shape
            values = values.reshape(heads[short], 2, -1, columns).swapaxes(1, 2).reshape(rows, columns)
        stored = kind if values.ndim > 1 else kinds.F32
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    name, precision, file = sys.argv[1:]
    path = Path(file)
    model = llama.model_of(name, precision)
    with torch.no_grad():
        if path.suffix == ".gguf":
            write_gguf(model, precision, path)
        elif path.suffix == ".xml":
            write_openvino(model, precision, path)
        elif path.suffix == ".onnx":
            write_onnx(model, path)
        else:
            write_package(model, path)


if __name__ == "__main__":
    main()
