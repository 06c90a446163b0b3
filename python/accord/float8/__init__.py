"""accord.export_checkpoint: packages of transformers' checkpoints whose weights are 8-bit floats already, bit for
bit."""
