"""Hugging Face tokenizers made from plain vocabularies, and texts to compare them on. Used by tokenizer tests and benchmarks."""
import base64
import functools
import glob
import os
import random
import tarfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SHARED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "shared", "data")


def byte_alphabet():
    """Byte -> the character that stands for it, in the order of GPT-2's ids."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


STAND_IN = byte_alphabet()


def written(token):
    return "".join(STAND_IN[b] for b in token)


def pretokenizer(name):
    if name == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def special(content, **flags):
    return AddedToken(content, special=True, normalized=False, **flags)


def gpt2(vocab_bpe):
    vocab = {text: i for i, text in enumerate(STAND_IN.values())}
    merges = []
    with open(vocab_bpe, encoding="utf-8") as file:
        next(file)
        for line in file:
            left, right = line.split()
            merges.append((left, right))
            vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pretokenizer("gpt2")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([special("<|endoftext|>")])
    return tokenizer


def llama3(rank_file):
    ranks = {}
    with open(rank_file, "rb") as file:
        for line in file:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    merges = []
    for token in sorted(ranks, key=ranks.get):
        cuts = [(ranks[token[:i]], ranks[token[i:]], i) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(written(token[:i]), written(token[i:])) for _, _, i in sorted(cuts)]
    vocab = {written(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pretokenizer("llama3")
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{i}|>" for i in range(4)),
             "<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>",
             *(f"<|reserved_special_token_{i}|>" for i in range(5, 251))]
    tokenizer.add_special_tokens([special(name) for name in names])
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                                             special_tokens=[("<|begin_of_text|>", len(ranks))])
    return tokenizer


def shared_data(source, folder, archives=("tokenizers", "text_valid")):
    """Unpacks archives of `source` into `folder`; False if they are not on this machine."""
    for name in archives:
        path = os.path.join(source, name + ".tar.xz")
        if not os.path.exists(path):
            return False
        with tarfile.open(path) as archive:
            archive.extractall(folder)
    return True


def code_files(limit):
    """Source code present on every machine, at most `limit` bytes: the compiler's C++ headers, or Python's library."""
    files = sorted(glob.glob("/usr/include/c++/*/**/*", recursive=True)) or sorted(glob.glob(os.path.dirname(os.__file__) + "/*.py"))
    chosen, total = [], 0
    for path in files:
        if not os.path.isfile(path) or total + os.path.getsize(path) > limit:
            continue
        try:
            with open(path, encoding="utf-8") as file:
                file.read()
        except UnicodeDecodeError:
            continue
        chosen.append(path)
        total += os.path.getsize(path)
    return chosen


@functools.cache
def character_pools():
    """Characters by Unicode category, unassigned ones among them, and those that splitters get wrong."""
    pools = {}
    for code in range(0x110000):
        if not 0xD800 <= code <= 0xDFFF:
            pools.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    pools = [pool for _, pool in sorted(pools.items())]
    pools += [list(" \t\n\r\v\f\x85\xa0\u1680\u180e\u2000\u2028\u2029\u202f\u205f\u3000\u200b\ufeff")] * 4
    pools += [list("'\u2019sStTrReEvVmMlLdD\u017f\u212a")] * 4
    pools += [list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ")] * 4 + [list("0123456789\u0663\u00b2\u2167")] * 2
    pools += [["\r\n", "\n\n", "  ", "    ", "'ll", "'RE", "n't", " the", ". ", "--", "<|endoftext|>", "<|", "e\u0301", "👩\u200d👩\u200d👧"]] * 4
    return pools


def random_strings(count, seed):
    rng = random.Random(seed)
    pools = character_pools()
    for _ in range(count):
        if rng.random() < 0.5:  # sequences of few classes, as splitters see them
            parts = []
            for _ in range(rng.randrange(1, 8)):
                pool = rng.choice(pools)
                parts += [rng.choice(pool) for _ in range(rng.randrange(1, 6))]
        else:
            parts = [rng.choice(rng.choice(pools)) for _ in range(rng.randrange(0, 30))]
        yield "".join(parts)
