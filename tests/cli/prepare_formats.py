"""Every input format of prepare, read back from its shards."""
import gzip
import json
import os
import tempfile
import unittest

from _command import EXIT_BAD_FILE, EXIT_UNSUPPORTED, EXIT_USAGE, essh, essh_json
from _shards import documents

TEXTS = ["one\ntwo\n", "caf\u00e9 \U0001f600 \"quoted\" \\ tab\t", "x" * 3000, "<|endoftext|> stays text"]


def jsonl(texts, field="text"):
    return "".join(json.dumps({"n": i, field: text}) + "\n" for i, text in enumerate(texts)).encode()


class PrepareFormats(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        self.count = 0

    def path(self, name, data=None):
        path = os.path.join(self.place.name, name)
        if data is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
        return path

    def prepare(self, *words, **options):
        self.count += 1
        folder = self.path(f"data-{self.count}")
        report = essh_json("prepare", *words, "-o", folder, "--tokenizer", "bytes", "--valid-fraction", "0", "--json", **options)
        found = documents(folder, "train")
        self.assertEqual(report["train"]["documents"], len(found))
        self.assertEqual(report["train"]["bytes"], sum(map(len, found)))
        return [text.decode() for text in found], report, folder

    def test_jsonl_plain_gzip_and_field(self):
        self.assertEqual(self.prepare(self.path("a.jsonl", jsonl(TEXTS)))[0], TEXTS)
        self.assertEqual(self.prepare(self.path("b.json.gz", gzip.compress(jsonl(TEXTS))))[0], TEXTS)
        self.assertEqual(self.prepare(self.path("c.jsonl", jsonl(TEXTS, "body")), "--field", "body")[0], TEXTS)

    def test_zstd(self):
        try:
            import zstandard
        except ImportError:
            self.skipTest("the Python package zstandard is not installed")
        path = self.path("a.jsonl.zst", zstandard.ZstdCompressor().compress(jsonl(TEXTS)))
        refused = essh("prepare", path, "-o", self.path("try"), "--tokenizer", "bytes")
        if refused.returncode == EXIT_UNSUPPORTED:
            self.assertIn(b"libzstd", refused.stderr)
        else:
            self.assertEqual(self.prepare(path)[0], TEXTS)

    def test_text_folders_and_patterns(self):
        self.path("in/b.txt", b"first\n<|endoftext|>\nsecond\n")
        self.path("in/a/c", b"whole file\n")
        self.assertEqual(self.prepare(self.path("in"))[0], ["whole file\n", "first\n", "second\n"])
        self.assertEqual(self.prepare(self.path("in/*.txt"))[0], ["first\n", "second\n"])

    def test_standard_input(self):
        self.assertEqual(self.prepare("-", stdin=b"from a pipe")[0], ["from a pipe"])
        self.assertEqual(self.prepare("-", "--format", "jsonl", stdin=gzip.compress(jsonl(TEXTS)))[0], TEXTS)

    def test_fasta(self):
        path = self.path("a.fa.gz", gzip.compress(b">one\nACGT\nNN\n>two\nTTTT\n"))
        self.assertEqual(self.prepare(path)[0], ["ACGTNN", "TTTT"])

    def test_parquet(self):
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            self.skipTest("the Python package pyarrow is not installed")
        texts = [f"row {i} " + "x" * (i % 50) for i in range(5000)] + ["long " * 500_000]
        path = self.path("a.parquet")
        table = pyarrow.table({"n": list(range(len(texts) + 1)), "text": texts + [None]})
        for codec in ("snappy", "zstd"):
            pyarrow.parquet.write_table(table, path, compression=codec, row_group_size=700)
            result = essh("prepare", path, "-o", self.path("try-" + codec), "--tokenizer", "bytes")
            if result.returncode == EXIT_UNSUPPORTED:
                self.assertIn(b"Apache Arrow", result.stderr)
                continue
            found, report, _ = self.prepare(path)
            self.assertEqual(found, texts)
            self.assertEqual(report["bad_lines"], 1)
        wrong = essh("prepare", path, "-o", self.path("wrong"), "--tokenizer", "bytes", "--field", "body")
        self.assertIn(wrong.returncode, (EXIT_BAD_FILE, EXIT_UNSUPPORTED))

    def test_parts_share_the_work(self):
        texts = [f"document {i}" for i in range(500)]
        path = self.path("a.jsonl", jsonl(texts))
        folder = self.path("shared")
        for part in ("1/3", "2/3", "3/3"):
            essh_json("prepare", path, "-o", folder, "--tokenizer", "bytes", "--part", part, "--json", "--valid-fraction", "0")
        found = [text.decode() for part in (1, 2, 3) for text in documents(folder, "train", f"dataset-{part}of3.json")]
        self.assertEqual(sorted(found), sorted(texts))

    def test_bad_lines(self):
        path = self.path("a.jsonl", b'{"text": "good"}\n{"text": 1}\n{"tex\n')
        found, report, _ = self.prepare(path)
        self.assertEqual((found, report["bad_lines"]), (["good"], 2))
        strict = essh("prepare", path, "-o", self.path("strict"), "--tokenizer", "bytes", "--strict")
        self.assertEqual(strict.returncode, EXIT_BAD_FILE)
        self.assertIn(f"{path}:2:".encode(), strict.stderr)

    def test_mistakes(self):
        path = self.path("a.txt", b"text")
        for words in (["--part", "3/2"], ["--part", "x"], ["--valid-fraction", "1.5"], ["--shard-tokens", "0"]):
            result = essh("prepare", path, "-o", self.path("x"), "--tokenizer", "bytes", *words)
            self.assertEqual(result.returncode, EXIT_USAGE, result.stderr)
        missing = essh("prepare", self.path("none.txt"), "-o", self.path("x"), "--tokenizer", "bytes")
        self.assertEqual(missing.returncode, EXIT_BAD_FILE)

    def test_the_tokenizer_travels_with_the_data(self):
        folder = self.prepare(self.path("a.txt", b"text"))[2]
        self.assertEqual(essh_json("tokenizer", "encode", "--tokenizer", folder, "--json", stdin=b"hi"), [104, 105])

    def test_one_text_file_is_a_corpus(self):
        with tempfile.TemporaryDirectory() as place:
            path = os.path.join(place, "book.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f"line {number} of the book\n" for number in range(20000))
            report = essh_json("prepare", path, "-o", os.path.join(place, "data"), "--tokenizer", "bytes", "--json")
            self.assertAlmostEqual(report["valid"]["bytes"] / os.path.getsize(path), 0.01, delta=0.001)
            short = os.path.join(place, "short.txt")
            with open(short, "w", encoding="utf-8") as file:
                file.write("a short text\n")
            result = essh("prepare", short, "-o", os.path.join(place, "short"), "--tokenizer", "bytes")
            self.assertEqual(result.returncode, 0)
            self.assertRegex(result.stderr, rb"warning: the (validation|training) split is empty")

    def test_no_text_is_an_error(self):
        with tempfile.TemporaryDirectory() as place:
            path = os.path.join(place, "empty.txt")
            with open(path, "w", encoding="utf-8"):
                pass
            result = essh("prepare", path, "-o", os.path.join(place, "data"), "--tokenizer", "bytes")
            self.assertEqual(result.returncode, EXIT_BAD_FILE)
            self.assertIn(b"no text", result.stderr)
            self.assertNotIn("dataset.json", os.listdir(os.path.join(place, "data")))


if __name__ == "__main__":
    unittest.main()
