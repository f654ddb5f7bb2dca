"""Hugging Face tokenizers: a small one, made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexpo.adapters.tokenizers.transformers import TransformersTokenizer, build
from hexpo.domain.errors import MissingExtra, ModelError
from hexpo.domain.trajectory import Message

_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}"
    "{% endif %}<{{ m['role'] }}> {{ m['content'] }} </s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def _folder(folder: Path, template: str | None = _TEMPLATE, eos: str = "2") -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", "<user>", "<assistant>", "2", "+", "3", "?", "5"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>", bos_token="<s>")
    made.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>"]})
    if template:
        made.chat_template = template
    made.save_pretrained(str(folder))
    (folder / "config.json").write_text(f'{{"model_type": "llama", "eos_token_id": {eos}}}')
    return str(folder)


def test_a_conversation_becomes_the_ids_of_the_models_own_template(tmp_path: Path) -> None:
    """E1: the generation prompt is part of it, nothing is added around."""
    tokenizer = build(reference=_folder(tmp_path))
    assert tokenizer.render([Message("user", "2 + 3 ?")]) == (3, 5, 6, 7, 8, 2, 4)
    assert tokenizer.vocabulary == 10


def test_an_answer_is_read_without_special_tokens(tmp_path: Path) -> None:
    """Spaces stay as they are."""
    assert build(reference=_folder(tmp_path)).decode([4, 9, 8, 2]) == "5 ?"


@pytest.mark.parametrize(("eos", "wanted"), [("2", (2,)), ("[2, 8]", (2, 8)), ("null", (2,))])
def test_stop_ids_are_those_of_tokenizer_and_model(
    tmp_path: Path, eos: str, wanted: tuple[int, ...]
) -> None:
    """O09: a number, a list or nothing in the model's files."""
    assert build(reference=_folder(tmp_path, eos=eos)).stop_ids == wanted


def test_a_missing_template_and_a_refusing_one_are_errors(tmp_path: Path) -> None:
    """The message says which and what to do."""
    (tmp_path / "bare").mkdir()
    bare = build(reference=_folder(tmp_path / "bare", template=None))
    with pytest.raises(ModelError, match="no chat template"):
        bare.render([Message("user", "2")])
    (tmp_path / "strict").mkdir()
    strict = build(reference=_folder(tmp_path / "strict"))
    with pytest.raises(ModelError, match="no tools"):
        strict.render([Message("tool", "2")])


def test_identity_changes_with_the_template_only(tmp_path: Path) -> None:
    """Equal files, equal identity; a saved copy too."""
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    one: TransformersTokenizer = build(reference=_folder(tmp_path / "one"))
    other = build(reference=_folder(tmp_path / "two", template=_TEMPLATE + " "))
    assert one.identity != other.identity
    one.save(tmp_path / "three")
    (tmp_path / "three" / "config.json").write_text('{"model_type": "llama"}')
    assert build(reference=str(tmp_path / "three")).identity == one.identity


def test_a_folder_without_tokenizer_is_an_error(tmp_path: Path) -> None:
    """And a package that is not installed names its command."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="no tokenizer"):
        build(reference=str(tmp_path))
    with pytest.raises(MissingExtra, match="pip install"):
        build(reference="package:nothing_here")


O11_WORDS = ["a", "b", "ab", "<user>", "<assistant>", "</s>", "<nl>"]


def _dialogues(folder: Path, template: str) -> TransformersTokenizer:
    """The tokenizer of O11, words for letters: ids count from 0 in the order of `O11_WORDS`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(O11_WORDS)}, unk_token="a"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")
    made.chat_template = template
    made.save_pretrained(str(folder))
    (folder / "config.json").write_text('{"model_type": "llama", "eos_token_id": 5}')
    return build(reference=str(folder))


_O11 = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} </s> <nl> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
_DIALOGUE = [
    Message("user", "a"),
    Message("assistant", "b"),
    Message("user", "ab"),
    Message("assistant", "a"),
]


