"""Lines of text through the loader: the library's own tokens, padding, packing, resume, and what is bad."""

from __future__ import annotations

import gzip
import json
import pathlib
import pickle
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import sutler
import sutler.testing
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from torch.utils.data import ConcatDataset

WORDS = ["supply", "army", "march", "wagon", "bread", "naïve", "Straße", "日本", "🙂", "don't", "3.14", "\t"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    drawn = random.Random(3)
    return ["on " + " ".join(drawn.choices(WORDS, k=drawn.randint(1, 40))) for _ in range(300)]


@pytest.fixture(scope="module")
def byte_level(sentences: list[str]) -> tokenizers.Tokenizer:
    """What GPT-2 and its kin are made of."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<pad>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def word_piece(sentences: list[str]) -> tokenizers.Tokenizer:
    """What BERT and its kin are made of, with marks around every text."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


@pytest.fixture
def corpus(tmp_path: pathlib.Path, sentences: list[str]) -> pathlib.Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


def encoded(tokenizer: tokenizers.Tokenizer, texts: list[str], special: bool = True) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=special).ids for text in texts]


@pytest.mark.parametrize("kind", ["byte_level", "word_piece"])
def test_tokens_are_those_of_the_library(
    kind: str, corpus: pathlib.Path, sentences: list[str], request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(kind)
    expected = encoded(tokenizer, sentences)
    dataset = sutler.TextLines(corpus, tokenizer)
    assert len(dataset) == len(sentences)
    assert [dataset[index].tolist() for index in range(0, 300, 17)] == expected[::17]
    served = []
    for ids, lengths in sutler.Loader(dataset, batch_size=7, num_workers=3):
        assert ids.dtype == lengths.dtype == torch.int64
        assert ids.shape == (len(lengths), lengths.max())
        for row, length in zip(ids.tolist(), lengths.tolist(), strict=True):
            served.append(row[:length])
            assert set(row[length:]) <= {dataset.pad}
    assert served == expected


def test_every_way_to_name_a_tokenizer_means_the_same(
    corpus: pathlib.Path, tmp_path: pathlib.Path, byte_level: tokenizers.Tokenizer
) -> None:
    transformers = pytest.importorskip("transformers")
    file = tmp_path / "tokenizer.json"
    byte_level.save(str(file))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level, pad_token="<pad>", eos_token="<|endoftext|>"
    )
    ways = [file, str(file), tmp_path, file.read_text(encoding="utf-8"), byte_level, fast]
    found = [sutler.TextLines(corpus, way)[5].tolist() for way in ways]
    assert all(tokens == found[0] for tokens in found)
    # A function gives the same tokens, one line at a time.
    by_hand = sutler.TextLines(corpus, lambda text: byte_level.encode(text).ids, pad=1)
    assert by_hand[5] == found[0]
    batches = [
        next(iter(sutler.Loader(dataset, batch_size=9)))
        for dataset in (by_hand, sutler.TextLines(corpus, fast))
    ]
    for ours, theirs in zip(*batches, strict=True):
        assert torch.equal(ours, theirs)


