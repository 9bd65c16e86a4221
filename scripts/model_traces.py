# SPDX-License-Identifier: Apache-2.0
"""Model traces of four well-known models, computed from their definitions: `testdata/network/*.json`.

    .venv/bin/python scripts/model_traces.py [FOLDER]

Sizes are those of the real parameter tensors in f32. Times are not measured: each tensor's forward time is proportional
to its multiply-adds, at a stated rate, and backward takes twice as long. Work without a parameter (attention
scores, an output layer tied to the embedding) counts for the tensor before it. The traces serve for comparing policies
and for replay, not for predicting the speed of a host. Needs no torch.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Iterator

from foresee.network.trace import Fact, ModelTrace, Tensor, write

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "testdata" / "network"
#: Multiply-adds per second: roughly those of a GPU of 2020 with large matrices in f32.
RATE = 1e13
#: (name, parameters, multiply-adds per sample), in order of first use.
Layers = Iterator[tuple[str, int, int]]


def vgg16() -> Layers:
    """The `vgg16` of torchvision: thirteen convolutions of 3 x 3, three linear layers; 3 x 224 x 224."""
    side, channels, at = 224, 3, 0
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if width == 0:
            side //= 2
            at += 1
            continue
        yield from linear(f"features.{at}", 9 * channels, width, side * side)
        channels = width
        at += 2  # the activation is a module too
    for at, (inputs, outputs) in ((0, (512 * 7 * 7, 4096)), (3, (4096, 4096)), (6, (4096, 1000))):
        yield from linear(f"classifier.{at}", inputs, outputs)


def resnet50() -> Layers:
    """The `resnet50` of torchvision: bottlenecks 3, 4, 6, 3, stride in the convolution of 3 x 3; 3 x 224 x 224."""
    yield from convolution("conv1", 7 * 7 * 3, 64, 112)
    yield from norm("bn1", 64, 112 * 112)
    side, channels = 56, 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            after = side // 2 if block == 0 and stage > 1 else side
            yield from convolution(f"{name}.conv1", channels, width, side)
            yield from norm(f"{name}.bn1", width, side * side)
            yield from convolution(f"{name}.conv2", 9 * width, width, after)
            yield from norm(f"{name}.bn2", width, after * after)
            yield from convolution(f"{name}.conv3", width, 4 * width, after)
            yield from norm(f"{name}.bn3", 4 * width, after * after)
            if block == 0:
                yield from convolution(f"{name}.downsample.0", channels, 4 * width, after)
                yield from norm(f"{name}.downsample.1", 4 * width, after * after)
            side, channels = after, 4 * width
    yield from linear("fc", 2048, 1000)


def bert_base(tokens: int = 128, hidden: int = 768, words: int = 30_522) -> Layers:
    """`BertForPreTraining` of transformers, uncased: twelve layers, decoder tied to the word embedding."""
    for name, rows in (("word", words), ("token_type", 2), ("position", 512)):
        yield f"bert.embeddings.{name}_embeddings.weight", rows * hidden, tokens * hidden
    yield from norm("bert.embeddings.LayerNorm", hidden, tokens)
    for at in range(12):
        layer = f"bert.encoder.layer.{at}"
        yield from linear(f"{layer}.attention.self.query", hidden, hidden, tokens)
        yield from linear(f"{layer}.attention.self.key", hidden, hidden, tokens)
        scores = 2 * tokens * tokens * hidden
        yield from linear(f"{layer}.attention.self.value", hidden, hidden, tokens, then=scores)
        yield from linear(f"{layer}.attention.output.dense", hidden, hidden, tokens)
        yield from norm(f"{layer}.attention.output.LayerNorm", hidden, tokens)
        yield from linear(f"{layer}.intermediate.dense", hidden, 4 * hidden, tokens)
        yield from linear(f"{layer}.output.dense", 4 * hidden, hidden, tokens)
        yield from norm(f"{layer}.output.LayerNorm", hidden, tokens)
    yield from linear("bert.pooler.dense", hidden, hidden)
    yield from linear("cls.predictions.transform.dense", hidden, hidden, tokens)
    yield from norm("cls.predictions.transform.LayerNorm", hidden, tokens, then=tokens * hidden * words)
    yield "cls.predictions.bias", words, tokens * words
    yield from linear("cls.seq_relationship", hidden, 2)


def gpt2_small(tokens: int = 1024, hidden: int = 768, words: int = 50_257) -> Layers:
    """`GPT2LMHeadModel` of transformers, the smallest: twelve blocks, output tied to the embedding."""
    yield "transformer.wte.weight", words * hidden, tokens * hidden
    yield "transformer.wpe.weight", 1024 * hidden, tokens * hidden
    for at in range(12):
        block = f"transformer.h.{at}"
        yield from norm(f"{block}.ln_1", hidden, tokens)
        scores = 2 * tokens * tokens * hidden
        yield from linear(f"{block}.attn.c_attn", hidden, 3 * hidden, tokens, then=scores)
        yield from linear(f"{block}.attn.c_proj", hidden, hidden, tokens)
        yield from norm(f"{block}.ln_2", hidden, tokens)
        yield from linear(f"{block}.mlp.c_fc", hidden, 4 * hidden, tokens)
        yield from linear(f"{block}.mlp.c_proj", 4 * hidden, hidden, tokens)
    yield from norm("transformer.ln_f", hidden, tokens, then=tokens * hidden * words)


def linear(name: str, inputs: int, outputs: int, times: int = 1, *, then: int = 0) -> Layers:
    """A matrix used `times` times per sample, and its bias; `then`: work without parameters after it."""
    yield f"{name}.weight", inputs * outputs, times * inputs * outputs
    yield f"{name}.bias", outputs, times * outputs + then


def convolution(name: str, inputs: int, outputs: int, side: int) -> Layers:
    """A kernel of `inputs` numbers per output channel, without bias, at `side` squared places."""
    yield f"{name}.weight", inputs * outputs, side * side * inputs * outputs


def norm(name: str, width: int, times: int, *, then: int = 0) -> Layers:
    """Scale and shift of a normalisation, at `times` places."""
    yield f"{name}.weight", width, times * width
    yield f"{name}.bias", width, times * width + then


#: Tensors, samples per step, and what a sample is.
MODELS: dict[str, tuple[Callable[[], Layers], int, str]] = {
    "vgg16": (vgg16, 32, "3 x 224 x 224"),
    "resnet50": (resnet50, 32, "3 x 224 x 224"),
    "bert_base": (bert_base, 32, "128 tokens"),
    "gpt2_small": (gpt2_small, 8, "1024 tokens"),
}


def trace(name: str) -> ModelTrace:
    """Return the trace of one of `MODELS`."""
    layers, batch, sample = MODELS[name]
    tensors = tuple(
        Tensor(tensor, 4 * parameters, 2 * batch * work / RATE, batch * work / RATE)
        for tensor, parameters, work in layers()
    )
    facts: dict[str, Fact] = {
        "batch": batch,
        "input": sample,
        "device": f"none; {RATE:g} multiply-adds per second",
        "times": "not measured: forward in proportion to multiply-adds, backward twice as long, update 0",
        "made_by": "scripts/model_traces.py",
    }
    return ModelTrace(name, tensors, facts)


def main() -> None:
    """Write all traces."""
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for name in MODELS:
        made = trace(name)
        write(made, folder / f"{name}.json")
        parameters = sum(tensor.bytes for tensor in made.tensors) // 4
        print(f"{name}: {len(made.tensors)} tensors, {parameters:,} parameters, {made.step().oracle:.4f} s")


if __name__ == "__main__":
    main()
