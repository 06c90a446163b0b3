"""The engine of a package as a torch module, called like the model that was saved."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import accord
from accord.jit.bound_engine import BoundEngine
from accord.jit.model_call import ModelCall, inputs_of
from accord.package.call_structure import CallStructure


class EngineModule(torch.nn.Module):
    """The result of Engine.module(), which documents it."""

    def __init__(self, engine: accord.Engine) -> None:
        super().__init__()
        self._bound = BoundEngine(engine, None)
        self._bound.owned_by(self)
        self._names = [info.name for info in engine.inputs]
        self._inputs: list[str | list] = list(self._names)  # those of the model's values that the engine takes
        self._outputs = [info.name for info in engine.outputs]
        self._call: ModelCall | None = None
        self._read_structure(Path(engine.path))

    @property
    def engine(self) -> accord.Engine:
        return self._bound.engine

    def forward(self, *args, **kwargs):
        """Returns the model's results. If the package does not specify their nesting: a single output as such,
        several as a tuple."""
        if self._call is not None and self._call.fits(args, kwargs):
            values = self._call.values_of(self._call.leaves_of(args, kwargs))
            return self._nested(values, inputs_of(self._inputs, values))
        values = self._by_name(args, kwargs)
        return self._nested(values, [values[name] for name in self._names])

    def _nested(self, values: dict, given: list):
        tensors = [torch.empty(one, dtype=torch.uint8) if isinstance(one, int) else one for one in given]
        outputs = self._bound.run([tensor.detach().contiguous() for tensor in tensors])
        if self._call is None:
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        values.update(zip(self._outputs, outputs, strict=True))
        return self._call.nested(self._call.structure.results(values))

    def _by_name(self, args: tuple, kwargs: dict) -> dict[str, torch.Tensor]:
        """Returns the engine's inputs by name."""
        given = dict(zip(self._names, args, strict=False))
        if (
            len(args) > len(self._names)
            or given.keys() & kwargs.keys()
            or given.keys() | kwargs.keys() != set(self._names)
        ):
            raise TypeError(f"accord: the engine takes {', '.join(self._names)}, each once, by position or by name")
        for name, value in (given | kwargs).items():
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"accord: {name} is a {type(value).__name__}; a module takes tensors")
        return given | kwargs

    def _read_structure(self, package: Path) -> None:
        """Reads the structure from the package, or from the program of which it is this rank's only part."""
        structure = _manifest_of(package).get("structure")
        if structure is not None:
            self._call = ModelCall(CallStructure.read(structure))
        for rank in _manifest_of(package.parent).get("ranks", ()):
            parts = rank["parts"]
            if len(parts) == 1 and parts[0]["path"] == package.name:
                self._call = ModelCall(CallStructure.read(rank))
                self._inputs, self._outputs = parts[0]["inputs"], parts[0]["outputs"]
                return


def _manifest_of(folder: Path) -> dict:
    """Returns {} if there is no manifest: the engine was built from weights in memory."""
    try:
        return json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return {}
