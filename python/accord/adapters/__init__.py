"""Packages whose language model has adapters (LoRA), from which each request chooses."""
