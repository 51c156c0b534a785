import re
import resource
import subprocess
import unittest

from _command import ESSH, EXIT_USAGE, essh


def verbs():
    text = essh("--help").stdout.decode()
    names = re.findall(r"^  ([a-z]+) ", text[text.index("Subcommands:"):], re.MULTILINE)
    assert names, text
    return names


class Usage(unittest.TestCase):
    def test_help_and_version_go_to_standard_output(self):
        for option in ("--help", "--version"):
            result = essh(option)
            self.assertEqual((result.returncode, result.stderr), (0, b""))
            self.assertIn(b"essh", result.stdout)

    def test_every_verb_has_help_with_an_example(self):
        for verb in verbs():
            with self.subTest(verb=verb):
                result = essh(verb, "--help")
                self.assertEqual(result.returncode, 0)
                self.assertRegex(result.stdout.decode(), rf"Examples?:\s+essh {verb}")

    def test_no_escape_codes_in_a_pipe(self):
        for arguments in (["--help"], ["doctor"], ["nonsense"]):
            result = essh(*arguments)
            self.assertNotIn(b"\x1b", result.stdout + result.stderr)

    def test_threads_that_the_system_refuses_are_a_usage_error(self):
        limit = 2 << 30
        result = subprocess.run([ESSH, "bench", "decode", "tiny", "--threads", "4096"], capture_output=True, text=True, timeout=60,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual(result.returncode, EXIT_USAGE, result.stderr)
        self.assertIn("use fewer", result.stderr)

    def test_mistakes_are_usage_errors_on_standard_error(self):
        for arguments in ([], ["nonsense"], ["--nonsense"]):
            with self.subTest(arguments=arguments):
                result = essh(*arguments)
                self.assertEqual(result.returncode, EXIT_USAGE)
                self.assertEqual(result.stdout, b"")
                self.assertTrue(result.stderr)


if __name__ == "__main__":
    unittest.main()
