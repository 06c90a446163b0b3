"""The models of a server: the names that requests may give, and the service that answers each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from accord.serve.errors import ApiError
from accord.serve.metrics import Metrics
from accord.serve.options import ModelOptions
from accord.serve.service import Service
from accord.serve.supervisor import StartError

__all__ = ["Model", "Models", "model_of"]


@dataclass(frozen=True)
class Model:
    """A name that requests may give, and the service that answers them: with one of its adapters, or none."""

    name: str
    service: Service
    adapter: str | None = None


class Models:
    def __init__(self, options: Sequence[ModelOptions], metrics: Metrics):
        """Raises StartError if a package cannot be served."""
        self._services = [Service(one, metrics.of_model(one.name)) for one in options]
        self._by_name: dict[str, Model] = {}
        for service in self._services:
            names = [(service.options.name, None), *((adapter, adapter) for adapter in service.adapters)]
            for name, adapter in names:
                if name in self._by_name:
                    raise StartError(
                        service.options.package,
                        f'there are two models with the name "{name}"; adapters are models, too',
                    )
                self._by_name[name] = Model(name, service, adapter)

    def __iter__(self) -> Iterator[Model]:
        return iter(self._by_name.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models that have ranks, without adapters."""
        return tuple(service.options.name for service in self._services)

    def find(self, name: str | None) -> Model:
        """Returns the model of this name; without a name, the first one. Raises ApiError if there is none."""
        if name is None:
            return next(iter(self))
        if name not in self._by_name:
            known = ", ".join(f'"{one}"' for one in self._by_name)
            message = f'there is no model "{name}"; this server has {known}'
            raise ApiError(404, message, param="model", code="model_not_found")
        return self._by_name[name]

    def states(self) -> dict[str, str]:
        """Returns the state of each model by its name: "draining", or that of its ranks."""
        return {model.name: model.service.state for model in self}

    async def run(self) -> None:
        """Runs the ranks of all models until stop(). If the first start of one of them fails, stops all of them and
        raises StartError."""
        runs = [asyncio.create_task(service.ranks.run()) for service in self._services]
        await asyncio.wait(runs, return_when=asyncio.FIRST_EXCEPTION)
        await self.stop()
        await asyncio.gather(*runs)

    def drain(self) -> None:
        """Lets all services refuse new requests, and finish those that run."""
        for service in self._services:
            service.draining = True

    async def stop(self) -> None:
        """Ends all requests and all ranks. May be called again."""
        await asyncio.gather(*(service.ranks.stop() for service in self._services))


def model_of(request: Request, name: str | None) -> Model:
    """Returns the model that the body of a request names, and notes it for the log and the metrics."""
    model = request.app.state.models.find(name)
    request.scope["facts"]["model"] = model.name
    return model
