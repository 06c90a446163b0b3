"""Models that read images answer as transformers does: in batches, on several ranks, with prompts in chunks."""

import numpy as np
import pytest
from tiers import mostly_slow

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from image_models import CONFIGURATIONS, IMAGE, greedy_answer, image_model, pixels_of, rows_of  # noqa: E402
from served_requests import exporter_of_families, served  # noqa: E402

import accord  # noqa: E402

TOKENS = 12


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """A function that returns a family's model and package, exported on first use."""
    return exporter_of_families(tmp_path_factory.mktemp("families"), image_model)


def prompts(model):
    """Returns prompts with their images: one image, two of them apart, none, and another image at the same places."""
    one = rows_of(model, pixels_of(model, 1, 0))
    first = [5, 9, *[IMAGE] * one, 7, 3, 11]
    second = [8, *[IMAGE] * one, 4, 4, *[IMAGE] * one, 2]
    return [
        (first, pixels_of(model, 1, 1)),
        (second, pixels_of(model, 2, 2)),
        ([6, 2, 8, 1], None),
        (first, pixels_of(model, 1, 3)),
    ]


def requests_of(given, **options):
    return [(prompt, None if pixels is None else [pixels.numpy()], options) for prompt, pixels in given]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", mostly_slow(CONFIGURATIONS, "llava", "smolvlm"))
def test_answers_equal_those_of_transformers(name, ranks, family):
    model, path = family(name)
    given = prompts(model)
    expected = [[greedy_answer(model, prompt, pixels, TOKENS)] for prompt, pixels in given]
    assert expected[0] != expected[3]  # they depend on their images
    assert served(path, ranks, requests_of(given, max_new_tokens=TOKENS)) == expected


@pytest.mark.parametrize("rows", [3, 16])
def test_prompts_are_computed_in_chunks(rows, family):
    model, path = family("llava")
    given = prompts(model)
    expected = [[greedy_answer(model, prompt, pixels, TOKENS)] for prompt, pixels in given]
    found = served(path, 1, requests_of(given, max_new_tokens=TOKENS), max_rows=rows, max_sequences=3)
    assert found == expected


def test_preempted_requests_read_their_images_again(family):
    model, path = family("llava")
    given = [(prompt, pixels) for prompt, pixels in prompts(model) if pixels is not None]
    expected = [[greedy_answer(model, prompt, pixels, 24)] for prompt, pixels in given]
    requests = [
        (prompt, source, {**options, "priority": number})
        for number, (prompt, source, options) in enumerate(requests_of(given, max_new_tokens=24))
    ]
    # 6 blocks of 16: one or two of the requests fit.
    assert served(path, 1, requests, cache_tokens=6 * 16) == expected


def test_samples_share_an_image(family):
    model, path = family("llava")
    prompt, pixels = prompts(model)[0]
    expected = greedy_answer(model, prompt, pixels, 8)
    requests = requests_of([(prompt, pixels)], max_new_tokens=8, samples=3)
    assert served(path, 1, requests) == [[expected] * 3]


def test_an_answer_is_resumed(family):
    model, path = family("llava")
    prompt, pixels = prompts(model)[0]
    expected = greedy_answer(model, prompt, pixels, 10)
    requests = requests_of([([*prompt, *expected[:4]], pixels)], max_new_tokens=6, generated=4)
    assert served(path, 1, requests) == [[expected[4:]]]


@pytest.fixture
def model_on_one_rank(family):
    model, path = family("llava")
    with accord.Communicator.alone() as comm, accord.load(path, {"tp": comm}) as engine:
        served_model = accord.LanguageModel.create(engine)
        yield model, served_model
        served_model.stop()


def test_the_properties_tell_how_images_are_read(model_on_one_rank):
    model, served_model = model_on_one_rank
    assert served_model.source_token == IMAGE
    assert not served_model.has_encoder
    rows = rows_of(model, pixels_of(model, 1, 0))
    assert served_model.max_source == (255 // rows) * rows


def test_wrong_images_are_refused(model_on_one_rank):
    model, served_model = model_on_one_rank
    rows = rows_of(model, pixels_of(model, 1, 0))
    prompt, pixels = [5, *[IMAGE] * rows], pixels_of(model, 1, 0).numpy()
    wrong = [
        (prompt, None, f"token {IMAGE}, which stands for a row of the source, {rows} times; the source has 0 rows"),
        (prompt[:-1], [pixels], f"{rows - 1} times; the source has {rows} rows"),
        (prompt, [pixels_of(model, 2, 0).numpy()], f"{rows} times; the source has {2 * rows} rows"),
        (prompt, [pixels[:, :, :20].copy()], "pixel_values"),
        (prompt, [pixels.astype(np.float64)], "pixel_values"),
    ]
    for given, source, message in wrong:
        with pytest.raises(accord.InvalidArgument, match=message):
            served_model.submit(given, source=source, max_new_tokens=1)


def test_a_token_in_a_text_stands_for_a_whole_image(text_model, tmp_path):
    marker = "<|im_start|>"
    size, image = len(text_model.tokenizer), text_model.tokenizer.convert_tokens_to_ids(marker)
    model = image_model("llava", text_config={"vocab_size": size}, image_token_id=image)
    path = accord.export(model, path=tmp_path / "llava.accord", tokenizer=text_model.path.parent)
    pixels = pixels_of(model, 2, 0)
    text = f"One{marker} two{marker}"
    rows = rows_of(model, pixels) // 2
    ids = text_model.tokenizer(text).input_ids
    assert ids.count(image) == 2
    prompt = [token for one in ids for token in [one] * (rows if one == image else 1)]
    expected = text_model.tokenizer.decode(greedy_answer(model, prompt, pixels, 8), skip_special_tokens=True)
    found = accord.generate(path, text, source=pixels, max_new_tokens=8)
    assert found.text == expected
    assert found.prompt_tokens == len(prompt)


def test_models_whose_images_are_unknown_are_refused(tmp_path):
    import transformers

    config = transformers.LlavaNextConfig(
        vision_config=CONFIGURATIONS["llava"]().vision_config, text_config=CONFIGURATIONS["llava"]().text_config
    )
    model = transformers.LlavaNextForConditionalGeneration(config).eval()
    with pytest.raises(accord.ExportError, match="engines do not know how it reads images; they know AyaVision"):
        accord.export(model, path=tmp_path / "next.accord")
