"""accord.export: traces a model, decides how its weights are divided, checks the result against PyTorch, and writes
the package."""
