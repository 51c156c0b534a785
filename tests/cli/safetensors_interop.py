"""Checks our safetensors files against the reference implementation, in both directions.

usage: safetensors_interop.py [STORE_INTEROP_TOOL]
Without an argument the tool is looked for in the build folder of the binary that the environment variable ESSH names.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import ml_dtypes
    import numpy as np
    import safetensors.numpy
except ImportError as missing:
    print(f"{missing}; install safetensors, numpy and ml_dtypes")
    sys.exit(77)

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
          "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
          "I64": np.int64, "U64": np.uint64, "I32": np.int32, "U32": np.uint32, "I16": np.int16, "U16": np.uint16,
          "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_}


def check(condition, message):
    if not condition:
        sys.exit(f"safetensors_interop: {message}")


def run(tool, *arguments):
    done = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True)
    check(done.returncode == 0, f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")


def save(tensors, folder):
    folder.mkdir()
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load(path):
    return {name: np.frombuffer(view["data"], DTYPES[view["dtype"]]).reshape(view["shape"])
            for name, view in safetensors.deserialize(path.read_bytes())}


def load_sharded(folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    check(shards == [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))], f"names {shards}")
    tensors = {}
    for shard in shards:
        with safetensors.safe_open(folder / shard, framework="np") as opened:
            check(opened.metadata() == {"format": "pt"}, f"{shard}: metadata {opened.metadata()}")
        for name, value in load(folder / shard).items():
            check(index["weight_map"].get(name) == shard, f"{name} is in {shard}, the index says otherwise")
            tensors[name] = value
    check(set(tensors) == set(index["weight_map"]), "the index and the shards name different tensors")
    total = sum(value.nbytes for value in tensors.values())
    check(index["metadata"]["total_size"] == total, f"total_size {index['metadata']['total_size']}, expected {total}")
    return tensors


def check_equal(found, expected, what):
    check(set(found) == set(expected), f"{what}: tensors {sorted(set(found) ^ set(expected))}")
    for name, value in expected.items():
        check(found[name].dtype == value.dtype, f"{what}: {name} has dtype {found[name].dtype}, expected {value.dtype}")
        check(found[name].shape == value.shape, f"{what}: {name} has shape {found[name].shape}, expected {value.shape}")
        check(found[name].tobytes() == value.tobytes(), f"{what}: {name} has other values")


def main():
    if len(sys.argv) > 1:
        tool = pathlib.Path(sys.argv[1])
    else:
        tool = pathlib.Path(os.environ["ESSH"]).resolve().parents[2] / "tests" / "store_interop_tool"
    check(tool.exists(), f"{tool}: no such program; build the target store_interop_tool")
    random = np.random.default_rng(1)
    every_type = {f"{name.lower()}.\u00e9\"\\": (random.standard_normal((3, 5)) * 50).astype(dtype) for name, dtype in DTYPES.items()}
    every_type |= {"scalar": np.array(3.5, np.float32), "empty": np.zeros((0, 4), np.float16), "z": np.ones(7, np.uint8)}
    wide = (random.standard_normal(4096) * 10.0 ** random.integers(-42, 38, 4096)).astype(np.float32)
    ties = np.arange(0x3F800000, 0x3F800000 + (1 << 18), 1 << 11, dtype=np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, 65504, 65519.996, 65520, 2**-24, 2**-25, 3.4e38], np.float32)
    numbers = {"wide": wide, "ties": ties, "special": special}

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        save(every_type, folder / "reference")
        run(tool, folder / "reference", folder / "copy")
        check((folder / "copy/model.safetensors").read_bytes() == (folder / "reference/model.safetensors").read_bytes(),
              "a copy differs from the file of the reference implementation")

        run(tool, folder / "reference", folder / "shards", "--shard-bytes", 200)
        check_equal(load_sharded(folder / "shards"), every_type, "shards")
        run(tool, folder / "shards", folder / "joined")
        check((folder / "joined/model.safetensors").read_bytes() == (folder / "reference/model.safetensors").read_bytes(),
              "joined shards differ from the file of the reference implementation")

        save(numbers, folder / "numbers")
        for name in ("BF16", "F16", "F32", "F64"):
            with np.errstate(over="ignore"):
                expected = {key: value.astype(DTYPES[name]) for key, value in numbers.items()}
            run(tool, folder / "numbers", folder / name, "--dtype", name)
            check_equal(load(folder / name / "model.safetensors"), expected, f"float32 to {name}")
            run(tool, folder / name, folder / f"{name}-back", "--dtype", "F32")
            expected = {key: value.astype(np.float32) for key, value in expected.items()}
            check_equal(load(folder / f"{name}-back/model.safetensors"), expected, f"{name} to float32")
    print(f"safetensors {safetensors.__version__}: {len(DTYPES)} dtypes, shards and conversions agree")


main()
