"""Small models of all types of transformers, as engines on one rank and on two: equal, or refused with a reason."""

import re
from pathlib import Path

import pytest
from tiers import mostly_slow

pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import TYPES, trial

DOCS = Path(__file__).parents[3] / "docs/families.md"
ROWS = re.findall(r"^\| `(.+?)` \| (equal|refused|cannot be made)", DOCS.read_text(), re.MULTILINE)
# One or two for each kind of model.
QUICK = (
    *("bloom", "deepseek_v2", "deepseek_v3", "deepseek_v32", "diffllama", "falcon", "gpt_neo", "gpt_oss", "gptj"),
    *("granite_swa", "mamba", "minimax_m3_vl_text", "phimoe", "whisper"),
)


def test_the_docs_list_every_type():
    assert [name for name, _ in ROWS] == TYPES


@pytest.mark.parametrize("model_type", mostly_slow(dict(ROWS), *QUICK))
def test_a_type_is_equal_or_refused(model_type, tmp_path):
    outcome = trial(model_type, tmp_path)
    assert outcome.kind == dict(ROWS)[model_type], outcome.reason
