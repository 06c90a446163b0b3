"""Stop texts in a text that arrives in pieces."""

import random

import pytest

pytest.importorskip("starlette")
from accord.serve.answer import StopSearch


def held_back(text: str, stops: list[str]) -> int:
    """Returns how many characters at the end of a text may be the beginning of a stop text."""
    return max((length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])), default=0)


@pytest.mark.parametrize("seed", range(50))
def test_a_stop_text_is_found_however_the_text_is_cut(seed):
    chance = random.Random(seed)
    for _ in range(100):
        text = "".join(chance.choices("abé", k=chance.randrange(20)))
        stop = "".join(chance.choices("abé", k=chance.randrange(1, 5)))
        search, found, given = StopSearch([stop]), "", ""
        while len(given) < len(text) and not search.found:
            piece = text[len(given) : len(given) + chance.randrange(1, 5)]
            given += piece
            found += search.push(piece)
            if not search.found:
                assert found == given[: len(given) - held_back(given, [stop])]
        if not search.found:
            found += search.finish()
        assert (found, search.found) == (text.partition(stop)[0], stop in text)


@pytest.mark.parametrize("seed", range(50))
def test_of_several_stop_texts_the_first_that_is_complete_ends_the_text(seed):
    chance = random.Random(seed)
    for _ in range(100):
        text = "".join(chance.choices("ab", k=chance.randrange(30)))
        stops = ["".join(chance.choices("ab", k=chance.randrange(1, 6))) for _ in range(3)]
        search, found = StopSearch(stops), ""
        for character in text:
            found += search.push(character)
            if search.found:
                break
        found += search.finish()
        ends = [(end, stop) for end in range(len(text) + 1) for stop in stops if text[:end].endswith(stop)]
        if ends:
            first = min(end for end, _ in ends)
            begins = [end - len(stop) for end, stop in ends if end == first]
            assert found == text[: min(begins)]
        else:
            assert found == text


def test_without_stop_texts_everything_passes_at_once():
    search = StopSearch([])
    assert search.push("abc") == "abc"
    assert search.finish() == ""
    assert not search.found
