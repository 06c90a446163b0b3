"""Opens a GGUF file, or all parts of a split one, and reads its keys and tensors.

llama-gguf-split numbers parts from 1 in their names, NAME-00001-of-00003.gguf, and from 0 in "split.no". The first
part has all keys except the keys of the split; each part has tensors of its own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import gguf

from accord.graph.errors import ExportError

PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
JOIN = "put all parts into one folder, by their names, or join them: llama-gguf-split --merge FIRST_PART WHOLE"


def read_file(file: str | os.PathLike) -> tuple[dict, dict[str, gguf.ReaderTensor]]:
    """Returns the keys with their values and the tensors by name, of the whole model. Raises ExportError if it is
    damaged or parts are missing.
    """
    file = Path(file)
    readers = [_open(file)]
    count = _count(readers[0])
    if count > 1:
        readers = [_open(part) for part in _parts(file, readers[0], count)]
    facts = _facts(readers[0], file)
    tensors: dict[str, gguf.ReaderTensor] = {}
    for number, reader in enumerate(readers):
        if count > 1 and (_count(reader), _field(reader, "split.no", -1)) != (count, number):
            raise ExportError(
                f'{reader_name(file, number, count)} has "split.no" {_field(reader, "split.no", None)} and '
                f'"split.count" {_count(reader)}; expected are {number} and {count}, as its name says'
            )
        for tensor in reader.tensors:
            if tensors.setdefault(tensor.name, tensor) is not tensor:
                raise ExportError(f'{file}: two of its parts have a tensor "{tensor.name}"')
    wanted = facts.get("split.tensors.count", len(tensors))
    if wanted != len(tensors):
        raise ExportError(f"{file}: its parts have {len(tensors)} tensors, but should have {wanted}; {JOIN}")
    return facts, tensors


def reader_name(file: Path, number: int, count: int) -> Path:
    """Returns the name of part `number`, counted from 0, beside the given file."""
    return file.with_name(f"{PART.fullmatch(file.name)[1]}-{number + 1:05}-of-{count:05}.gguf")


def _parts(file: Path, reader: gguf.GGUFReader, count: int) -> list[Path]:
    number = _field(reader, "split.no", 0) + 1
    named = PART.fullmatch(file.name)
    if not named or int(named[3]) != count:
        raise ExportError(
            f"{file} is part {number} of {count} of a split file, but is not named so "
            f"(NAME-{number:05}-of-{count:05}.gguf); {JOIN}"
        )
    parts = [reader_name(file, at, count) for at in range(count)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ExportError(
            f"{file} is part {number} of {count} of a split file; not beside it: {', '.join(missing[:3])}"
            f"{', ...' if len(missing) > 3 else ''}; {JOIN}"
        )
    return parts


def _open(file: Path) -> gguf.GGUFReader:
    try:
        with open(file, "rb") as opened:
            begins = opened.read(4)
    except OSError as error:
        raise ExportError(f"{file}: {error.strerror}") from error
    named = PART.fullmatch(file.name)
    part = f"; by its name it is part {int(named[2])} of {int(named[3])}: {JOIN}" if named else ""
    if begins != b"GGUF":
        raise ExportError(f"{file} is no GGUF file: it does not begin with GGUF{part}")
    try:
        return gguf.GGUFReader(file)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, TypeError) as error:
        raise ExportError(
            f"{file} is damaged, or its end is missing ({os.path.getsize(file):,} bytes are there): {error}{part}"
        ) from error


def _facts(reader: gguf.GGUFReader, file: Path) -> dict:
    try:
        return {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, TypeError) as error:
        raise ExportError(f"{file} is damaged: {error}") from error


def _count(reader: gguf.GGUFReader) -> int:
    return _field(reader, "split.count", 1)


def _field(reader: gguf.GGUFReader, name: str, default):
    field = reader.get_field(name)
    return default if field is None else field.contents()
