"""A Llama small enough for a test, with random weights. Requires torch and transformers when it is called."""

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 64,
}


def make_small_llama(seed: int = 0, **sizes: object):
    """Creates the model. sizes: values that replace those of SIZES, and any other argument of the configuration."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**(SIZES | sizes))).eval()
