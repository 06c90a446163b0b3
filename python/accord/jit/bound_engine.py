"""Engines and the groups that they are bound to, temporarily or permanently.

An engine compiled over process groups of torch.distributed is bound to these groups unless others are requested. An
engine from a package keeps the communicators that it was loaded with. A request binds existing engines at once.
Leaving a block only unbinds them, which does not involve other ranks; an engine is bound again at its next run.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import itertools
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

import accord
from accord.process_groups import Group, SharedCommunicator, groups_argument, place_mismatch, shared_communicator

Groups = Mapping[str, Group] | Group


@dataclass(eq=False)
class _Wish:
    """A request to bind engines to groups. modules: None for all engines. The request ends when the last of its
    modules is gone.
    """

    groups: Groups
    modules: list[weakref.ref] | None
    lasting: bool = False

    def applies_to(self, engine: BoundEngine) -> bool:
        if self.modules is None:
            return bool(engine.places)
        return any(engine.belongs_to(module) for module in (one() for one in self.modules) if module is not None)


_lock = threading.RLock()
_wishes: list[_Wish] = []  # the last request that applies counts
_changes = 0  # number of changes to _wishes
_engines: weakref.WeakSet[BoundEngine] = weakref.WeakSet()
_numbers = itertools.count()


class BoundEngine:
    """An accord.Engine, its groups, and the request that it is bound by. Several threads may run it."""

    def __init__(
        self,
        engine: accord.Engine,
        own_groups: Mapping[str, Group] | None,
        tensors: Iterable[torch.Tensor] = (),
        contexts: Iterable[accord.EngineContext] = (),
    ) -> None:
        """own_groups: the groups that it is bound to without a request; None if there are none. tensors: its weights,
        which identify the modules it belongs to. contexts: contexts that already exist for it."""
        self.engine = engine
        self.places = dict(engine.groups)
        self.number = next(_numbers)  # order of creation, which is the same on all ranks
        self._own_groups = own_groups
        self._tensors = frozenset(id(tensor) for tensor in tensors)
        self._wish: _Wish | None = None
        self._held: list[SharedCommunicator] = []
        self._seen = -1  # value of _changes at the last bind()
        self._contexts: list[accord.EngineContext] = list(contexts)
        self._module: weakref.ref | None = None
        with _lock:
            _engines.add(self)

    def owned_by(self, module: torch.nn.Module) -> None:
        """Sets the module whose forward() is this engine."""
        self._module = weakref.ref(module)

    def belongs_to(self, module: torch.nn.Module) -> bool:
        owner = self._module() if self._module is not None else None
        if owner is not None and owner in _modules_within(module):
            return True
        return not self._tensors.isdisjoint(_tensors_of(module))

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs the engine and returns its outputs in memory of their own."""
        if self._seen != _changes:
            self.bind()
        try:
            context = self._contexts.pop()
        except IndexError:
            context = self.engine.create_context()
        outputs = [torch.from_dlpack(output).clone() for output in context.run(*inputs)]
        self._contexts.append(context)
        return outputs

    def bind(self) -> None:
        """Binds the engine to the groups currently requested. Collective over these groups if they have changed."""
        with _lock:
            wish = next((one for one in reversed(tuple(_wishes)) if one.applies_to(self)), None)
            # An engine that was loaded with its groups stays bound to them. Ranks that are threads of one process
            # must not wait for each other here.
            if wish is not self._wish or self.engine.state == "unbound":
                self._bind_to(wish)
            self._seen = _changes

    def let_go_of(self, wish: _Wish) -> None:
        if self._wish is wish:
            self._wish, self._held = None, []
            self.engine.unbind()

    def _bind_to(self, wish: _Wish | None) -> None:
        if self._own_groups is None and self.engine.state == "bound" and self._wish is None:
            self._own_groups = self.engine.communicators
        groups = self._own_groups if wish is None else groups_argument(wish.groups, list(self.places))
        shared = {name for name, (_, size) in self.places.items() if size > 1}
        if groups is None and shared:
            raise accord.WrongState(
                f"this engine is not bound to its groups ({', '.join(self.places)}): run it inside "
                "accord.distributed_context(groups, module), or call accord.set_groups(module, groups)"
            )
        groups = groups or {}
        for name in shared - groups.keys():
            near = difflib.get_close_matches(name, groups, n=1, cutoff=0.4)
            hint = f'; is it "{near[0]}"?' if near else ""
            given = ", ".join(f'"{one}"' for one in groups) or "none"
            raise accord.InvalidArgument(f'the engine has a group "{name}", but the groups given are {given}{hint}')
        held: dict[str, SharedCommunicator] = {}
        failure: accord.Mismatch | None = None
        for name in self.places:  # continue after a failure, so that the other ranks of each group are notified
            if name in shared:
                try:
                    failure = failure or place_mismatch(name, self.places[name], groups[name])
                    held[name] = shared_communicator(groups[name], failure)
                except accord.Mismatch as error:
                    failure = failure or error
        try:
            self.engine.bind({name: one.communicator for name, one in held.items()})
        # The rank's place differs, or its communicator is missing after a failure.
        except accord.InvalidArgument as error:
            raise failure or accord.Mismatch(str(error)) from error
        self._held, self._wish = list(held.values()), wish


