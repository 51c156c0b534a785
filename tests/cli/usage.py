import os
import re
import resource
import subprocess
import tempfile
import unittest

from _command import ESSH, EXIT_BAD_FILE, EXIT_USAGE, HANGS, essh


def verbs(*words):
    """The verbs below some words, as lists of words, from the help."""
    text = essh(*words, "--help").stdout.decode()
    if "Subcommands:" not in text:
        return []
    names = re.findall(r"^  ([a-z]+) ", text[text.index("Subcommands:"):], re.MULTILINE)
    assert names, text
    return [[*words, name] for name in names]


def all_verbs():
    found = []
    for verb in verbs():
        found += verbs(*verb) or [verb]
    return found


class Usage(unittest.TestCase):
    def test_help_and_version_go_to_standard_output(self):
        for option in ("--help", "--version"):
            result = essh(option)
            self.assertEqual((result.returncode, result.stderr), (0, b""))
            self.assertIn(b"essh", result.stdout)

    def test_every_verb_has_help_with_an_example(self):
        for words in verbs() + all_verbs():
            with self.subTest(verb=words):
                result = essh(*words, "--help")
                self.assertEqual(result.returncode, 0)
                self.assertRegex(result.stdout.decode(), rf"Examples?:\s.*essh {' '.join(words)}")
                self.assertEqual(essh("help", *words).stdout, result.stdout)

    def test_no_escape_codes_in_a_pipe(self):
        for arguments in (["--help"], ["doctor"], ["nonsense"]):
            result = essh(*arguments)
            self.assertNotIn(b"\x1b", result.stdout + result.stderr)

    def test_threads_that_the_system_refuses_are_a_usage_error(self):
        limit = 2 << 30
        result = subprocess.run([ESSH, "bench", "decode", "tiny", "--threads", "4096"], capture_output=True, text=True, timeout=HANGS,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual(result.returncode, EXIT_USAGE, result.stderr)
        self.assertIn("use fewer", result.stderr)

    def test_mistakes_are_usage_errors_on_standard_error(self):
        for arguments in ([], ["nonsense"], ["--nonsense"], ["bench"], ["bench", "nonsense"], ["doctor", "nonsense"]):
            with self.subTest(arguments=arguments):
                result = essh(*arguments)
                self.assertEqual(result.returncode, EXIT_USAGE)
                self.assertEqual(result.stdout, b"")
                self.assertTrue(result.stderr)

    def test_every_number_has_a_range_and_refuses_what_is_none(self):
        checked = 0
        for verb in all_verbs():
            text = essh(*verb, "--help").stdout.decode()
            for names, kind, rest in re.findall(r"((?:--?[a-z-]+,)*--[a-z-]+) (INT|UINT|FLOAT)(\S*)", text):
                checked += 1
                first, *others = [name for name in names.split(",") if name.startswith("--")]
                for other in others:
                    self.assertIn(first.encode(), essh(*verb, f"{other}=nan").stderr)
                with self.subTest(verb=verb, option=first):
                    self.assertRegex(rest, r"^:", "a number without a range")
                    for value in ("nan", "inf", "-inf", "1e999", "-99999999999999999999", "99999999999999999999999", "0x10", "5x", ""):
                        result = essh(*verb, f"{first}={value}")
                        self.assertEqual(result.returncode, EXIT_USAGE, (value, result.stderr))
                        self.assertIn(first.encode(), result.stderr)
        self.assertGreater(checked, 40)

    def test_benchmarks_refuse_nothing_to_measure(self):
        for arguments in (["decode", "tiny", "--repetitions", "0"], ["decode", "tiny", "--batch-size", "1,0"], ["prefill", "tiny", "--lengths", "64,-5"],
                          ["prefill", "tiny", "--piece", "0"], ["train", "tiny", "--steps", "0"], ["train", "tiny", "--context", "0"],
                          ["train", "tiny", "--micro-batch", "-1"]):
            with self.subTest(arguments=arguments):
                result = essh("bench", *arguments)
                self.assertEqual(result.returncode, EXIT_USAGE, result.stderr)
                self.assertIn(b"must be a whole number from 1", result.stderr)

    def test_a_number_is_decimal(self):
        self.assertEqual(essh("spectral", "--length", "010", "--channels", "1", "--modes", "1", "--json").returncode, 0)
        self.assertIn(b'"length":10', essh("spectral", "--length", "010", "--channels", "1", "--modes", "1", "--json").stdout.replace(b" ", b""))

    def test_a_lost_standard_output_is_an_error(self):
        for arguments in (["--help"], ["--version"], ["info", "tiny"], ["info", "tiny", "--json"], ["help", "presets"], ["spectral", "--length", "64", "--channels", "4"],
                          ["generate", "--help"], ["train", "tiny", "--print-recipe"]):
            with self.subTest(arguments=arguments), open("/dev/full", "wb") as full:
                result = subprocess.run([ESSH, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=HANGS, check=False)
                self.assertEqual(result.returncode, EXIT_BAD_FILE, result.stderr)
                self.assertIn(b"standard output", result.stderr)

    def test_a_closed_standard_output_is_an_error_and_no_file_takes_its_place(self):
        with tempfile.TemporaryDirectory() as place:
            svg = os.path.join(place, "figure.svg")
            command = f'"{ESSH}" spectral --length 64 --channels 2 --modes 2 --svg "{svg}" >&-'
            result = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, timeout=HANGS, check=False)
            self.assertEqual(result.returncode, EXIT_BAD_FILE, result.stderr)
            with open(svg, encoding="utf-8") as file:
                self.assertTrue(file.read().startswith("<svg"))

    def test_typing_errors_get_a_suggestion(self):
        for arguments, meant in ((["trian"], "train"), (["bench", "decod"], "decode"), (["generate", "m", "--temprature", "1"], "--temperature"),
                                 (["info", "tiny", "--jsno"], "--json"), (["help", "exprot"], "export"), (["--verbos"], "--verbose"),
                                 (["info", "tinny"], "tiny"), (["train", "tinny", "-o", "x"], "tiny")):
            with self.subTest(arguments=arguments):
                result = essh(*arguments)
                self.assertEqual(result.returncode, EXIT_USAGE)
                self.assertIn(f'did you mean "{meant}"?', result.stderr.decode())

    def test_presets_and_recipes_are_listed(self):
        presets, recipes = (essh("help", topic).stdout.decode() for topic in ("presets", "recipes"))
        for name in ("tiny", "370m", "transformer-1.5b"):
            self.assertRegex(presets, rf"(?m)^{re.escape(name)} ")
            self.assertRegex(recipes, rf"(?m)^{re.escape(name)} ")

    def test_a_printed_recipe_is_a_recipe(self):
        with tempfile.TemporaryDirectory() as place:
            text = essh("train", "mqar", "--set", "run.steps=7", "--print-recipe").stdout
            path = os.path.join(place, "recipe.yaml")
            with open(path, "wb") as file:
                file.write(text)
            self.assertIn(b"steps: 7", text)
            self.assertEqual(essh("train", path, "--print-recipe").stdout, text)

    def test_output_paths_are_checked_before_the_work(self):
        with tempfile.TemporaryDirectory() as place:
            taken = os.path.join(place, "taken")
            with open(taken, "w", encoding="utf-8") as file:
                file.write("mine")
            below = os.path.join(taken, "file")
            model = os.path.join(place, "model")
            self.assertEqual(essh("init", "tiny", "-o", model).returncode, 0)
            tokens = os.path.join(place, "ids.json")
            with open(tokens, "w", encoding="utf-8") as file:
                file.write("[1]")
            for arguments in (["logits", model, "--tokens", tokens, "--out", below], ["logits", model, "--tokens", tokens, "--out", place],
                              ["spectral", "--svg", below], ["frontier", model, "--csv", below], ["generate", model, "--state-out", place],
                              ["init", "370m", "-o", below], ["init", "tiny", "-o", model], ["init", "tiny", "-o", taken],
                              ["export", model, "--tier", "T4", "-o", taken], ["tokenizer", "train", tokens, "-o", taken],
                              ["tokenizer", "convert", "--tokenizer", "bytes", "-o", taken]):
                with self.subTest(arguments=arguments):
                    result = essh(*arguments)
                    self.assertIn(result.returncode, (EXIT_USAGE, EXIT_BAD_FILE))
                    self.assertEqual(result.stdout, b"")
                    self.assertIn(place.encode(), result.stderr)
                    self.assertNotIn(b".tmp-", result.stderr)
            with open(taken, encoding="utf-8") as file:
                self.assertEqual(file.read(), "mine")
            made = os.path.join(place, "a", "b", "logits.npy")
            self.assertEqual(essh("logits", model, "--tokens", tokens, "--out", made).returncode, 0)
            self.assertEqual(essh("tokenizer", "convert", "--tokenizer", "bytes", "-o", taken, "--force").returncode, 0)


if __name__ == "__main__":
    unittest.main()