def test_answers_are_the_assistants_turns_with_their_end_tokens(tmp_path: Path) -> None:
    """O11, D7: what the template puts after an end token is nobody's answer."""
    rendered = _dialogues(tmp_path, _O11).render_answers(_DIALOGUE)
    assert rendered.ids == (3, 0, 5, 6, 4, 1, 5, 6, 3, 2, 5, 6, 4, 0, 5, 6)
    assert [place for place, one in enumerate(rendered.answered) if one] == [5, 6, 13, 14]


def test_a_given_answer_follows_the_ids_that_an_engine_gets(tmp_path: Path) -> None:
    """E1: what stands before it is what `render` gives."""
    tokenizer = _dialogues(tmp_path, _O11)
    for length in (2, 4):
        rendered = tokenizer.render_answers(_DIALOGUE[:length])
        asked = tokenizer.render(_DIALOGUE[: length - 1])
        assert rendered.ids[: len(asked)] == asked
        assert rendered.answered[len(asked)]


@pytest.mark.parametrize("ended", [True, False])
def test_what_stands_between_two_answers_goes_on_as_the_template_does(
    tmp_path: Path, ended: bool
) -> None:
    """E1, D8: behind the answer's own ids they are those of the whole conversation; an answer
    that a text ended gets the template's end token. Only the message's words are said."""
    tokenizer = _dialogues(tmp_path, _O11)
    asked, answer, follow_up = _DIALOGUE[:3]
    followed = tokenizer.render_next([asked], follow_up, ended=ended)
    sampled = (1, 5) if ended else (1,)
    whole = tokenizer.render([asked, answer, follow_up])
    assert (*tokenizer.render([asked]), *sampled, *followed.ids) == whole
    assert [i for i, said in zip(followed.ids, followed.said, strict=True) if said] == [2]


def test_a_template_that_trims_what_is_said_can_be_played(tmp_path: Path) -> None:
    """E1: the words are those that it shows."""
    trimmed = _O11.replace("{{ m['content'] }}", "{{ m['content'] | trim }}")
    spaced = Message("user", "  ab ")
    followed = _dialogues(tmp_path, trimmed).render_next(_DIALOGUE[:1], spaced, ended=True)
    assert followed.ids == (6, 3, 2, 5, 6, 4)
    assert followed.said == (False, False, True, False, False, False)


@pytest.mark.parametrize("hidden", ["user", "assistant"])
def test_a_template_that_hides_what_was_said_is_refused(tmp_path: Path, hidden: str) -> None:
    """D8: where an answer or a message is not shown, nothing can be put behind it."""
    shown = f"{{{{ 'a' if m['role'] == '{hidden}' else m['content'] }}}}"
    tokenizer = _dialogues(tmp_path, _O11.replace("{{ m['content'] }}", shown))
    with pytest.raises(ModelError, match="does not keep what a user says after an answer"):
        tokenizer.render_next(_DIALOGUE[:1], _DIALOGUE[2], ended=True)


def test_a_conversation_cannot_go_on_behind_an_answer_without_an_end(tmp_path: Path) -> None:
    """D7: the template separates its turns by nothing that the model could say."""
    tokenizer = _dialogues(tmp_path, _O11.replace("</s> ", ""))
    with pytest.raises(ModelError, match="none of the stop ids"):
        tokenizer.render_next(_DIALOGUE[:1], _DIALOGUE[2], ended=True)


def test_a_template_that_rewrites_what_was_said_is_refused(tmp_path: Path) -> None:
    """D8: a conversation whose answers change when more follows cannot be learnt as one row."""
    last_only = _O11.replace("{{ m['content'] }}", "{{ m['content'] if loop.last else 'ab' }}")
    tokenizer = _dialogues(tmp_path, last_only)
    with pytest.raises(ModelError, match="otherwise when more follows"):
        tokenizer.render_answers(_DIALOGUE)


def test_an_answer_without_an_end_is_refused(tmp_path: Path) -> None:
    """D7: a model that learns it would never stop."""
    tokenizer = _dialogues(tmp_path, _O11.replace("</s> ", ""))
    with pytest.raises(ModelError, match="none of the stop ids"):
        tokenizer.render_answers(_DIALOGUE[:2])