def test_lines_are_cut_and_padded_as_asked(corpus: pathlib.Path, word_piece: tokenizers.Tokenizer) -> None:
    word_piece_text = word_piece.to_str()
    cut = tokenizers.Tokenizer.from_str(word_piece_text)
    cut.enable_truncation(12)
    dataset = sutler.TextLines(corpus, word_piece, max_length=12, padding="max_length", attention_mask=True)
    ids, lengths, mask = next(iter(sutler.Loader(dataset, batch_size=300)))
    assert ids.shape == mask.shape == (300, 12)
    assert mask.dtype == torch.int64
    assert torch.equal(mask.sum(1), lengths)
    for index in range(300):
        assert ids[index, : lengths[index]].tolist() == cut.encode(dataset.text(index)).ids
    multiple = sutler.TextLines(corpus, word_piece, pad_to_multiple_of=8)
    for ids, lengths in sutler.Loader(multiple, batch_size=4):
        assert ids.shape[1] == -(-int(lengths.max()) // 8) * 8
    # What transformers calls by these names by default.
    plain = sutler.TextLines(corpus, word_piece, max_length=None, pad_to_multiple_of=None)
    for ids, lengths in sutler.Loader(plain, batch_size=4):
        assert ids.shape[1] == int(lengths.max())
    bare = sutler.TextLines(corpus, word_piece, add_special_tokens=False)
    assert bare[0].tolist() == word_piece.encode(bare.text(0), add_special_tokens=False).ids


SIDES = [("left", "left"), ("left", "right"), ("right", "left"), ("right", "right")]


@pytest.mark.parametrize(("padding_side", "truncation_side"), SIDES)
def test_lines_are_cut_and_padded_at_the_sides_that_a_fast_tokenizer_names(
    padding_side: str, truncation_side: str, corpus: pathlib.Path, word_piece: tokenizers.Tokenizer
) -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_piece,
        pad_token="[PAD]",
        padding_side=padding_side,
        truncation_side=truncation_side,
    )
    dataset = sutler.TextLines(corpus, fast, max_length=12, attention_mask=True)
    travelled = pickle.loads(pickle.dumps(dataset))
    for served in (dataset, travelled):
        first = 0
        for ids, lengths, mask in sutler.Loader(served, batch_size=7):
            texts = [dataset.text(index) for index in range(first, first + len(ids))]
            theirs = fast(texts, padding=True, truncation=True, max_length=12)
            assert ids.tolist() == theirs["input_ids"]
            assert mask.tolist() == theirs["attention_mask"]
            assert mask.sum(1).equal(lengths)
            first += len(ids)


def test_a_tokenizer_file_and_a_function_name_sides_too(
    corpus: pathlib.Path, word_piece: tokenizers.Tokenizer
) -> None:
    left = tokenizers.Tokenizer.from_str(word_piece.to_str())
    left.enable_padding(direction="left", pad_id=left.token_to_id("[PAD]"), pad_token="[PAD]")
    left.enable_truncation(9, direction="left")

    class Function:
        padding_side = truncation_side = "left"
        pad_token_id = left.token_to_id("[PAD]")

        def __call__(self, text: str) -> list[int]:
            return word_piece.encode(text, add_special_tokens=False).ids

    for tokenizer in (left, left.to_str(), Function()):
        dataset = sutler.TextLines(corpus, tokenizer, max_length=9, add_special_tokens=False)
        ids, _ = next(iter(sutler.Loader(dataset, batch_size=16)))
        texts = [dataset.text(index) for index in range(16)]
        assert ids.tolist() == [each.ids for each in left.encode_batch(texts, add_special_tokens=False)]


def test_without_a_tokenizer_lines_are_strings(corpus: pathlib.Path, sentences: list[str]) -> None:
    dataset = sutler.TextLines(corpus)
    assert dataset[3] == sentences[3]
    assert [text for batch in sutler.Loader(dataset, batch_size=8) for text in batch] == sentences
    lengths = list(
        sutler.Loader(dataset, batch_size=8, collate_fn=lambda texts: [len(text) for text in texts])
    )
    assert lengths[0] == [len(text) for text in sentences[:8]]


# --- packing --------------------------------------------------------------------------------------------------------


def documents_of(blocks: list[list[int]], end: int | None) -> list[list[int]]:
    """The documents in a stream of tokens."""
    documents: list[list[int]] = [[]]
    for token in (token for block in blocks for token in block):
        if token == end:
            documents.append([])
        else:
            documents[-1].append(token)
    return documents


def packed_blocks(dataset: sutler.TextLines, **arguments: Any) -> list[list[int]]:
    """The blocks of an epoch as they are served."""
    return [row for ids in sutler.Loader(dataset, batch_size=4, **arguments) for row in ids.tolist()]


