"""Just-in-time compilation: torch.compile(model, backend="accord"), accord.compile, and the groups of compiled
engines. The guide is docs/compile.md."""
