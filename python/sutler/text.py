"""Text: a dataset of lines that native threads read, tokenize, and pad or pack."""

from __future__ import annotations

import glob
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NoReturn, Self

import numpy as np

from sutler import _moment, _sutler
from sutler._functions import in_turn, on_behalf_of
from sutler._output import converter, resolve_output
from sutler._tokenizers import Description, describe, end_token, pad_token
from sutler.datasets import BYTES_MAX, NativeDataset
from sutler.errors import Failure
from sutler.transforms import Lowered

#: What packed blocks are made of is counted by 32 bits.
_LENGTH_MAX = 1 << 30

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class TextLines(NativeDataset):
    r"""Lines of text files or of JSON-lines files, as tokens.

    A sample is a line: an int64 tensor of its tokens. A :class:`sutler.Loader` makes batches ``[ids, lengths]`` of
    them, padded to the longest. With ``pack=`` all lines are put end to end, each closed by an end-of-text token, and
    cut into blocks: a sample is then a block, and a batch one tensor ``[batch, pack]``.

    Files are looked through once for where lines begin, which is kept in ``cache_folder``; lines are then read when
    they are needed, so the files may be larger than memory.

    Args:
        paths: Files, patterns such as ``"data/*.jsonl"``, folders, or several of these. Names that end in ``.gz`` or
            ``.zst`` are decompressed first, into a file without a name in ``cache_folder``.
        tokenizer: The path of a ``tokenizer.json`` (or of the folder that holds it), its content, a
            ``tokenizers.Tokenizer`` or a fast tokenizer of transformers: native threads do the same. Any other function
            from a string to the numbers of its tokens runs in Python. Without one samples are strings.
        field: The field that holds the text, where lines are JSON objects; ``"text"`` for names in ``.jsonl``,
            ``.ndjson`` and ``.json``.
        max_length: Cut lines off after so many tokens, special ones included.
        add_special_tokens: Let the tokenizer add its own at the beginning and end of a line; by default unless lines
            are packed.
        pad: The token that fills up shorter lines, or its number; by default the tokenizer's.
        padding: ``"longest"``, or ``"max_length"`` for batches of one shape.
        pad_to_multiple_of: Round the length of a batch up to a multiple of this; ``None`` or 1 leaves it as it is.
        attention_mask: Deliver ``[ids, lengths, mask]``, with a mask of ones for tokens and zeros for padding. Not for
            packed blocks: ``documents=`` is for those.
        pack: The length of blocks in tokens.
        eos: The token that closes every line in a block, or its number; by default the tokenizer's.
        documents: Deliver ``[ids, documents]`` for packed blocks: for each token the number of its line in the block,
            from 1, and 0 for padding.
        positions: Deliver the place of each token in its line, too, from 0.
        remainder: ``"pad"`` fills the last block up, ``"drop"`` leaves it out, with its fewer than ``pack`` tokens.
        bad_lines: ``"raise"`` for a line that cannot be read when packing begins, or ``"skip"`` it;
            :attr:`skipped_lines` tells which. Without packing the loader's ``errors=`` decides.
        keep_empty: Let blank lines be samples, too. When packing, each line without tokens is then a document of its
            end-of-text token alone; else it leaves nothing.
        cache_folder: Where indices are kept; by default ``$XDG_CACHE_HOME/sutler``, or ``~/.cache/sutler``.
        bytes_max: Refuse longer lines.
        progress: Show a counter while files are looked through; by default only on a terminal.

    Raises:
        FileNotFoundError: A file is missing, or nothing matches a pattern.
        ValueError: The tokenizer has no token to pad with, or to close a line with, and needs one.
        sutler.DecodeError: With ``pack=``, a line cannot be read.

    Examples:
        >>> import pathlib, sutler, tempfile
        >>> words = {"[PAD]": 0, "[UNK]": 1, "to": 2, "be": 3, "or": 4, "not": 5}
        >>> tokenizer = sutler.testing.word_tokenizer(words)
        >>> file = pathlib.Path(tempfile.mkdtemp(), "words.txt")
        >>> _ = file.write_text("to be\nor not to be\n")
        >>> dataset = sutler.TextLines(file, tokenizer)
        >>> dataset[1].tolist()
        [4, 5, 2, 3]
        >>> ids, lengths = next(iter(sutler.Loader(dataset, batch_size=2)))
        >>> ids.tolist(), lengths.tolist()
        ([[2, 3, 0, 0], [4, 5, 2, 3]], [2, 4])
        >>> packed = sutler.TextLines(file, tokenizer, pack=4, eos="[UNK]")
        >>> next(iter(sutler.Loader(packed, batch_size=2))).tolist()
        [[2, 3, 1, 4], [5, 2, 3, 1]]
    """

    _native: _sutler.Text  # type: ignore[assignment]  # has what of a listing lines have, too
    content = "text"
    served_by_agents = False

    def __init__(
        self,
        paths: Paths,
        tokenizer: Any = None,
        *,
        field: str | None = None,
        max_length: int | None = None,
        add_special_tokens: bool | None = None,
        pad: int | str | None = None,
        padding: Literal["longest", "max_length"] = "longest",
        pad_to_multiple_of: int | None = None,
        attention_mask: bool = False,
        pack: int | None = None,
        eos: int | str | None = None,
        documents: bool = False,
        positions: bool = False,
        remainder: Literal["pad", "drop"] = "pad",
        bad_lines: Literal["raise", "skip"] = "raise",
        keep_empty: bool = False,
        cache_folder: str | os.PathLike[str] | None = None,
        bytes_max: int = BYTES_MAX,
        progress: bool | None = None,
    ) -> None:
        _check_choice("padding", padding, ("longest", "max_length"))
        _check_choice("remainder", remainder, ("pad", "drop"))
        _check_choice("bad_lines", bad_lines, ("raise", "skip"))
        for name, value in (
            ("max_length", max_length),
            ("pack", pack),
            ("pad_to_multiple_of", pad_to_multiple_of),
        ):
            _check_length(name, value)
        if padding == "max_length" and max_length is None:
            raise ValueError("padding='max_length' pads to max_length; pass that as well")
        if eos is not None and pack is None:
            raise ValueError(
                "eos= closes every line in packed blocks; pass pack= with their length, or let the tokenizer add it"
            )
        if (documents or positions) and pack is None:
            raise ValueError(
                "documents= and positions= tell about packed blocks; pass pack= with their length"
            )
        if pack is not None and attention_mask:
            raise ValueError(
                "attention_mask= marks the padding of lines, and packed blocks have none but at the end of the last; "
                "leave it out, or pass documents=True, which is 0 for padding"
            )
        if pack is not None and max_length is not None:
            raise ValueError(
                "pack= delivers every token of every line, and max_length= would cut lines off; leave one out"
            )
        self.tokenizer = tokenizer
        #: The files as they were given.
        self.paths = paths if isinstance(paths, str | os.PathLike) else list(paths)
        self.field = field
        self.max_length = max_length
        self.padding = padding
        self.pad_to_multiple_of = 1 if pad_to_multiple_of is None else pad_to_multiple_of
        self.attention_mask = attention_mask
        #: The length of blocks, where lines are packed.
        self.pack = pack
        self.eos = eos
        self.documents = documents
        self.positions = positions
        self.remainder = remainder
        self.bad_lines = bad_lines
        self.keep_empty = keep_empty
        self.add_special_tokens = pack is None if add_special_tokens is None else add_special_tokens
        #: The token that fills up; ``None`` where nothing is padded.
        self.pad: int | None = None
        self._asked_pad = pad
        self._cache_folder = os.fspath(_default_cache_folder() if cache_folder is None else cache_folder)
        self._bytes_max = bytes_max
        self._described = describe(tokenizer)
        if pack is not None and not self.is_native:
            raise ValueError(
                "pack= needs to know how many tokens each line has, which native threads count; pass a tokenizer.json, "
                "a tokenizers.Tokenizer or a fast tokenizer of transformers"
            )
        self._show_progress = sys.stderr.isatty() if progress is None else progress
        self._set_up(None, None, False, False)
        if self._native.not_saved is not None:
            warnings.warn(
                f"what was found in the files could not be kept for next time ({self._native.not_saved}); pass a "
                "cache_folder that can be written to",
                stacklevel=2,
            )

    @property
    def is_native(self) -> bool:
        """Whether native threads make the tokens."""
        return self._described.json is not None

    @property
    def pads_left(self) -> bool:
        """Whether shorter lines of a batch are filled up at their beginning, as the tokenizer says."""
        return self._described.pads_left

    @property
    def planes(self) -> int:
        """How many rows of numbers a packed block has: its tokens, and what else was asked for."""
        return 1 + self.documents + self.positions

    def padded_length(self, longest: int) -> int:
        """How long a batch is whose longest line has so many tokens."""
        multiple = self.pad_to_multiple_of
        if self.padding == "max_length" and self.max_length is not None:
            multiple = -(-self.max_length // multiple) * multiple
        return max(1, -(-longest // multiple)) * multiple if multiple > 1 else longest

    def _list(self, progress: Callable[[int], None] | None) -> _sutler.Text:  # type: ignore[override]
        files = _expand(self.paths)
        field = _json_field(files) if self.field is None else self.field
        native = self._make_tokenizer(self._described)
        text = _sutler.Text.open(
            files,
            field=field,
            tokenizer=native,
            keep_blank=self.keep_empty,
            bytes_max=self._bytes_max,
            cache_folder=self._cache_folder,
            progress=self._counter("looking for lines", 1_000_000, "MB"),
        )
        if self.tokenizer is not None:
            self.pad = pad_token(self._asked_pad, self._described, native)
        if self.pack is None or native is None:
            if self.tokenizer is not None and self.pad is None:
                raise ValueError(
                    "lines of a batch differ in length and are padded, and this tokenizer has no token for that; pass "
                    "pad= with a token or its number (that of the end-of-text token will do, as lengths tell what is "
                    "padding)"
                )
            return text
        end = end_token(self.eos, self._described, native)
        filler = end if self.pad is None else self.pad
        return text.pack(
            self.pack,
            end=end,
            padding=filler if self.remainder == "pad" else None,
            documents=self.documents,
            positions=self.positions,
            skip_bad=self.bad_lines == "skip",
            close_empty=self.keep_empty,
            threads=_sutler.usable_cores(),
            progress=self._counter("counting tokens", 1, "lines"),
        )

    def _make_tokenizer(self, described: Description) -> _sutler.Tokenizer | None:
        if described.json is None:
            return None
        return _sutler.Tokenizer(
            described.json, add_special_tokens=self.add_special_tokens, max_length=self.max_length
        )

    def _counter(self, doing: str, unit: int, name: str) -> Callable[[int], None] | None:
        """Shows on the terminal how far a long listing is."""
        if not self._show_progress:
            return None

        def show(count: int) -> None:
            sys.stderr.write(f"\r{doing}: {count // unit:,} {name}")
            sys.stderr.flush()

        return show

    def _lower(self) -> None:
        tail = [] if self.is_native or self.tokenizer is None else [self.tokenizer]
        self.lowered = Lowered(ops=[], tail=tail, tail_input="pil", notes=[], static=0, asked_for=True)

    def with_transform(self, transform: Any) -> Self:
        """Lines have no transform: what is made of them, the tokenizer says."""
        raise TypeError(
            "TextLines has no transform; make another TextLines with the tokenizer that should be used"
        )

    def __getitem__(self, index: int) -> Any:
        """The sample as a loader that does not shuffle would deliver it.

        Where a dataset written in Python asks for it on behalf of a loader, that loader's seed and epoch count.
        """
        return self._sample(self._check(index), converter(resolve_output(None)))

    def _sample(self, index: int, convert: Callable[[Any], Any]) -> Any:
        if not self.is_native:
            seed, epoch, repeat = _moment.current()
            return self.finish(self._native.text(index), index, seed=seed, epoch=epoch, repeat=repeat)
        sample = convert(self._native.load(index))
        return sample if self.planes == 1 else tuple(sample)

    def finish(self, image: Any, index: int, *, seed: int, epoch: int, repeat: int = 0) -> Any:
        """What a tokenizer that is a Python function makes of a line."""
        if self.tokenizer is None:
            return image
        with on_behalf_of(index, seed=seed, epoch=epoch, repeat=repeat):
            tokens = image
            for tokenizer in in_turn(self.lowered.tail):
                tokens = tokenizer(tokens)
        # What transformers' tokenizers return when they are called.
        tokens = tokens["input_ids"] if hasattr(tokens, "keys") else tokens
        if self.max_length is None:
            return tokens
        return tokens[-self.max_length :] if self._described.cuts_left else tokens[: self.max_length]

    def text(self, line: int) -> str:
        """The text of a line, before it is tokenized; where lines are packed, too."""
        lines = self._native.lines
        position = line + lines if line < 0 else line
        if not 0 <= position < lines:
            raise IndexError(f"line {line} of {lines}")
        return self._native.text(position)

    @property
    def files(self) -> list[str]:
        """The files that were found, in order."""
        return [os.fspath(path) for path in self._native.files]

    @property
    def lines(self) -> int:
        """How many lines are samples, or parts of blocks."""
        return self._native.lines

    @property
    def lengths(self) -> list[int]:
        """How many bytes every line has, from the index: what :class:`sutler.LengthBuckets` goes by."""
        return self._native.line_bytes()

    @property
    def token_lengths(self) -> list[int]:
        """How many tokens every line has; 0 for lines that cannot be read.

        All lines are tokenized when this is first asked for, and the counts are kept in ``cache_folder``.
        """
        if not self.is_native:
            raise ValueError(
                "native threads count tokens; pass a tokenizer.json or one of the library's tokenizers"
            )
        return self._native.token_counts(_sutler.usable_cores(), self._counter("counting tokens", 1, "lines"))

    @property
    def total_tokens(self) -> int | None:
        """How many tokens all lines have, end-of-text tokens included; known where they are packed."""
        return self._native.total_tokens

    @property
    def skipped_lines(self) -> list[Failure]:
        """The lines that packing left out, with ``bad_lines="skip"``."""
        return [Failure(*line) for line in self._native.bad_lines()]

    @property
    def classes(self) -> list[str]:
        """Lines have no labels, so there are none."""
        return []

    @property
    def targets(self) -> NoReturn:
        """Lines have no labels."""
        raise AttributeError("lines of text have no labels, so TextLines has no targets")

    @property
    def samples(self) -> NoReturn:
        """Lines have no labels."""
        raise AttributeError("lines of text have no labels; TextLines.path(index) tells where each is")

    def _describe(self) -> list[str]:
        described = [f"Files: {len(self._native.files)}"]
        if self.pack is not None:
            described.append(f"Packed: {self.lines:,} lines into blocks of {self.pack:,} tokens")
        return described


def _default_cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "sutler")


def _expand(paths: Paths) -> list[str]:
    """The files that paths, patterns and folders stand for, in this order."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ValueError("paths should name at least one file")
    files: list[str] = []
    for path in (os.fspath(path) for path in given):
        if os.path.isdir(path):
            files += map(str, _sutler.text_files_in(path))
        elif not os.path.exists(path) and glob.has_magic(path):
            found = sorted(file for file in glob.glob(path, recursive=True) if os.path.isfile(file))
            if not found:
                raise FileNotFoundError(
                    f"No file matches {path}. Check the pattern, which starts from {os.getcwd()} unless it is absolute."
                )
            files += found
        else:
            files.append(path)
    return files


def _json_field(files: list[str]) -> str | None:
    """The field to read, where nobody says: by the names of the files."""
    as_json = [_sutler.is_json_lines(file) for file in files]
    if any(as_json) and not all(as_json):
        raise ValueError(
            f"{files[as_json.index(True)]} holds JSON lines by its name, and {files[as_json.index(False)]} does not; "
            "make a dataset of each, or pass field= if all of them do"
        )
    return "text" if all(as_json) else None


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} should be one of {', '.join(map(repr, choices))}, got {value!r}")


def _check_length(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} should be a number of tokens, got {value!r}")
    if not 1 <= value <= _LENGTH_MAX:
        raise ValueError(f"{name} should be a number of tokens from 1 to {_LENGTH_MAX:,}, got {value}")


__all__: Sequence[str] = ["TextLines"]
