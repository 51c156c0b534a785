"""`--journal` of `essh evaluate ppl|length|recall`: killed or stopped within a line, the same command goes on and prints the same."""
import json
import pathlib
import random
import resource
import shutil
import subprocess
import tempfile
import time
import unittest

from _command import ESSH, EXIT_BAD_FILE, HANGS, byte_model, essh


def stopped_after(size, *arguments):
    """Runs essh with files of at most `size` bytes, as on a full disk: the line that does not fit is torn."""
    return subprocess.run([ESSH, *map(str, arguments)], capture_output=True, timeout=HANGS, check=False,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))


def killed_at(journal, *arguments):
    """Runs essh and kills it when its journal has a line, or later."""
    with subprocess.Popen([ESSH, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (journal.exists() and b"\n" in journal.read_bytes()):
            time.sleep(0.001)
        process.kill()


class EvaluateJournal(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        cls.models = [byte_model(cls.folder / f"model-{seed}", seed) for seed in (3, 4)]
        rng = random.Random(6)
        cls.texts = []
        for name in ("first", "second"):
            cls.texts.append(cls.folder / f"{name}.txt")
            documents = ["".join(rng.choice("abcdef ,.") for _ in range(rng.randrange(20, 90))) for _ in range(8)]
            cls.texts[-1].write_text("\n<|endoftext|>\n".join(documents))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def check(self, name, *words):
        """A run that ended at any place of its journal goes on with the same output and the same passes."""
        command = ["evaluate", *words, "--tiers", "T1,T10", "--threads", 1]
        plain = essh(*command)
        self.assertEqual(plain.returncode, 0, plain.stderr)
        journal = self.folder / f"{name}.jsonl"
        command += ["--journal", journal]
        whole = essh(*command)
        self.assertEqual(whole.stdout, plain.stdout)
        passes = [json.loads(line)["key"] for line in journal.read_text().splitlines()]
        self.assertGreaterEqual(len(passes), 6)
        self.assertEqual(len(set(passes)), len(passes))
        size = journal.stat().st_size
        journal.unlink()
        killed_at(journal, *command)
        self.assertGreater(journal.read_bytes().count(b"\n"), 0)
        resumed = essh(*command)
        self.assertEqual((resumed.returncode, resumed.stdout), (0, plain.stdout))
        journal.unlink()
        for place in (0.3, 0.6, 0.9):  # each goes on from the one before
            stopped = stopped_after(int(place * size), *command)
            self.assertEqual(stopped.returncode, EXIT_BAD_FILE, stopped.stderr)
            self.assertIn(b"File too large", stopped.stderr)
            self.assertNotEqual(stopped.stdout, plain.stdout)
            self.assertEqual(journal.stat().st_size, int(place * size))
        text = journal.read_bytes().rstrip(b"\n")  # ends within a line
        journal.write_bytes(text)
        self.assertGreater(text.count(b"\n"), 0)
        resumed = essh(*command)
        self.assertEqual((resumed.returncode, resumed.stdout), (0, plain.stdout))
        if "--domains" not in words:
            self.assertIn(b"goes on after %d results" % text.count(b"\n"), resumed.stderr)
        self.assertEqual([json.loads(line)["key"] for line in journal.read_text().splitlines()], passes)
        # Nothing is measured a second time.
        again = essh(*command)
        self.assertEqual((again.stdout, journal.read_text().count("\n")), (plain.stdout, len(passes)))
        return command, journal, len(passes)

    def test_perplexity(self):
        command, journal, passes = self.check("ppl", "ppl", self.models[0], "--data", self.texts[0], "--context", 20, "--batch", 4)
        # Another model, other data, another protocol: kept results are not used, and a message says so.
        for change in ((self.models[0], self.models[1]), (self.texts[0], self.texts[1]), (20, 21)):
            other = [change[1] if word == change[0] else word for word in command]
            result = essh(*other)
            self.assertIn(b"no result of this model, data and options", result.stderr)
            self.assertEqual(result.stdout, essh(*other[:-2]).stdout)
            kept = journal.read_text().splitlines(keepends=True)
            self.assertGreater(len(kept), passes)
            journal.write_text("".join(kept[:passes]))

    def test_whole_documents(self):
        self.check("stateful", "ppl", self.models[0], "--stateful", "--data", self.texts[0], "--context", 16, "--batch", 2)

    def test_several_models_and_domains(self):
        self.check("domains", "ppl", *self.models, "--domains", "--cross-domain", "--data", *self.texts, "--context", 20, "--batch", 8)

    def test_lengths_and_positions(self):
        # A length of 8192 tokens or less shares a pass: lengths stand for passes.
        self.check("length", "length", self.models[0], "--data", self.texts[0], "--lengths", "10,20,30,70", "--json")

    def test_recall(self):
        command, journal, passes = self.check("recall", "recall", self.models[0], "--task", "palindrome", "--length", 200, "--symbols", 50,
                                              "--samples", 100, "--seed", 5)
        other = [6 if word == 5 else word for word in command]
        self.assertIn(b"no result of this model, data and options", essh(*other).stderr)
        self.assertEqual(journal.read_text().count("\n"), 2 * passes)

    def test_a_file_that_is_no_journal(self):
        result = essh("evaluate", "ppl", self.models[0], "--data", self.texts[0], "--context", 20, "--journal", self.texts[0])
        self.assertEqual(result.returncode, EXIT_BAD_FILE, result.stderr)
        self.assertIn(b"first.txt: line 1", result.stderr)


if __name__ == "__main__":
    unittest.main()