def test_packing_delivers_every_token_once(
    corpus: pathlib.Path, sentences: list[str], byte_level: tokenizers.Tokenizer
) -> None:
    end = byte_level.token_to_id("<|endoftext|>")
    expected = encoded(byte_level, sentences)
    dataset = sutler.TextLines(corpus, byte_level, pack=64)
    total = sum(len(line) + 1 for line in expected)
    assert dataset.total_tokens == total
    assert len(dataset) == -(-total // 64)
    blocks = packed_blocks(dataset)
    assert all(len(block) == 64 for block in blocks)
    stream = [token for block in blocks for token in block]
    assert set(stream[total:]) <= {dataset.pad}
    assert documents_of([stream[:total]], end) == [*expected, []]
    assert blocks[7] == dataset[7].tolist()


def test_packing_shuffles_documents_anew_in_every_epoch(
    corpus: pathlib.Path, sentences: list[str], byte_level: tokenizers.Tokenizer
) -> None:
    end = byte_level.token_to_id("<|endoftext|>")
    dataset = sutler.TextLines(corpus, byte_level, pack=64, documents=True, positions=True)

    def epochs(threads: int) -> list[list[torch.Tensor]]:
        loader = sutler.Loader(
            dataset, batch_size=4, shuffle=True, seed=5, num_workers=threads, return_ids=True
        )
        return [[torch.cat(part) for part in zip(*loader, strict=True)] for _ in range(2)]

    found = epochs(3)
    for epoch, same in zip(found, epochs(1), strict=True):
        assert all(torch.equal(*parts) for parts in zip(epoch, same, strict=True))
    orders = []
    for ids, documents, positions, blocks in found:
        assert not torch.equal(blocks, blocks.sort().values)  # blocks are shuffled, too
        tape = [
            block[0] for block in sorted(zip(ids.tolist(), blocks.tolist(), strict=True), key=lambda b: b[1])
        ]
        stream = [token for block in tape for token in block][: dataset.total_tokens]
        orders.append(documents_of([stream], end)[:-1])
        for block, numbers, places in zip(ids.tolist(), documents.tolist(), positions.tolist(), strict=True):
            for before, here in zip(range(63), range(1, 64), strict=True):
                if numbers[here] == 0:
                    continue
                begins = block[before] == end
                assert numbers[here] == numbers[before] + begins
                assert places[here] == (0 if begins else places[before] + 1)
    assert orders[0] != orders[1]
    expected = sorted(encoded(byte_level, sentences))
    assert [sorted(order) for order in orders] == [expected, expected]


def test_the_remainder_is_padded_or_dropped(corpus: pathlib.Path, byte_level: tokenizers.Tokenizer) -> None:
    padded = sutler.TextLines(corpus, byte_level, pack=1000, documents=True)
    dropped = sutler.TextLines(corpus, byte_level, pack=1000, remainder="drop")
    assert padded.total_tokens is not None
    rest = padded.total_tokens % 1000
    assert len(padded) == len(dropped) + 1
    ids, documents = padded[len(padded) - 1]
    assert documents[rest:].tolist() == [0] * (1000 - rest)
    assert set(ids[rest:].tolist()) == {byte_level.token_to_id("<pad>")}
    assert torch.equal(padded[0][0], dropped[0])


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_packing_resumes_exactly(order: Any, corpus: pathlib.Path, byte_level: tokenizers.Tokenizer) -> None:
    def loader() -> sutler.Loader[torch.Tensor]:
        dataset = sutler.TextLines(corpus, byte_level, pack=32)
        return sutler.Loader(dataset, batch_size=4, shuffle=True, seed=1, order=order, num_workers=2)

    whole = sorted(row for ids in loader() for row in ids.tolist())
    for stop in (1, 5, 20):
        first = loader()
        batches = iter(first)
        seen = [row for _ in range(stop) for row in next(batches).tolist()]
        state = json.loads(json.dumps(first.state_dict()))
        second = loader()
        second.load_state_dict(state)
        seen += [row for ids in second for row in ids.tolist()]
        assert sorted(seen) == whole


@pytest.mark.filterwarnings("ignore:ConcatDataset puts native datasets together")
def test_a_function_that_draws_does_so_for_the_loader_of_a_concatenation(corpus: pathlib.Path) -> None:
    lines = sutler.TextLines(corpus, lambda line: [random.randrange(2**40), len(line)], pad=0)
    joined: ConcatDataset[Any] = ConcatDataset([lines])
    with (
        sutler.Loader(joined, batch_size=None, seed=3, num_workers=0) as loader,
        sutler.Loader(lines, batch_size=None, seed=3) as native,
    ):
        epochs = [list(loader) for _ in range(2)]
        assert epochs == [list(native) for _ in range(2)]
    assert epochs[0] != epochs[1]


def test_ranks_share_the_blocks(corpus: pathlib.Path, byte_level: tokenizers.Tokenizer) -> None:
    dataset = sutler.TextLines(corpus, byte_level, pack=32, remainder="drop")
    arguments: dict[str, Any] = {"shuffle": True, "seed": 2, "drop_last": True}
    ranks = [packed_blocks(dataset, rank=rank, world_size=2, **arguments) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1])
    whole = {tuple(block) for block in packed_blocks(dataset, shuffle=True, seed=2)}
    both = [tuple(block) for rank in ranks for block in rank]
    assert len(both) == len(set(both))
    assert set(both) <= whole


