"""Token ids against Hugging Face tokenizers. By default a short run; the whole one:

    ESSH=./essh tests/cli/tokenizer_huggingface.py --strings 1000000 --run-bytes 8388608
"""
import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import unittest

from _command import EXIT_BAD_FILE, EXIT_UNSUPPORTED, essh, essh_json

try:
    import _tokenizers as known
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
except ImportError as missing:
    print(f"{missing}; install tokenizers")
    sys.exit(77)

OPTIONS = argparse.Namespace(strings=40000, run_bytes=1 << 18, seed=1, data=known.SHARED)
BATCH = 50000


def our_ids(tokenizer, texts, *options):
    """Ids of each text, all in one process."""
    lines = "".join(json.dumps(text) + "\n" for text in texts).encode()
    result = essh("tokenizer", "encode", "--tokenizer", tokenizer, "--jsonl", *options, stdin=lines)
    assert result.returncode == 0, result.stderr.decode(errors="replace")
    return [json.loads(line) for line in result.stdout.splitlines()]


def their_ids(tokenizer, texts, add_special_tokens=False):
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


class Fixture:
    """Files and tokenizers that the tests share."""

    def __init__(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.code = known.code_files(2_000_000)
        self.texts = [read(path) for path in self.code]
        self.pairs = {}  # name -> (file for us, tokenizer of theirs)
        for pattern in ("gpt2", "llama3"):
            path = self.path(f"trained_{pattern}.json")
            self.trained = self.train(path, pattern)
            self.pairs[f"trained {pattern}"] = (path, Tokenizer.from_file(path))
        self.has_data = known.shared_data(OPTIONS.data, self.temporary.name)
        if self.has_data:
            for name, file, make in (("gpt2", "tok/gpt2_vocab.bpe", known.gpt2), ("llama3", "tok/llama3_tokenizer.model", known.llama3)):
                self.pairs[name] = (self.path(file), make(self.path(file)))

    def path(self, name):
        return os.path.join(self.temporary.name, name)

    def train(self, path, pattern, *options):
        return essh_json("tokenizer", "train", *self.code, "-o", path, "--vocab-size", 2000, "--pattern", pattern, "--json", "--force", *options)


def setUpModule():
    Comparison.shared = Fixture()


def tearDownModule():
    Comparison.shared.temporary.cleanup()


class Comparison(unittest.TestCase):
    shared = None  # the Fixture

    def setUp(self):
        self.pairs, self.texts, self.path = self.shared.pairs, self.shared.texts, self.shared.path

    def compare(self, ours, theirs, texts, *options, **their_options):
        for text, mine, other in zip(texts, our_ids(ours, texts, *options), their_ids(theirs, texts, **their_options), strict=True):
            if mine != other:
                self.fail(f"{text[:200]!r}: {mine[:50]} is not {other[:50]}")

    def save(self, name, tokenizer):
        tokenizer.save(self.path(name))
        return self.path(name)

    def variant(self, name, **parts):
        """The GPT-2 style trained tokenizer with other components, saved for us; (path, tokenizer)."""
        tokenizer = Tokenizer.from_file(self.pairs["trained gpt2"][0])
        for part, value in parts.items():
            setattr(tokenizer, part, value)
        return self.save(name, tokenizer), tokenizer


class Ids(Comparison):
    def test_code(self):
        for name, (ours, theirs) in self.pairs.items():
            with self.subTest(name):
                self.compare(ours, theirs, self.texts)

    def test_texts_at_hand(self):
        # Prose: the shared texts if present, or our documents and the licences on every Debian.
        here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
        folders = [self.path("text")] if self.shared.has_data else [here, "/usr/share/common-licenses"]
        texts = []
        for root, _, files in itertools.chain.from_iterable(map(os.walk, folders)):
            texts += [read(os.path.join(root, file)) for file in sorted(files) if not file.endswith(".png")]
        self.assertTrue(texts)
        for name, (ours, theirs) in self.pairs.items():
            with self.subTest(name):
                self.compare(ours, theirs, texts)

    def test_random_unicode(self):
        strings = known.random_strings(OPTIONS.strings, OPTIONS.seed)
        while batch := list(itertools.islice(strings, BATCH)):
            for name, (ours, theirs) in self.pairs.items():
                with self.subTest(name):
                    self.compare(ours, theirs, batch)

    def test_every_code_point_alone_and_between_letters(self):
        texts = []
        for begin in range(0, 0x110000, 64):
            codes = [chr(c) for c in range(begin, begin + 64) if not 0xD800 <= c <= 0xDFFF]
            texts.append("".join(f"a{c}.{c} {c}1" for c in codes))
        for name in ("trained gpt2", "trained llama3"):
            with self.subTest(name):
                self.compare(*self.pairs[name], texts)

    def test_runs_of_one_character(self):
        characters = ("A", " ", "\n", ".", "7", "é", "\u3000", "😀", "ab", "\r\n")
        texts = [character * (OPTIONS.run_bytes // len(character.encode())) for character in characters]
        for name, (ours, theirs) in self.pairs.items():
            with self.subTest(name):
                self.compare(ours, theirs, texts)

    def test_time_is_linear_in_a_run(self):
        def processor_time(ours, character, megabytes):
            before = os.times().children_user
            result = essh("tokenizer", "encode", "--tokenizer", ours, stdin=character * (megabytes << 20))
            self.assertEqual(result.returncode, 0)
            return os.times().children_user - before

        for name in list(self.pairs)[-2:]:
            for character in (b"A", b" "):
                with self.subTest(name, character=character):
                    one, eight = (processor_time(self.pairs[name][0], character, megabytes) for megabytes in (1, 8))
                    self.assertLess(eight, 16 * one + 1)

    def test_any_bytes_come_back(self):
        rng = random.Random(OPTIONS.seed)
        blocks = [rng.randbytes(rng.randrange(200)) for _ in range(2000)]
        blocks += [b"\xc3(\xa0\xa1 \xe2\x28\xa1 \xf0\x9f\x98 \xed\xa0\x80 \xff\xfe'\xc5s \xc0\xaf", bytes(range(256)) * 3]
        data = b"".join(blocks)
        for name, (ours, _) in self.pairs.items():
            with self.subTest(name):
                ids = essh("tokenizer", "encode", "--tokenizer", ours, "--special-as-text", stdin=data)
                self.assertEqual(ids.returncode, 0)
                back = essh("tokenizer", "decode", "--tokenizer", ours, stdin=ids.stdout)
                self.assertEqual((back.returncode, back.stdout == data), (0, True))

    def test_decoded_text_is_theirs(self):
        strings = list(known.random_strings(500, OPTIONS.seed + 1))
        for name, (ours, theirs) in self.pairs.items():
            ids = theirs.encode("".join(strings), add_special_tokens=False).ids
            for skip in (False, True):
                with self.subTest(name, skip=skip):
                    mine = essh("tokenizer", "decode", "--tokenizer", ours, *["--skip-special-tokens"] * skip, stdin=json.dumps(ids).encode())
                    self.assertEqual(mine.stdout.decode(), theirs.decode(ids, skip_special_tokens=skip))


class Components(Comparison):
    STRINGS = 5000

    def check(self, name, **parts):
        ours, theirs = self.variant(name, **parts)
        self.compare(ours, theirs, list(known.random_strings(self.STRINGS, 7)) + ["", " ", "x", " x y", "12 345"])
        return ours, theirs

    def test_prefix_space(self):
        self.check("prefix.json", pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True))
        self.check("prefix_only.json", pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False))

    def test_digits(self):
        for individual in (False, True):
            steps = [pre_tokenizers.Digits(individual_digits=individual), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            self.check(f"digits{individual}.json", pre_tokenizer=pre_tokenizers.Sequence(steps))

    def test_patterns_of_their_own(self):
        # Unicode versions differ between regular expression libraries; these patterns do not depend on them.
        patterns = (r"[A-Za-z]+|[0-9]{1,2}| ?[^A-Za-z0-9\s]+", r"(?<=a)b|[\r\n]+(?!x)", r"\b", r"x*")
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        for number, pattern in enumerate(patterns):
            for behavior in ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"):
                for invert in (False, True):
                    with self.subTest(pattern, behavior=behavior, invert=invert):
                        split = pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)
                        texts = [t for t in ("", "abc 12345, x;y", "a\r\n\r\nxb", "ab aab b", "no", "x xx  axxb\n") + tuple(
                            "".join(random.Random(i).choices("ab1 x\n,;", k=20)) for i in range(200))]
                        ours, theirs = self.variant("pattern.json", pre_tokenizer=pre_tokenizers.Sequence([split, last]))
                        self.compare(ours, theirs, texts)
        split = pre_tokenizers.Split("a.b", "removed")
        ours, theirs = self.variant("literal.json", pre_tokenizer=pre_tokenizers.Sequence([split, last]))
        self.compare(ours, theirs, ["xa.bya.b", "acb", "a.b"])

    def test_added_tokens(self):
        ours, theirs = self.variant("added.json")
        theirs.add_special_tokens([known.special("<a>"), known.special("<ab>", lstrip=True), known.special("<a><b>", rstrip=True)])
        theirs.add_tokens([AddedToken("word", single_word=True), AddedToken("both", lstrip=True, rstrip=True, single_word=True),
                           AddedToken("plain"), AddedToken("plainer", normalized=False), AddedToken("\u00e9t\u00e9", normalized=True), AddedToken("  ")])
        ours = self.save("added.json", theirs)
        parts = ["<a>", "<ab>", "<a><b>", "<b>", "word", "both", "plain", "plainer", "été", "  ", " ", "\t\u3000", "x", "9", "_", "é", "\u0301", ".",
                 "<|endoftext|>", "²", "\n"]
        rng = random.Random(3)
        texts = ["".join(rng.choices(parts, k=rng.randrange(1, 12))) for _ in range(20000)]
        self.compare(ours, theirs, texts)
        theirs.encode_special_tokens = True
        self.compare(ours, theirs, texts, "--special-as-text")

    def test_templates(self):
        end = self.pairs["trained gpt2"][1].token_to_id("<|endoftext|>")
        template = processors.TemplateProcessing(single="<|endoftext|> $A <|endoftext|> <|endoftext|>", special_tokens=[("<|endoftext|>", end)])
        ours, theirs = self.variant("template.json", post_processor=processors.Sequence([processors.ByteLevel(), template]))
        self.compare(ours, theirs, ["", "some text", "<|endoftext|>"], "--add-special-tokens", add_special_tokens=True)
        if "llama3" in self.pairs:
            self.compare(*self.pairs["llama3"], ["", "some text"], "--add-special-tokens", add_special_tokens=True)

    def test_written_files_load_there(self):
        sources = {name: ours for name, (ours, _) in self.pairs.items()}
        for name, ours in {**sources, "bytes": "bytes", "nucleotides": "nucleotides"}.items():
            with self.subTest(name):
                path = self.path("written.json")
                result = essh("tokenizer", "convert", "--tokenizer", ours, "-o", path, "--force")
                self.assertEqual(result.returncode, 0, result.stderr)
                texts = list(known.random_strings(2000, 5)) + ["ACGTN acgtu\nRYKM-x", "<|endoftext|>"]
                self.compare(ours, Tokenizer.from_file(path), texts)
                self.compare(path, Tokenizer.from_file(path), texts, "--add-special-tokens", add_special_tokens=True)

    def test_what_we_do_not_have_is_named(self):
        from tokenizers import normalizers
        for part, value, name in (("normalizer", normalizers.Lowercase(), "Lowercase"),
                                  ("pre_tokenizer", pre_tokenizers.Metaspace(), "Metaspace"),
                                  ("decoder", decoders.WordPiece(), "WordPiece"),
                                  ("model", models.WordLevel({"a": 0}, unk_token="a"), "WordLevel")):
            path, _ = self.variant("unsupported.json", **{part: value})
            result = essh("tokenizer", "encode", "--tokenizer", path, stdin=b"x")
            self.assertEqual(result.returncode, EXIT_UNSUPPORTED)
            self.assertIn(name, result.stderr.decode())
        path, _ = self.variant("bad.json")
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        content["model"]["merges"].append(content["model"]["merges"][0])
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
        result = essh("tokenizer", "encode", "--tokenizer", path, stdin=b"x")
        self.assertEqual(result.returncode, EXIT_BAD_FILE)
        self.assertIn("same pair", result.stderr.decode())


class Training(Comparison):
    def test_merges_are_theirs(self):
        for pattern in ("gpt2", "llama3"):
            with self.subTest(pattern):
                theirs = Tokenizer(models.BPE())
                theirs.pre_tokenizer = known.pretokenizer(pattern)
                trainer = trainers.BpeTrainer(vocab_size=2000, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
                                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
                theirs.train_from_iterator(self.texts, trainer)
                mine = json.loads(self.pairs[f"trained {pattern}"][1].to_str())["model"]
                other = json.loads(theirs.to_str())["model"]
                self.assertEqual(mine["merges"], other["merges"])
                self.assertEqual(mine["vocab"], other["vocab"])

    def test_threads_do_not_matter(self):
        hashes = {self.shared.train(self.path("again.json"), "llama3", "--threads", threads)["hash"] for threads in (1, 3)}
        self.assertEqual(hashes, {self.shared.trained["hash"]})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strings", type=int, default=OPTIONS.strings, help="random Unicode strings to compare")
    parser.add_argument("--run-bytes", type=int, default=OPTIONS.run_bytes, help="length of the runs of one character")
    parser.add_argument("--seed", type=int, default=OPTIONS.seed)
    parser.add_argument("--data", default=OPTIONS.data, help="folder of the shared archives")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
