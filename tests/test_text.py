from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import TokenizersBackend

from backend.errors import ModelUnavailable, RequestError
from backend.request import Request
from backend.text import OutputText, Released, Vocabulary

EMOJI_PROMPT = "Repeat: 👩‍🚀漢字नमस्ते🇫🇷"
SPACED = "a b  c\n  d"


class Pieces:
    """Stands in for a Vocabulary: token i adds the i-th given bytes."""

    def __init__(self, *pieces: bytes | str) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def output(self, stop: tuple[str, ...] = (), num_prefix: int = 0) -> OutputText:
        return OutputText(cast(Vocabulary, self), stop, range(num_prefix))


def stream(*pieces: bytes | str, stop: tuple[str, ...] = (), num_prefix: int = 0) -> list[Released]:
    """One result per token after the prefix until a stop; if there is none, then that of finish."""
    output = Pieces(*pieces).output(stop, num_prefix)
    results: list[Released] = []
    for token_id in range(num_prefix, len(pieces)):
        results.append(output.push(token_id))
        if results[-1].stopped:
            return results
    return [*results, output.finish()]


def texts(results: list[Released]) -> list[tuple[str, ...]]:
    return [released.texts for released in results]


def cut(data: bytes, places: set[int]) -> list[bytes]:
    borders = [0, *sorted(place for place in places if 0 < place < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(borders)]


def first_match(text: str, stop: list[str]) -> int | None:
    return min((text.find(string) for string in stop if string in text), default=None)


@pytest.fixture(scope="module")
def byte_level() -> TokenizersBackend:
    """Trained on few characters, so that others arrive in parts; then three added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat, the end\n\n\n😀 the"] * 9, trainer)
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("\t\t \t"), AddedToken("日本")])
    return TokenizersBackend(tokenizer_object=tokenizer)


@pytest.fixture(scope="module")
def sentence_piece() -> TokenizersBackend:
    """Llama 2 style: "▁" for a space, one token per byte for what has no token of its own."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    names = ["<unk>", "<s>", "</s>", *byte_tokens, *"▁abcdé", "▁a", "▁b", "▁▁"]
    merges = [("▁", "a"), ("▁", "b"), ("▁", "▁")]
    vocab = {name: token_id for token_id, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return TokenizersBackend(tokenizer_object=tokenizer)


# Labels


def test_byte_level_labels_are_text_with_lone_bytes_escaped(byte_level: TokenizersBackend) -> None:
    vocabulary = Vocabulary(byte_level)
    ids = byte_level.encode("the 🚀é")
    assert [vocabulary.label(token_id) for token_id in ids] == [
        "the",
        " ",
        "<0xF0 0x9F>",
        "<0x9A>",
        "<0x80>",
        "<0xC3>",
        "<0xA9>",
    ]


def test_a_token_of_several_lone_bytes_has_one_escape_and_whole_characters_stay_text() -> None:
    # In the byte alphabet: Ġ space, ð 0xF0, Ł 0x9F, ĺ 0x98, Ģ 0x80, Ã© é.
    names = ["ðŁ", "ĺĢ", "ĠðŁ", "ĺĢĠaÃ©ð", "ðŁĺĢ"]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary = Vocabulary(TokenizersBackend(tokenizer_object=tokenizer))
    assert [vocabulary.label(token_id) for token_id in range(5)] == [
        "<0xF0 0x9F>",
        "<0x98 0x80>",
        " <0xF0 0x9F>",
        "<0x98 0x80> aé<0xF0>",
        "😀",
    ]
    assert vocabulary.token_bytes(3) == b"\x98\x80 a\xc3\xa9\xf0"


def test_every_byte_has_its_own_label(
    byte_level: TokenizersBackend, sentence_piece: TokenizersBackend
) -> None:
    for tokenizer in (byte_level, sentence_piece):
        vocabulary = Vocabulary(tokenizer)
        labels = [vocabulary.label(token_id) for token_id in range(vocabulary.size)]
        assert {f"<0x{byte:02X}>" for byte in range(0x80, 0x100)} <= set(labels)
        assert not any("\ufffd" in label for label in labels)


def test_special_tokens_are_named_and_add_no_text(byte_level: TokenizersBackend) -> None:
    vocabulary = Vocabulary(byte_level)
    end = byte_level.get_vocab()["<|end|>"]
    assert vocabulary.is_special(end)
    assert (vocabulary.label(end), vocabulary.token_bytes(end)) == ("<|end|>", b"")


def test_added_tokens_that_are_not_special_are_text(byte_level: TokenizersBackend) -> None:
    vocabulary = Vocabulary(byte_level)
    for name in ("<think>", "\t\t \t", "日本"):
        token_id = byte_level.get_vocab()[name]
        assert not vocabulary.is_special(token_id)
        assert (vocabulary.label(token_id), vocabulary.token_bytes(token_id)) == (name, name.encode())


def test_ids_beyond_the_tokenizer_are_labelled_by_number_and_add_no_text(
    byte_level: TokenizersBackend,
) -> None:
    vocabulary = Vocabulary(byte_level)
    assert vocabulary.size == len(byte_level)
    assert vocabulary.label(vocabulary.size - 1) == "日本"
    for token_id in (vocabulary.size, 151_700, -1):
        assert vocabulary.label(token_id) == f"<id {token_id}>"
        assert vocabulary.token_bytes(token_id) == b""
        assert not vocabulary.is_special(token_id)


def test_sentence_piece_tokens_keep_their_space_and_bytes(sentence_piece: TokenizersBackend) -> None:
    vocabulary = Vocabulary(sentence_piece)
    ids = [sentence_piece.get_vocab()[name] for name in ("▁a", "▁▁", "é", "<0x0A>", "<0xF0>", "</s>")]
    assert [vocabulary.label(i) for i in ids] == [" a", "  ", "é", "\n", "<0xF0>", "</s>"]
    assert [vocabulary.token_bytes(i) for i in ids] == [b" a", b"  ", b"\xc3\xa9", b"\n", b"\xf0", b""]


def test_metaspace_tokens_keep_their_space_and_have_no_byte_tokens() -> None:
    pieces = [("<unk>", 0.0), ("▁a", -1.0), ("b", -1.0), ("<0x0A>", -1.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    vocabulary = Vocabulary(TokenizersBackend(tokenizer_object=tokenizer))
    assert [vocabulary.label(token_id) for token_id in (1, 2, 3)] == [" a", "b", "<0x0A>"]


WORDS = ["[UNK]", "[CLS]", "play", "##ing", "##ed", "walk", "##s", ".", ",", "'", "s", "don", "t", "é", "##é"]


def words(decoder: decoders.Decoder | None, model: str = "WordPiece") -> TokenizersBackend:
    vocab = {name: token_id for token_id, name in enumerate(WORDS)}
    made = models.WordPiece(vocab, unk_token="[UNK]") if model == "WordPiece" else models.WordLevel(vocab)
    tokenizer = Tokenizer(made)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["[CLS]"])
    return TokenizersBackend(tokenizer_object=tokenizer)


@pytest.mark.parametrize(
    "text",
    ["playing walking", "plays, played.", "walk 's", "don ' t play s", "é walk é", "walké . [CLS] play"],
)
@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.WordPiece(cleanup=False),
        decoders.Sequence([decoders.WordPiece(), decoders.Replace("é", "e")]),
        None,
        decoders.Fuse(),
    ],
)
def test_words_read_as_decoding_at_once_reads_them(decoder: decoders.Decoder | None, text: str) -> None:
    tokenizer = words(decoder, "WordLevel" if decoder is None else "WordPiece")
    vocabulary = Vocabulary(tokenizer)
    before, ids = vocabulary.encode("walk"), vocabulary.encode(text) if decoder else [2, 7, 5, 13, 2]
    whole = tokenizer.decode(before + ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    start = tokenizer.decode(before, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert start + vocabulary.text(ids) == whole


@pytest.mark.parametrize(
    ("decoder", "why"),
    [
        (decoders.BPEDecoder(), "its words end in '</w>'"),
        (decoders.BPEDecoder("@@"), "its words end in '@@'"),
        (decoders.Sequence([decoders.BPEDecoder("</w>"), decoders.Fuse()]), "its words end in '</w>'"),
        (decoders.CTC(), "it merges equal tokens"),
    ],
)
def test_tokens_that_what_follows_changes_are_refused(decoder: decoders.Decoder, why: str) -> None:
    with pytest.raises(ModelUnavailable, match=f"cannot be read token by token: {why}"):
        Vocabulary(words(decoder))


def test_half_a_surrogate_pair_is_refused_by_position(byte_level: TokenizersBackend) -> None:
    with pytest.raises(RequestError, match=r"character 2 .*'\\ud83d'"):
        Vocabulary(byte_level).encode("ab\ud83d")


# Text without stop strings


@pytest.mark.parametrize("kind", ["byte_level", "sentence_piece"])
def test_no_replacement_character_shows_while_characters_arrive_in_parts(
    kind: str, request: pytest.FixtureRequest
) -> None:
    vocabulary = Vocabulary(request.getfixturevalue(kind))
    ids = vocabulary.encode(EMOJI_PROMPT)
    assert len(ids) > len(EMOJI_PROMPT)
    output = OutputText(vocabulary, ())
    states = []
    for token_id in ids:
        output.push(token_id)
        states.append(output.text)
    output.finish()
    assert not any("\ufffd" in state for state in states)
    # A sentence-piece text begins with a space, which stays: output continues a prompt.
    assert output.text == {"byte_level": "", "sentence_piece": " "}[kind] + EMOJI_PROMPT


@pytest.mark.parametrize("kind", ["byte_level", "sentence_piece"])
@pytest.mark.parametrize("text", [SPACED, EMOJI_PROMPT, " the  cat\n\n\n", "ab\r\n\té\u00a0"])
def test_joined_chunks_are_what_decoding_at_once_appends_to_the_prompt(
    kind: str, text: str, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(kind)
    prompt, ids = tokenizer.encode("a"), tokenizer.encode(text)
    output = OutputText(Vocabulary(tokenizer), ())
    joined = "".join(output.push(token_id).text for token_id in ids) + output.finish().text
    assert tokenizer.decode(prompt) + joined == tokenizer.decode(prompt + ids)


def test_text_without_spaces_grows_with_every_token(byte_level: TokenizersBackend) -> None:
    vocabulary = Vocabulary(byte_level)
    output = OutputText(vocabulary, ())
    released = [output.push(token_id) for token_id in vocabulary.encode("abcdefghij" * 20)]
    assert all(len(result.texts) == 1 and result.text for result in released)
    assert output.text == "abcdefghij" * 20


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    assert texts(stream(b"a\xf0\x9f", b"\x98", b"\x80b")) == [("a",), ("",), ("😀b",), ()]


def test_an_incomplete_last_character_adds_nothing_but_its_token_counts() -> None:
    assert texts(stream(b"a", b"\xf0\x9f")) == [("a",), ("",), ()]


def test_invalid_bytes_become_replacement_characters() -> None:
    assert texts(stream(b"a\xff", b"\xe6\xbc", b"b\x80")) == [("a\ufffd",), ("",), ("\ufffdb\ufffd",), ()]


def test_a_special_token_does_not_break_a_character() -> None:
    assert texts(stream(b"\xc3", b"", b"\xa9")) == [("",), ("",), ("é",), ()]


# Stop strings


def test_the_start_of_a_stop_string_is_held_back_until_it_is_complete() -> None:
    results = stream("he", "l", "lo", ", w", "orld", stop=("lo, wor",))
    assert texts(results) == [("he",), (), ("l",), (), ()]
    assert results[-1].stopped


def test_held_tokens_are_released_at_once_when_the_stop_string_fails() -> None:
    results = stream("he", "l", "lo", ", w", "ind", stop=("lo, wor",))
    assert texts(results) == [("he",), (), ("l",), (), ("lo", ", w", "ind"), ()]


def test_a_token_across_the_start_of_the_stop_keeps_its_part_before_it() -> None:
    assert stream("a", "bc}", "} d", stop=("}}",)) == [
        Released(("a",)),
        Released(),
        Released(("bc",), stopped=True, clipped=True),
    ]


def test_a_token_with_nothing_before_the_stop_is_dropped() -> None:
    assert stream("a", "}", "} d", stop=("}}",))[-1] == Released((), stopped=True)


def test_bytes_of_a_character_that_the_stop_begins_with_are_dropped() -> None:
    assert texts(stream("a", b"\xf0\x9f", b"\x98\x80", stop=("😀",))) == [("a",), (), ()]


def test_bytes_of_a_character_before_the_stop_are_kept() -> None:
    results = stream("a", b"\xf0\x9f", b"\x9a\x80x", stop=("x",))
    assert results == [Released(("a",)), Released(("",)), Released(("🚀",), stopped=True, clipped=True)]


def test_an_incomplete_character_is_held_only_while_it_may_begin_a_stop() -> None:
    assert texts(stream(b"\xf0\x9f", b"\x9a", b"\x80", stop=("😀",))) == [(), ("", ""), ("🚀",), ()]


def test_an_invalid_character_matches_a_replacement_character_in_a_stop() -> None:
    assert texts(stream("a", b"\xf0", "b", stop=("\ufffdb",))) == [("a",), (), ()]


@pytest.mark.parametrize(
    ("pieces", "stop", "shown"),
    [
        (["b", "a", "nana"], ("a",), "b"),
        (["f(x) { y", "}", "}"], ("}",), "f(x) { y"),
        (["{{a}", " }", "}", "b"], ("}}",), "{{a} "),
        (["one", "\n\n\n", "two"], ("\n\n",), "one"),
        (["one\n", "\n", "two"], ("\n\n",), "one"),
        (["a", "a", "a", "b"], ("aab",), "a"),
        (["abababc"], ("ababc",), "ab"),
        (["The", " T"], ("T",), ""),
        (["xy", "z"], ("yz", "xyz"), ""),
        (["ab", "c", "d"], ("abcd", "bc"), ""),
        (["ab", "c", "x"], ("abcd", "bc"), "a"),
        (["naï", "ve"], ("ïv",), "na"),
        (["漢", "字"], ("字",), "漢"),
    ],
)
def test_text_ends_where_the_first_stop_string_begins(
    pieces: list[str], stop: tuple[str, ...], shown: str
) -> None:
    for tokens in (pieces, list("".join(pieces)), ["".join(pieces)]):
        results = stream(*tokens, stop=stop)
        assert results[-1].stopped
        assert "".join(result.text for result in results) == shown


def test_a_shorter_stop_waits_for_a_longer_one_that_began_before_and_wins_at_the_end() -> None:
    assert stream("ab", "c", stop=("abcd", "bc")) == [
        Released(),
        Released(),
        Released(("a",), stopped=True, clipped=True),
    ]


def test_a_match_does_not_wait_for_a_longer_stop_that_begins_at_the_same_place() -> None:
    assert stream("a", "x", "y", stop=("xy", "x")) == [Released(("a",)), Released((), stopped=True)]


def test_held_tokens_are_released_at_the_end() -> None:
    assert stream("a", "\n", stop=("\n\n",)) == [Released(("a",)), Released(), Released(("\n",))]
    assert stream(b"a\xf0", b"\x9f", stop=("😀",)) == [Released(), Released(), Released(("a", ""))]


def test_a_special_token_before_the_stop_is_kept_and_one_inside_is_dropped() -> None:
    assert texts(stream("a", b"", "x", b"", "y", stop=("xy",))) == [("a",), ("",), (), (), ()]


def test_tokens_after_the_stop_are_dropped() -> None:
    output = Pieces("a", "x", "b").output(("x",))
    output.push(0)
    for result in (output.push(1), output.push(2), output.finish()):
        assert result == Released((), stopped=True)
    assert output.text == "a"


def test_tokens_after_finish_are_dropped() -> None:
    output = Pieces("a", "b").output(("ax",))
    output.push(0)
    assert [output.finish(), output.push(1), output.finish()] == [Released(("a",)), Released(), Released()]
    assert output.text == "a"


def test_empty_and_repeated_stop_strings_do_not_empty_the_output() -> None:
    assert stream("a", "bx", stop=("", "x", "x"))[-1] == Released(("b",), stopped=True, clipped=True)
    assert Request("p", stop=("", "x", "x")).stop == ("x",)
    assert texts(stream("a", stop=("",))) == [("a",), ()]


# A fixed prefix


def test_nothing_of_the_prefix_is_released() -> None:
    output = Pieces("ab", "c", "d").output(("cx",), num_prefix=2)
    assert (output.push(2), output.text) == (Released(("d",)), "d")


def test_a_character_begun_in_the_prefix_belongs_to_the_token_that_completes_it() -> None:
    assert texts(stream(b"\xf0\x9f", b"\x98\x80", num_prefix=1)) == [("😀",), ()]


def test_a_stop_string_begun_in_the_prefix_shows_nothing_new() -> None:
    assert stream("a}", "", "} b", stop=("}}",), num_prefix=1) == [
        Released(),
        Released((), stopped=True),
    ]


def test_a_stop_string_begun_in_the_prefix_that_fails_releases_only_new_tokens() -> None:
    assert texts(stream("a<", "e", "n", "t", stop=("<end>",), num_prefix=1)) == [(), (), ("e", "n", "t"), ()]


def test_a_stop_string_wholly_in_the_prefix_does_not_match() -> None:
    assert texts(stream("a\n\n", "b", stop=("\n\n",), num_prefix=1)) == [("b",), ()]
    assert texts(stream("abc", "x", stop=("abcd", "bc"), num_prefix=1)) == [("x",), ()]


# Any text, any tokens, any stop strings

texts_of_few_letters = st.text("abé😀", max_size=12)
some_stops = st.lists(st.text("abé😀", min_size=1, max_size=4), max_size=3)
some_places = st.sets(st.integers(1, 40))


@settings(max_examples=300, deadline=None)
@given(texts_of_few_letters, some_places, some_stops)
def test_shown_text_and_tokens_end_at_the_first_match(text: str, places: set[int], stop: list[str]) -> None:
    tokens = [token for token in cut(text.encode(), places) if token]
    results = stream(*tokens, stop=tuple(stop))
    match = first_match(text, stop)
    shown = text[:match]
    assert "".join(result.text for result in results) == shown
    assert results[-1].stopped == (match is not None)
    # The fewest tokens that cover the shown text.
    num_bytes = len(shown.encode())
    num_released = sum(len(result.texts) for result in results)
    assert len(b"".join(tokens[:num_released])) >= num_bytes
    assert num_released == 0 or len(b"".join(tokens[: num_released - 1])) < num_bytes
    assert results[-1].clipped == (len(b"".join(tokens[:num_released])) > num_bytes)


@settings(max_examples=300, deadline=None)
@given(texts_of_few_letters, some_places, some_stops)
def test_a_token_is_held_exactly_while_a_stop_string_may_begin_in_it(
    text: str, places: set[int], stop: list[str]
) -> None:
    tokens = [token for token in cut(text.encode(), places) if token]
    output = Pieces(*tokens).output(tuple(stop))
    num_released = 0
    for token_id in range(len(tokens)):
        released = output.push(token_id)
        num_released += len(released.texts)
        if released.stopped:
            return
        # Independent of the code: UTF-8 is compared byte by byte. Where may a stop string begin?
        data = b"".join(tokens[: token_id + 1])
        open_at = min(
            (i for i in range(len(data)) for string in stop if string.encode().startswith(data[i:])),
            default=len(data),
        )
        expected = sum(len(b"".join(tokens[: n + 1])) <= open_at for n in range(token_id + 1))
        assert num_released == expected
        assert output.text == data[: len(b"".join(tokens[:expected]))].decode("utf-8", "ignore")


# Every beginning of a character that the bytes above can form.
INCOMPLETE = [b"\xf0", b"\xf0\x9f", b"\xf0\x98", b"\xf0\x9f\x9f", b"\xf0\x9f\x98", b"\xf0\x9f\x80"]
INCOMPLETE += [
    b"\xf0\x98\x9f",
    b"\xf0\x98\x98",
    b"\xf0\x98\x80",
    b"\xed",
    b"\xed\x9f",
    b"\xed\x98",
    b"\xed\x80",
]
INCOMPLETE += [b"\xe2", b"\xe2\x9f", b"\xe2\x98", b"\xe2\x80", b"\xc3"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([b"a", b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xed", b"\xe2", b"\xff", b"\xc3"])),
    some_places,
)
def test_without_stops_chunks_join_to_the_text_decoded_at_once(units: list[bytes], places: set[int]) -> None:
    data = b"".join(units)
    results = stream(*cut(data, places))
    joined = "".join(result.text for result in results)
    # Decoding at once turns an incomplete last character into U+FFFD; streaming leaves it out.
    tail = data.decode("utf-8", "replace").removeprefix(joined)
    assert data.decode("utf-8", "replace") == joined + tail
    assert tail in ("", "\ufffd")
    assert tail == "" or any(data.endswith(start) for start in INCOMPLETE)


@settings(max_examples=200, deadline=None)
@given(texts_of_few_letters, some_places, some_stops, st.integers(0, 4))
def test_a_prefix_changes_only_what_is_released(
    text: str, places: set[int], stop: list[str], num_prefix: int
) -> None:
    tokens = [token for token in cut(text.encode(), places) if token]
    num_prefix = min(num_prefix, len(tokens))
    fixed = b"".join(tokens[:num_prefix]).decode("utf-8", "ignore")
    matches = [
        start
        for start in range(len(text))
        for string in stop
        if text.startswith(string, start) and start + len(string) > len(fixed)
    ]
    shown = text[len(fixed) : max(len(fixed), min(matches, default=len(text)))]
    results = stream(*tokens, stop=tuple(stop), num_prefix=num_prefix)
    assert "".join(result.text for result in results) == shown
    assert results[-1].stopped == bool(matches)


@settings(max_examples=100, deadline=None)
@given(text=st.text("ab c\n\t é😀漢🇫", max_size=20))
def test_streaming_gives_back_what_was_encoded(
    byte_level: TokenizersBackend, sentence_piece: TokenizersBackend, text: str
) -> None:
    for tokenizer, expected in ((byte_level, text), (sentence_piece, " " + text if text else "")):
        vocabulary = Vocabulary(tokenizer)
        output = OutputText(vocabulary, ())
        for token_id in vocabulary.encode(text):
            output.push(token_id)
        assert output.text == expected