def test_counts_are_kept(
    corpus: pathlib.Path, tmp_path: pathlib.Path, byte_level: tokenizers.Tokenizer
) -> None:
    folder = tmp_path / "kept"
    first = sutler.TextLines(corpus, byte_level, pack=32, cache_folder=folder)
    (table,) = folder.iterdir()
    written = table.stat().st_mtime_ns
    second = sutler.TextLines(corpus, byte_level, pack=64, cache_folder=folder)
    assert second.total_tokens == first.total_tokens
    assert [path.stat().st_mtime_ns for path in folder.iterdir()] == [written]
    assert sutler.TextLines(corpus, byte_level).fingerprint != first.fingerprint != second.fingerprint
    with pytest.warns(UserWarning, match="could not be kept for next time"):
        sutler.TextLines(corpus, byte_level, pack=32, cache_folder=corpus / "no folder")


# --- files ----------------------------------------------------------------------------------------------------------


def test_json_lines_and_compressed_files(
    tmp_path: pathlib.Path, sentences: list[str], byte_level: tokenizers.Tokenizer
) -> None:
    lines = [json.dumps({"id": number, "text": text}) for number, text in enumerate(sentences)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(lines[:100]) + "\n\n", encoding="utf-8")
    with gzip.open(tmp_path / "data" / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines[100:]))
    expected = encoded(byte_level, sentences)
    for paths in (
        tmp_path / "data",
        str(tmp_path / "data" / "*.jsonl*"),
        sorted((tmp_path / "data").iterdir()),
    ):
        dataset = sutler.TextLines(paths, byte_level)
        assert [pathlib.Path(file).name for file in dataset.files] == ["a.jsonl", "b.jsonl.gz"]
        assert [tokens.tolist() for tokens in map(dataset.__getitem__, range(300))] == expected
    assert dataset.path(150).endswith("b.jsonl.gz:51")
    other = sutler.TextLines(tmp_path / "data", field="id")
    with pytest.raises(sutler.DecodeError, match='field "id" holds a number instead of a string'):
        other[0]


def test_a_dataset_travels_to_other_processes(corpus: pathlib.Path, byte_level: tokenizers.Tokenizer) -> None:
    dataset = sutler.TextLines(corpus, byte_level, pack=32)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.fingerprint == dataset.fingerprint
    assert torch.equal(copy[3], dataset[3])
    with corpus.open("a") as file:
        file.write("one more\n")
    with pytest.raises(ValueError, match="was sent with fingerprint"):
        pickle.loads(pickle.dumps(dataset))


