"""Reading token shards of the "bytes" tokenizer, from the format's description in docs/data.md."""
import array
import json
import os
import struct

END_OF_TEXT = 256


def shard_tokens(path):
    with open(path, "rb") as file:
        header = file.read(128)
        payload = file.read()
    magic, version, width, tokens, documents = struct.unpack_from("<8sIIQQ", header)
    assert (magic, version, width) == (b"ESSHTOKS", 1, 2), (path, header)
    ids = array.array("H", payload)
    assert len(ids) == tokens, path
    assert sum(token == END_OF_TEXT for token in ids) == documents, path
    return ids


def documents(folder, split, manifest="dataset.json"):
    """The documents of a split as bytes, in order."""
    with open(os.path.join(folder, manifest), encoding="utf-8") as file:
        entries = json.load(file)[split]["shards"]
    stream = array.array("H")
    for entry in entries:
        stream.extend(shard_tokens(os.path.join(folder, entry["file"])))
    found, text = [], bytearray()
    for token in stream:
        if token == END_OF_TEXT:
            found.append(bytes(text))
            text = bytearray()
        else:
            text.append(token)
    assert not text, "the last document has no end"
    return found


def file_bytes(folder):
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found
