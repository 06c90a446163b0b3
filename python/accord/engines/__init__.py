"""Loads engines and saved programs and uses them: accord.load, accord.generate, accord.compare, accord.Program, and
new weights for a loaded engine."""