def test_buckets_of_lines_of_similar_length(corpus: pathlib.Path, byte_level: tokenizers.Tokenizer) -> None:
    dataset = sutler.TextLines(corpus, byte_level)
    assert dataset.token_lengths == [len(dataset[index]) for index in range(300)]
    assert dataset.lengths[0] == len(dataset.text(0).encode()) + 1

    def padding(loader: sutler.Loader[Any]) -> Any:
        sizes = [(ids.numel(), int(lengths.sum())) for ids, lengths in loader]
        return 1 - sum(tokens for _, tokens in sizes) / sum(total for total, _ in sizes)

    plain = padding(sutler.Loader(dataset, batch_size=8, shuffle=True))
    for lengths in (dataset, dataset.token_lengths):
        buckets = sutler.LengthBuckets(lengths, batch_size=8)
        assert padding(sutler.Loader(dataset, batch_sampler=buckets)) < plain / 2
    with pytest.raises(ValueError, match="all have one length"):
        sutler.LengthBuckets(sutler.TextLines(corpus, byte_level, pack=8), batch_size=8)


@pytest.mark.parametrize("output", ["numpy", "dlpack"])
def test_other_outputs(output: Any, corpus: pathlib.Path, byte_level: tokenizers.Tokenizer) -> None:
    dataset = sutler.TextLines(corpus, byte_level, attention_mask=True)
    parts = next(iter(sutler.Loader(dataset, batch_size=4, output=output, return_ids=True)))
    assert [np.asarray(part).shape[0] for part in parts] == [4] * 4
    packed = sutler.TextLines(corpus, byte_level, pack=16, positions=True)
    ids, positions = next(iter(sutler.Loader(packed, batch_size=4, output=output)))
    assert np.array_equal(np.asarray(ids)[2], packed[2][0].numpy())
    assert np.array_equal(np.asarray(positions)[2], packed[2][1].numpy())
    rows = next(iter(sutler.Loader(packed, batch_size=4, output=output, collate_fn=list)))
    assert np.array_equal(rows[2][1], packed[2][1].numpy())
    single = next(iter(sutler.Loader(packed, batch_size=None, output=output)))
    assert np.array_equal(single[0], packed[0][0].numpy())


# --- what is bad ----------------------------------------------------------------------------------------------------


