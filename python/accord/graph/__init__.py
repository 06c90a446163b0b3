"""Turns a program that torch has traced into the graph of an engine: its ops, sizes and weights, and errors that name
places in the model. The exporter and torch.compile's backend use it."""
