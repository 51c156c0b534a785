"""`tokenizer train` reads what `prepare` reads: compressed files, JSONL, folders without their binaries, pipes."""
import gzip
import json
import pathlib
import random
import tempfile
import unittest

from _command import EXIT_UNSUPPORTED, essh


class TokenizerSources(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="essh-cli-")
        self.addCleanup(scratch.cleanup)
        self.place = pathlib.Path(scratch.name)
        generator = random.Random(4)
        words = ["".join(generator.choices("etaoin", k=generator.randint(1, 6))) for _ in range(60)]
        self.documents = [" ".join(generator.choices(words, k=80)) + "\n" for _ in range(50)]
        self.text = "<|endoftext|>\n".join(self.documents)
        (self.place / "text.txt").write_text(self.text)
        self.expected = self.train(self.place / "text.txt")

    def train(self, *sources, stdin=b""):
        out = self.place / "tokenizer.json"
        result = essh("tokenizer", "train", *sources, "-o", out, "--vocab-size", 400, "--force", stdin=stdin)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.words = result.stderr
        return out.read_text()

    def test_gzip(self):
        (self.place / "text.txt.gz").write_bytes(gzip.compress(self.text.encode()))
        self.assertEqual(self.train(self.place / "text.txt.gz"), self.expected)

    def test_jsonl(self):
        lines = [json.dumps({"id": 1, "text": document}) for document in self.documents]
        (self.place / "text.jsonl").write_text("\n".join(lines) + "\nnot JSON\n")
        self.assertEqual(self.train(self.place / "text.jsonl"), self.expected)
        self.assertIn(b"text.jsonl:51", self.words)

    def test_standard_input(self):
        self.assertEqual(self.train("-", stdin=self.text.encode()), self.expected)

    def test_binaries_and_hidden_files_of_a_folder_are_left_out(self):
        folder = self.place / "folder"
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "text.txt").write_text(self.text)
        (folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0" + bytes(range(256)) * 50)
        (folder / ".hidden").write_text("zzzz" * 1000)
        self.assertEqual(self.train(folder), self.expected)
        self.assertIn(b"image.png", self.words)
        result = essh("tokenizer", "train", folder / "image.png", "-o", self.place / "x.json")
        self.assertEqual(result.returncode, EXIT_UNSUPPORTED)


if __name__ == "__main__":
    unittest.main()
