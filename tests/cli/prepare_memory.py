"""One line, and one document, far larger than what prepare may hold in memory."""
import os
import resource
import subprocess
import tempfile
import unittest

from _command import ESSH

SIZE = 200_000_000
LIMIT_KB = 140_000  # for shards and blocks, beyond the program and its libraries


def largest_child():
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


class PrepareMemory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        subprocess.run([ESSH, "--version"], check=True, stdout=subprocess.DEVNULL)
        cls.program = largest_child()

    def run_limited(self, name, start, body, end):
        with tempfile.TemporaryDirectory() as place:
            path = os.path.join(place, name)
            with open(path, "wb") as file:
                file.write(start)
                for _ in range(SIZE // len(body)):
                    file.write(body)
                file.write(end)
            subprocess.run([ESSH, "prepare", path, "-o", os.path.join(place, "data"), "--tokenizer", "bytes", "--valid-fraction", "0",
                            "--threads", "2"], check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            size = sum(os.path.getsize(os.path.join(place, "data", shard)) for shard in os.listdir(os.path.join(place, "data"))
                       if shard.endswith(".bin"))
            self.assertGreater(size, 2 * 0.9 * SIZE)
        # The largest child so far: each case only has to stay below.
        self.assertLess(largest_child() - self.program, LIMIT_KB)

    def test_one_line_of_json(self):
        self.run_limited("line.jsonl", b'{"text": "', b"some words, and more of them; " * 1000, b'"}\n')

    def test_one_document_of_text(self):
        self.run_limited("document.txt", b"", b"a line of a very long book\n" * 1000, b"")


if __name__ == "__main__":
    unittest.main()
