"""`essh evaluate channels` against numpy: energies and clocks of the first layer, horizons of all, knock-outs by changed model folders."""
import json
import pathlib
import random
import shutil
import tempfile
import unittest

import numpy
from safetensors.numpy import load_file, save_file

from _command import essh, essh_json

CONTEXT, WINDOWS = 40, 3


def softplus(x):
    return numpy.logaddexp(0, x)


def sigmoid(x):
    return 1 / (1 + numpy.exp(-x))


def ranks(values):
    order, found = numpy.argsort(values, kind="stable"), numpy.empty(len(values))
    found[order] = numpy.arange(1, len(values) + 1)
    return numpy.array([found[values == value].mean() for value in values])


class EvaluateChannels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        rng = random.Random(2)
        cls.text = cls.folder / "text.txt"
        cls.text.write_text(" ".join(f"word{rng.randrange(30)}" for _ in range(400)))
        cls.model = cls.folder / "model"
        made = essh("tokenizer", "train", cls.text, "-o", cls.folder / "tokenizer.json", "--vocab-size", 300)
        assert made.returncode == 0, made.stderr
        made = essh("init", "tiny", "-o", cls.model, "--seed", 3, "--vocab-size", 320, "--tokenizer", cls.folder / "tokenizer.json")
        assert made.returncode == 0, made.stderr
        # Gates, clocks and blends that depend on the token; large outputs, so that a channel counts.
        tensors, noise = load_file(cls.model / "model.safetensors"), numpy.random.default_rng(5)
        for name, values in tensors.items():
            if name.endswith(("write_proj.weight", "read_proj.weight", "clock_proj.weight", "out_proj.weight", "value_proj.weight", "value_blend",
                              "decay")):
                tensors[name] = (values + noise.normal(0, 0.2, values.shape)).astype(numpy.float32)
        cls.config = json.loads((cls.model / "config.json").read_text())
        cls.tensors = tensors
        cls.write(cls.model, tensors)

    @classmethod
    def write(cls, folder, tensors):
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "SHA256SUMS").unlink(missing_ok=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def measure(self, *extra):
        return essh_json("evaluate", "channels", self.model, "--data", self.text, "--context", CONTEXT, "--windows", WINDOWS, "--batch", 2,
                         "--first", 4, "--json", *extra)

    def first_layer(self):
        """z of the first mixer by channel and value, and its clocks, token by token."""
        tokens = essh("tokenizer", "encode", "--tokenizer", self.model / "tokenizer.json", "--json", stdin=self.text.read_bytes())
        ids = json.loads(tokens.stdout)
        t = {name.removeprefix("model.layers.0."): value.astype(numpy.float64) for name, value in self.tensors.items()}
        channels, modes, width = (self.config[key] for key in ("spectral_channels", "spectral_modes", "channel_width"))
        rho, theta = numpy.exp(-softplus(t["mixer.decay"])), t["mixer.frequency"]
        all_z, all_clocks = [], []
        for window in range(WINDOWS):
            start = window * (CONTEXT + 1)
            state = numpy.zeros((channels, modes, width), complex)
            for token in ids[start:start + CONTEXT]:
                x = t["model.embed_tokens.weight"][token]
                u = x / numpy.sqrt((x * x).mean() + self.config["rms_norm_eps"]) * t["input_layernorm.weight"]
                gate = {name: (t[f"mixer.{name}_proj.weight"] @ u + t[f"mixer.{name}_proj.bias"]).reshape(channels, modes)
                        for name in ("write", "read", "clock")}
                write, read, clock = 2 * sigmoid(gate["write"]), 2 * sigmoid(gate["read"]), softplus(gate["clock"])
                v = (t["mixer.value_proj.weight"] @ u).reshape(channels, width)
                blend = t["mixer.value_blend"][:, None]
                v = ((1 - blend) + blend / numpy.sqrt((v * v).mean(axis=1, keepdims=True) + self.config["value_norm_eps"])) * v
                state = (rho * numpy.exp(-clock) * numpy.exp(1j * theta))[..., None] * state + write[..., None] * v[:, None, :]
                kappa = t["mixer.readout_cos"] + 1j * t["mixer.readout_sin"]
                seen = (state * kappa[..., None]).real - (t["mixer.zero_lag"] * write * kappa.real)[..., None] * v[:, None, :]
                all_z.append((read[..., None] * seen).sum(axis=1))
                all_clocks.append(clock)
        return numpy.array(all_z), numpy.array(all_clocks), rho

    def test_energy_and_attenuation_of_the_first_layer(self):
        report = self.measure("--energy-only")
        z, clocks, rho = self.first_layer()
        energy = (z * z).mean(axis=(0, 2))
        numpy.testing.assert_allclose(report["layers"][0]["energy"], energy, rtol=2e-4)
        numpy.testing.assert_allclose(report["energy"], numpy.mean([layer["energy"] for layer in report["layers"]], axis=0), rtol=1e-12)
        mine = [mode for mode in report["modes"] if mode["layer"] == 0]
        numpy.testing.assert_allclose([mode["attenuation"] for mode in mine], (rho * numpy.exp(-clocks).mean(axis=0)).ravel(), rtol=2e-5)
        modes = self.config["spectral_modes"]
        for mode in report["modes"]:
            decay = self.tensors[f"model.layers.{mode['layer']}.mixer.decay"].astype(numpy.float64)
            self.assertAlmostEqual(mode["horizon"] * softplus(decay[mode["channel"], mode["mode"]]), 1, places=6)
        self.assertEqual(len(report["modes"]), len(report["layers"]) * self.config["spectral_channels"] * modes)
        values = numpy.array(report["energy"])
        places = numpy.arange(1, len(values) + 1)
        self.assertAlmostEqual(report["energy_negative_spearman"], -numpy.corrcoef(places, ranks(values))[0, 1], places=12)
        self.assertAlmostEqual(report["energy_first_share"], values[:4].sum() / values.sum(), places=12)
        self.assertNotIn("knock_out", report)

    def test_knock_out_is_that_of_a_changed_folder(self):
        journal, svg = self.folder / "journal.jsonl", self.folder / "channels.svg"
        report = self.measure("--journal", journal, "--svg", svg)
        self.assertEqual(len(report["knock_out"]), self.config["spectral_channels"])
        self.assertIn("knock-out", svg.read_text())
        width, cut = self.config["channel_width"], self.folder / "cut"
        shutil.copytree(self.model, cut)

        def perplexity(folder):
            return essh_json("evaluate", "ppl", folder, "--data", self.text, "--context", CONTEXT, "--windows", WINDOWS, "--cross-domain", "--tiers",
                             "full", "--json")["results"][0]["perplexity"]

        for channel in (0, 5, 15):
            changed = {name: value.copy() for name, value in self.tensors.items()}
            for name, value in changed.items():
                if name.endswith("mixer.out_proj.weight"):
                    value[:, channel * width:(channel + 1) * width] = 0
            self.write(cut, changed)
            self.assertAlmostEqual(report["perplexity"] + report["knock_out"][channel], perplexity(cut), delta=2e-3)
        self.assertAlmostEqual(report["perplexity"], perplexity(self.model), delta=2e-3)
        self.assertGreater(max(map(abs, report["knock_out"])), 0.01)
        values = numpy.array(report["knock_out"])
        places = numpy.arange(1, len(values) + 1)
        self.assertAlmostEqual(report["knock_out_negative_spearman"], -numpy.corrcoef(places, ranks(values))[0, 1], places=12)
        positive = numpy.maximum(values, 0)
        self.assertAlmostEqual(report["knock_out_first_share"], positive[:4].sum() / positive.sum(), places=12)
        lines = journal.read_text().splitlines(keepends=True)
        journal.write_text("".join(lines[:5]))
        self.assertEqual(self.measure("--journal", journal), report)
        self.assertEqual(len(journal.read_text().splitlines()), len(lines))


if __name__ == "__main__":
    unittest.main()
