"""What users pass as a tokenizer, and the native one that does the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sutler import _sutler

#: Names that tokenizers commonly give the token at the end of a text, and the one that fills up.
_END_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]", "<|eot_id|>")
_PAD_NAMES = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "<|finetune_right_pad_id|>")


@dataclass(frozen=True)
class Description:
    """A tokenizer as it travels to native threads and to other processes."""

    #: The ``tokenizer.json``; ``None`` for a function of the user's.
    json: str | None = None
    #: The tokens that the object the user passed has for these purposes.
    eos: int | None = None
    pad: int | None = None
    #: Whether lines that are too long lose their beginning, and shorter ones are filled up there.
    cuts_left: bool = False
    pads_left: bool = False


def describe(tokenizer: Any) -> Description:
    """What a ``tokenizer=`` argument stands for."""
    if tokenizer is None:
        return Description()
    if isinstance(tokenizer, str) and tokenizer.lstrip()[:1] == "{":
        return _of_json(tokenizer)
    if isinstance(tokenizer, str | os.PathLike):
        return _of_json(_read(Path(tokenizer)))
    backend = getattr(tokenizer, "backend_tokenizer", None)  # of transformers' fast tokenizers
    described = _to_json(tokenizer if backend is None else backend)
    own = Description() if described is None else _of_json(described)
    cuts_left = _is_left(tokenizer, "truncation_side", own.cuts_left)
    if described is not None and cuts_left != own.cuts_left:
        described = _cutting_at(described, cuts_left)
    if described is not None or callable(tokenizer):
        return Description(
            described,
            _number(tokenizer, "eos_token_id"),
            _number(tokenizer, "pad_token_id"),
            cuts_left=cuts_left,
            pads_left=_is_left(tokenizer, "padding_side", own.pads_left),
        )
    raise TypeError(
        "tokenizer should be the path of a tokenizer.json, a tokenizers.Tokenizer, a fast tokenizer of transformers, "
        f"or a function from a string to the numbers of its tokens, got {tokenizer!r}"
    )


def _of_json(text: str) -> Description:
    """What a ``tokenizer.json`` says of sides; the rest is the native tokenizer's to read."""
    if '"Left"' not in text:  # nearly always, and the file may be large
        return Description(text)
    try:
        content = json.loads(text)
        cuts_left, pads_left = (
            (content.get(key) or {}).get("direction") == "Left" for key in ("truncation", "padding")
        )
    except (ValueError, AttributeError):
        return Description(text)  # the native tokenizer says what is wrong with it
    return Description(text, cuts_left=cuts_left, pads_left=pads_left)


def _is_left(tokenizer: Any, name: str, otherwise: bool) -> bool:
    """Which side one of transformers' tokenizers names; others name none."""
    side = getattr(tokenizer, name, None)
    return side == "left" if isinstance(side, str) else otherwise


def _cutting_at(text: str, left: bool) -> str:
    """The same ``tokenizer.json``, but lines that are too long are cut off at this side."""
    content = json.loads(text)
    # The length has to be there and plays no part: what the user passes as max_length takes its place.
    content["truncation"] = {
        "direction": "Left" if left else "Right",
        "max_length": 512,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    return json.dumps(content, ensure_ascii=False)


def _read(path: Path) -> str:
    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"There is no tokenizer at {path}. Pass the path of a tokenizer.json; nothing is downloaded, and "
            "transformers' AutoTokenizer.from_pretrained(...) may be passed as it is."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no tokenizer.json: {error}") from None


def _to_json(tokenizer: Any) -> str | None:
    """The description that the library's tokenizers give of themselves."""
    to_str: Callable[[], object] | None = getattr(tokenizer, "to_str", None)
    described = to_str() if callable(to_str) else None
    return described if isinstance(described, str) else None


def _number(tokenizer: Any, name: str) -> int | None:
    number = getattr(tokenizer, name, None)
    return number if isinstance(number, int) else None


def end_token(asked: int | str | None, described: Description, native: _sutler.Tokenizer) -> int:
    """The token that closes a document, which packing needs."""
    if asked is not None:
        return _asked(asked, "eos", native)
    if described.eos is not None:
        return described.eos
    found = _first(_END_NAMES, native)
    if found is None:
        raise ValueError(
            "packing closes every line with an end-of-text token, and this tokenizer has none by the usual names "
            f"({', '.join(_END_NAMES)}); pass eos= with the token or its number"
        )
    return found


def pad_token(
    asked: int | str | None, described: Description, native: _sutler.Tokenizer | None
) -> int | None:
    """The token that fills up shorter lines, if there is one."""
    if asked is not None:
        return _asked(asked, "pad", native)
    if described.pad is not None or native is None:
        return described.pad
    return _first(_PAD_NAMES, native) if native.padding is None else native.padding


def _first(names: tuple[str, ...], native: _sutler.Tokenizer) -> int | None:
    return next((number for name in names if (number := native.id(name)) is not None), None)


def _asked(asked: int | str, name: str, native: _sutler.Tokenizer | None) -> int:
    if isinstance(asked, bool) or not isinstance(asked, int | str):
        raise TypeError(f"{name} should be a token or its number, got {asked!r}")
    if isinstance(asked, str):
        number = None if native is None else native.id(asked)
        if number is None:
            raise ValueError(
                f"the tokenizer has no token {asked!r}; pass {name}= with another or with a number"
            )
        return number
    if asked < 0:
        raise ValueError(
            f"{name} is the number of a token, which is never negative, got {asked}; lengths and attention_mask=True "
            "tell which tokens are padding"
        )
    if name == "eos" and native is not None and native.token(asked) is None:
        raise ValueError(
            f"the tokenizer has no token number {asked}; its numbers are below {native.vocabulary}"
        )
    return asked