def _modules_within(module: torch.nn.Module) -> set[torch.nn.Module]:
    """Returns its submodules, and modules that are plain attributes of any of them."""
    found = set(module.modules())
    for one in list(found):
        for value in vars(one).values():
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, torch.nn.Module):
                    found.update(item.modules())
    return found


def _tensors_of(module: torch.nn.Module) -> set[int]:
    """Returns the identities of its weights, and of this rank's parts of sharded weights."""
    found = set()
    for part in _modules_within(module):
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            found.update((id(tensor), id(getattr(tensor, "_local_tensor", tensor))))
    return found


def engines_of(module: torch.nn.Module | None) -> list[BoundEngine]:
    """Returns the existing engines, of one module or of all, in order of creation."""
    with _lock:
        found = [engine for engine in _engines if module is None or engine.belongs_to(module)]
    return sorted(found, key=lambda engine: engine.number)


def _wish_for(groups: Groups, module: torch.nn.Module | Sequence[torch.nn.Module] | None) -> _Wish:
    if module is None:
        return _Wish(groups, None)
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    for one in modules:
        if not isinstance(one, torch.nn.Module):
            raise TypeError(f"accord: expected a module, a list of modules or None, got {type(one).__name__}")
    wish = _Wish(groups, [])
    mine = weakref.ref(wish)
    wish.modules = [weakref.ref(one, lambda _: _forget_without_modules(mine())) for one in modules]
    return wish


def _forget_without_modules(wish: _Wish | None) -> None:
    """Removes a request whose modules are all gone. Can run wherever a module is deleted, so it takes no lock."""
    if wish is not None and wish.modules is not None and all(one() is None for one in wish.modules):
        with contextlib.suppress(ValueError):
            _wishes.remove(wish)


def _add(wish: _Wish) -> None:
    global _changes
    if wish.modules is None:
        # Deletes unreferenced engines on all ranks; otherwise some ranks would wait for others to bind them.
        gc.collect()
    with _lock:
        _wishes.append(wish)
        _changes += 1
        try:
            for engine in engines_of(None):
                if wish.applies_to(engine):
                    engine.bind()
        except BaseException:
            _remove(wish)
            raise


def _remove(wish: _Wish) -> None:
    global _changes
    with _lock:
        if wish in _wishes:
            _wishes.remove(wish)
            _changes += 1
        for engine in engines_of(None):
            engine.let_go_of(wish)


@contextlib.contextmanager
def distributed_context(
    groups: Groups, module: torch.nn.Module | Sequence[torch.nn.Module] | None = None
) -> Iterator[torch.nn.Module | Sequence[torch.nn.Module] | None]:
    """Binds engines to `groups` inside the block, and yields `module`.

    `groups`: maps an engine's group names to process groups of torch.distributed of any backend, or to
    accord.Communicators. For engines with one group, it can be the group itself. `module`: the module whose engines
    are bound, including engines that are compiled inside the block: a module created by accord.compile() or
    Engine.module(), a model compiled by torch.compile, or a module with such submodules or attributes; a list of such
    modules; None for all engines of the process.

    Collective over each group at the start: existing engines are bound at once. Raises Mismatch if this rank has
    another place in a group than an engine was built for, and InvalidArgument for a missing group. At the end, the
    engines are unbound from the groups, which does not involve other ranks, and return to their previous groups at
    their next run. Not thread-safe.
    """
    wish = _wish_for(groups, module)
    _add(wish)
    try:
        yield module
    finally:
        _remove(wish)


def set_groups(module: torch.nn.Module | Sequence[torch.nn.Module], groups: Groups) -> None:
    """Does the same as distributed_context(), until it is called again for the module."""
    wish = _wish_for(groups, module)
    wish.lasting = True
    earlier = [one for one in _wishes if one.lasting and one.modules == wish.modules]
    _add(wish)
    for one in earlier:
        _remove(one)
