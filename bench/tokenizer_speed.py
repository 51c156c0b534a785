#!/usr/bin/env python3
"""Encoding speed beside Hugging Face tokenizers, in one run on the same texts.

    ESSH=./essh bench/tokenizer_speed.py [--text FILE...] [--data FOLDER]

Prints processor time and wall time per megabyte of text for one thread of each, how many times faster ours is, and what a second
thread of ours gives. The texts are English prose from the shared data, unless files are given. Their side is its fastest call,
encode_batch_fast, on one thread; reading, writing and loading count for neither.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "cli"))
import _tokenizers as known  # noqa: E402


def documents(paths, size=20000):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        yield from (text[i:i + size] for i in range(0, len(text), size))


def ours(program, tokenizer, lines, threads):
    """(wall seconds, processor seconds, tokens)"""
    result = subprocess.run([program, "-v", "tokenizer", "encode", "--tokenizer", tokenizer, "--jsonl", "--threads", str(threads)],
                            input=lines, capture_output=True, check=True)
    found = re.search(rb"to (\d+) tokens in ([\d.]+) s \(([\d.]+) s of processor time\)", result.stderr)
    return float(found[2]), float(found[3]), int(found[1])


def theirs(tokenizer, texts):
    wall, cpu = time.perf_counter(), time.process_time()
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return time.perf_counter() - wall, time.process_time() - cpu, sum(len(e.ids) for e in encoded)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="+", help="UTF-8 files to encode")
    parser.add_argument("--data", default=known.SHARED, help="folder of the shared archives")
    parser.add_argument("--rounds", type=int, default=3, help="the best round counts")
    options = parser.parse_args()
    program = os.environ.get("ESSH", "./essh")
    with tempfile.TemporaryDirectory() as folder:
        if not known.shared_data(options.data, folder):
            sys.exit(f"{options.data}: the archives tokenizers and text_valid are not there")
        prose = [os.path.join(folder, "text", name) for name in ("books_val.txt", "wiki_val.txt")]
        texts = list(documents(options.text or prose))
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        lines = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts).encode()
        print(f"{megabytes:.2f} MB in {len(texts)} texts; MB/s by wall time (by processor time)")
        for name, file, make in (("gpt2", "gpt2_vocab.bpe", known.gpt2), ("llama3", "llama3_tokenizer.model", known.llama3)):
            path = os.path.join(folder, "tok", file)
            other = make(path)
            best = {}
            for _ in range(options.rounds):
                for key, run in (("theirs", lambda: theirs(other, texts)), ("ours", lambda: ours(program, path, lines, 1)),
                                 ("ours, 2 threads", lambda: ours(program, path, lines, 2))):
                    wall, cpu, tokens = run()
                    old = best.get(key, (wall, cpu, tokens))
                    assert tokens == old[2]
                    best[key] = (min(wall, old[0]), min(cpu, old[1]), tokens)
            assert len({tokens for _, _, tokens in best.values()}) == 1, best
            for key, (wall, cpu, _) in best.items():
                print(f"{name:7} {key:16} {megabytes / wall:8.1f} ({megabytes / cpu:.1f})")
            print(f"{name:7} ratio of one thread {best['theirs'][0] / best['ours'][0]:.1f} ({best['theirs'][1] / best['ours'][1]:.1f}), "
                  f"of the second thread {best['ours'][0] / best['ours, 2 threads'][0]:.2f}")


if __name__ == "__main__":
    main()
