"""accord.export_checkpoint: packages of transformers' checkpoints whose weights are already quantized, with the same
codes and scales."""