@pytest.fixture
def spoiled(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "spoiled.jsonl"
    good = [json.dumps({"text": f"good line {number}"}).encode() for number in range(20)]
    good[4] = b'{"text": "cut off'
    good[9] = b'{"body": "no text"}'
    good[13] = b'{"text": "\xff"}'
    path.write_bytes(b"\n".join(good))
    return path


def test_bad_lines_are_named_and_left_out(spoiled: pathlib.Path, byte_level: tokenizers.Tokenizer) -> None:
    dataset = sutler.TextLines(spoiled, byte_level)
    with pytest.raises(sutler.DecodeError, match=r"spoiled\.jsonl:5.*not a JSON object.*column 17"):
        list(sutler.Loader(dataset, batch_size=4))
    loader = sutler.Loader(dataset, batch_size=4, errors="skip")
    assert sum(len(lengths) for _, lengths in loader) == 17
    told = [(failure.id, failure.kind, failure.path.rsplit(":")[-1]) for failure in sorted(loader.failures())]
    assert told == [(4, "json", "5"), (9, "field", "10"), (13, "not_utf8", "14")]
    with pytest.raises(sutler.ErrorBudgetExceeded):
        list(sutler.Loader(dataset, batch_size=4, errors=sutler.Errors(max=2)))


def test_packing_tells_of_bad_lines_before_it_begins(
    spoiled: pathlib.Path, byte_level: tokenizers.Tokenizer
) -> None:
    with pytest.raises(sutler.DecodeError, match=r"spoiled\.jsonl:5"):
        sutler.TextLines(spoiled, byte_level, pack=16)
    dataset = sutler.TextLines(spoiled, byte_level, pack=16, bad_lines="skip")
    assert [failure.id for failure in dataset.skipped_lines] == [4, 9, 13]
    end = byte_level.token_to_id("<|endoftext|>")
    assert sum(token == end for block in packed_blocks(dataset) for token in block) == 17


def test_a_file_that_changes_is_noticed(corpus: pathlib.Path, byte_level: tokenizers.Tokenizer) -> None:
    packed = sutler.TextLines(corpus, byte_level, pack=32)
    text = corpus.read_text(encoding="utf-8")
    # As long as before, with the same lines, but other words in them.
    corpus.write_text(text.replace("wagon", "w a g"), encoding="utf-8")
    with pytest.raises(sutler.ReadError, match=r"corpus\.txt:\d+.*when they were counted"):
        packed_blocks(packed)
    lines = sutler.TextLines(corpus, byte_level)
    corpus.write_text("x" + text, encoding="utf-8")
    with pytest.raises(sutler.ReadError, match="was changed after its lines had been found"):
        lines[7]


def test_wrong_arguments_are_explained(
    corpus: pathlib.Path,
    tmp_path: pathlib.Path,
    byte_level: tokenizers.Tokenizer,
    word_piece: tokenizers.Tokenizer,
) -> None:
    bare = sutler.testing.word_tokenizer({"[UNK]": 0, "army": 1})
    with pytest.raises(ValueError, match="has no token for that; pass pad="):
        sutler.TextLines(corpus, bare)
    with pytest.raises(ValueError, match="has none by the usual names"):
        sutler.TextLines(corpus, bare, pack=8)
    with pytest.raises(ValueError, match="no token '<nothing>'"):
        sutler.TextLines(corpus, bare, pad="<nothing>")
    with pytest.raises(ValueError, match="no token number 7"):
        sutler.TextLines(corpus, bare, pack=8, eos=7)
    with pytest.raises(ValueError, match=r"is no tokenizer\.json"):
        sutler.TextLines(corpus, "{}")
    with pytest.raises(FileNotFoundError, match="There is no tokenizer at"):
        sutler.TextLines(corpus, tmp_path / "none.json")
    with pytest.raises(TypeError, match="tokenizer should be"):
        sutler.TextLines(corpus, 3)
    with pytest.raises(FileNotFoundError, match="nothing at"):
        sutler.TextLines(tmp_path / "none.txt", byte_level)
    with pytest.raises(FileNotFoundError, match="No file matches"):
        sutler.TextLines(str(tmp_path / "*.log"), byte_level)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no files of text"):
        sutler.TextLines(tmp_path / "empty", byte_level)
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(ValueError, match="holds JSON lines by its name"):
        sutler.TextLines([corpus, tmp_path / "a.jsonl"], byte_level)
    with pytest.raises(ValueError, match="leaves none for the text"):
        sutler.TextLines(corpus, word_piece, max_length=2)
    wrong: list[dict[str, Any]] = [
        {"pack": 0},
        {"pack": 8, "max_length": 4},
        {"documents": True},
        {"padding": "max_length"},
        {"padding": "left"},
        {"pad_to_multiple_of": 0},
        {"remainder": "keep", "pack": 8},
        {"bad_lines": "keep", "pack": 8},
    ]
    for arguments in wrong:
        with pytest.raises(ValueError):  # noqa: PT011 - each has a sentence of its own
            sutler.TextLines(corpus, byte_level, **arguments)
    with pytest.raises(ValueError, match="eos= closes every line in packed blocks"):
        sutler.TextLines(corpus, byte_level, eos=0)
    with pytest.raises(ValueError, match="pass documents=True, which is 0 for padding"):
        sutler.TextLines(corpus, byte_level, pack=8, attention_mask=True)
    with pytest.raises(ValueError, match="native threads count"):
        sutler.TextLines(corpus, str.split, pack=8)
    dataset = sutler.TextLines(corpus, byte_level)
    with pytest.raises(IndexError):
        dataset[300]
    with pytest.raises(ValueError, match="order='shared' is for images and sound"):
        sutler.Loader(dataset, order="shared")
    with pytest.raises(TypeError, match="holds text"):
        sutler.plan(dataset, memory="1MiB")
    with pytest.raises(AttributeError, match="no labels"):
        dataset.targets  # noqa: B018 - asking is the test


def test_empty_lines_are_no_samples_unless_asked_for(
    tmp_path: pathlib.Path, byte_level: tokenizers.Tokenizer
) -> None:
    path = tmp_path / "sparse.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\n   \r\ntwo\r\n")
    assert list(map(sutler.TextLines(path).__getitem__, range(2))) == ["one", "two"]
    kept = sutler.TextLines(path, byte_level, keep_empty=True)
    assert [kept.text(index) for index in range(4)] == ["one", "", "   ", "two"]
    _, lengths = next(iter(sutler.Loader(kept, batch_size=4)))
    assert lengths.tolist()[1] == 0
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert list(sutler.Loader(sutler.TextLines(empty, byte_level))) == []
    assert list(sutler.Loader(sutler.TextLines(empty, byte_level, pack=8))) == []


