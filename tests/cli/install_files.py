"""Completion and manual pages, made from the program's own options."""
import os
import shutil
import subprocess
import tempfile
import unittest

from _command import HANGS, essh


class InstallFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.share = os.path.join(cls.place.name, "share")
        result = essh("install-files", cls.share)
        assert result.returncode == 0, result.stderr

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    def read(self, *names):
        with open(os.path.join(self.share, *names), encoding="utf-8") as file:
            return file.read()

    def test_the_verb_that_makes_them_is_hidden(self):
        self.assertNotIn(b"install-files", essh("--help").stdout)

    def completions(self, *words):
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _essh; printf "%s\\n" "${COMPREPLY[@]}"')
        path = os.path.join(self.share, "bash-completion", "completions", "essh")
        result = subprocess.run(["bash", "-c", script, "bash", path, "essh", *words], capture_output=True, text=True, cwd=self.place.name,
                                timeout=HANGS, check=False)
        self.assertEqual(result.stderr, "")
        return result.stdout.split()

    def test_bash_completes_verbs_and_options(self):
        self.assertIn("generate", self.completions("gen"))
        self.assertEqual(self.completions("bench", "dec"), ["decode"])
        self.assertEqual(sorted(self.completions("generate", "model", "--state")), ["--state-dtype", "--state-in", "--state-out"])
        self.assertIn("--depth", self.completions("bench", "decode", "--d"))
        self.assertNotIn("install-files", self.completions("ins"))

    def test_zsh_and_fish_name_every_verb(self):
        zsh, fish = self.read("zsh", "site-functions", "_essh"), self.read("fish", "vendor_completions.d", "essh.fish")
        for word in ("generate", "prefill", "--temperature"):
            self.assertIn(word, zsh)
            self.assertIn(word.removeprefix("--"), fish)
        for shell, path in (("zsh", "zsh/site-functions/_essh"), ("fish", "fish/vendor_completions.d/essh.fish")):
            if shutil.which(shell):
                result = subprocess.run([shell, "-n", os.path.join(self.share, path)], capture_output=True, timeout=HANGS, check=False)
                self.assertEqual((result.returncode, result.stderr), (0, b""))

    def test_manual_pages(self):
        page = self.read("man", "man1", "essh-bench-decode.1")
        for words in (".SH NAME", "\\-\\-depth", "Example: essh bench decode"):
            self.assertIn(words, page)
        if shutil.which("groff"):
            for name in os.listdir(os.path.join(self.share, "man", "man1")):
                result = subprocess.run(["groff", "-man", "-Tutf8", "-ww", os.path.join(self.share, "man", "man1", name)], capture_output=True,
                                        text=True, timeout=HANGS, check=False)
                self.assertEqual((result.returncode, result.stderr), (0, ""), name)


if __name__ == "__main__":
    unittest.main()
