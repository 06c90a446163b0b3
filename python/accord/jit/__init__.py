"""Just in time compilation: torch.compile(model, backend="accord"), accord.compile, and the groups of what was compiled.
docs/compile.md is the guide."""
