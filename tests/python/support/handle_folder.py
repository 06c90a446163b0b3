"""Where rank processes hand each other their handles: a folder."""

import time
from collections.abc import Sequence
from pathlib import Path


def gather_handles(folder: str, step: str, who: int, members: Sequence[int], handle: str) -> list[str]:
    """Posts the handle of `who` for `step`, and returns those of `members` once all of them have posted."""
    place = Path(folder, step)
    place.mkdir(exist_ok=True)
    draft = place / f"{who}.draft"
    draft.write_text(handle)
    draft.rename(place / str(who))
    while not all((place / str(member)).exists() for member in members):
        time.sleep(0.001)
    return [(place / str(member)).read_text() for member in members]