def test_packing_closes_empty_lines_where_they_are_kept(
    tmp_path: pathlib.Path, byte_level: tokenizers.Tokenizer
) -> None:
    lines = tmp_path / "sparse.txt"
    lines.write_text("foo\n\nbar\n")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "foo"}\n{"text": ""}\nno JSON\n{"text": "bar"}\n')
    nothing = tmp_path / "nothing.jsonl"
    nothing.write_text('{"text": ""}\n{"text": ""}\n')
    end = byte_level.token_to_id("<|endoftext|>")
    foo, bar = encoded(byte_level, ["foo", "bar"])

    def packed(path: pathlib.Path, *, keep_empty: bool) -> sutler.TextLines:
        arguments: dict[str, Any] = {"documents": True, "positions": True, "bad_lines": "skip"}
        return sutler.TextLines(path, byte_level, pack=16, keep_empty=keep_empty, **arguments)

    for path in (lines, rows):
        for keep_empty, between in ((False, []), (True, [end])):
            dataset = packed(path, keep_empty=keep_empty)
            expected = [*foo, end, *between, *bar, end]
            assert dataset.total_tokens == len(expected), "a line that cannot be read is not closed"
            for _ in range(2):  # from the counts that were kept, too
                ids, documents, positions = packed(path, keep_empty=keep_empty)[0]
                assert ids.tolist()[: len(expected)] == expected
                assert documents.max() == 2 + keep_empty
            if keep_empty:
                assert positions[len(foo) + 1] == 0
    assert len(packed(nothing, keep_empty=False)) == 0
    assert packed(nothing, keep_empty=True)[0][0].tolist()[:2] == [end, end]
    states = [sutler.Loader(packed(lines, keep_empty=keep)).state_dict() for keep in (False, True)]
    assert states[0]["fingerprint"] != states[1]["fingerprint"]


# --- the command line -------------------------------------------------------------------------------------------------


def inspect(path: pathlib.Path, *options: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "sutler", "inspect", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_inspect_tells_of_lines_and_tokens(
    corpus: pathlib.Path, spoiled: pathlib.Path, tmp_path: pathlib.Path, byte_level: tokenizers.Tokenizer
) -> None:
    byte_level.save(str(tmp_path / "tokenizer.bin"))
    dataset = sutler.TextLines(corpus, byte_level)
    facts = json.loads(inspect(corpus, "--json", "--tokenizer", str(tmp_path / "tokenizer.bin")))
    assert (facts["files"], facts["samples"], facts["bytes"]) == (1, 300, corpus.stat().st_size)
    assert facts["tokens"] == sum(dataset.token_lengths)
    assert facts["line_tokens"]["max"] == max(dataset.token_lengths)
    assert facts["line_bytes"]["min"] == min(dataset.lengths)
    assert facts["broken"] == []
    facts = json.loads(inspect(spoiled, "--json", code=1))
    assert [(broken["path"].rsplit(":")[-1], broken["kind"]) for broken in facts["broken"]] == [
        ("5", "json"),
        ("10", "field"),
        ("14", "not_utf8"),
    ]
    assert "320 lines in 2 files" in inspect(tmp_path, code=1), "one of them is no text"
    assert "3 lines are broken" in inspect(spoiled, code=1)


@pytest.mark.parametrize("made", [[1.5, 2.5], "12", None, [2**70]], ids=repr)
def test_a_function_that_returns_no_numbers_is_told_so(tmp_path: pathlib.Path, made: Any) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    dataset = sutler.TextLines(tmp_path / "lines.txt", lambda line: made, pad=0)
    with pytest.raises(TypeError, match="should return the numbers of a line's tokens"):
        next(iter(sutler.Loader(dataset, 2)))
