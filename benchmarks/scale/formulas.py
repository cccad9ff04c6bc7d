"""The closed formulas: floating-point operations and numbers in memory of one batch, from a shape.

A product of (n × a) and (a × b) takes 2·n·a·b operations. A linear map with trained weights takes three products in an
update (forward, gradient of its input, gradient of its weights); with frozen weights two. Attention takes two products
forward and, because its kernels compute the first again instead of keeping it, five backward. Norms, softmax, noise
and optimisers are not counted: they move memory, and take few operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scale.shapes import RANK, Shape

#: Products of attention: forward, and backward.
_ATTENTION = (2, 5)


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of one batch."""

    forward: float
    """All layers, without readouts."""
    backward: float
    """Of the layers, with what gradient checkpointing computes again."""
    readout: float
    """The readout of one layer, forward."""
    readout_backward: float

    def update(self, readouts: int) -> float:
        """An update that reads a number of layers."""
        return self.forward + self.backward + readouts * (self.readout + self.readout_backward)

    def evaluation(self, readouts: int) -> float:
        """A forward pass that reads a number of layers."""
        return self.forward + readouts * self.readout


def operations(shape: Shape) -> Operations:
    """The operations of a batch of a shape."""
    return _BY_FAMILY[shape.family](shape)


def _encoder(shape: Shape) -> Operations:
    """An encoder of text with a linear readout of one token to two classes, or of images without any product in it."""
    d, n = shape.width, shape.rows * shape.tokens
    linear = 2 * n * (4 * d * d + 2 * d * shape.inner) * shape.layers
    attention = 2 * n * shape.tokens * d * shape.layers
    forward, backward = linear + _ATTENTION[0] * attention, 2 * linear + _ATTENTION[1] * attention
    readout = 2 * shape.examples * d * 2
    if shape.family == "vit":
        # The patches have no gradient, so the embedding of patches has two products; the class token is no patch.
        embedding, readout = 2 * (n - shape.rows) * d * d, 0
        forward, backward = forward + embedding, backward + embedding
    return Operations(forward, backward, readout, 2 * readout)


def _causal(shape: Shape) -> Operations:
    d, n, layers = shape.width, shape.rows * shape.tokens, shape.layers
    maps = [(d, d), (d, shape.keys), (d, shape.keys), (d, d), (d, shape.inner), (d, shape.inner), (shape.inner, d)]
    linear = 2 * n * sum(a * b for a, b in maps) * layers
    adapters = 2 * n * RANK * sum(a + b for a, b in maps) * layers if shape.lora else 0
    attention = 2 * n * shape.tokens * d * layers
    forward = linear + adapters + _ATTENTION[0] * attention
    # Frozen weights have no gradient.
    trained = 1 if shape.lora else 2
    backward = trained * linear + 2 * adapters + _ATTENTION[1] * attention
    if shape.recompute:
        # All but the last product of each layer, whose result nothing needs.
        backward += forward - 2 * n * layers * d * (RANK if shape.lora else shape.inner)
    elif shape.lora:
        # Nor have the embeddings, from which the first layer's queries, keys and values are computed: three maps, and
        # the A of their adapters, need no gradient of their input. With gradient checkpointing it is computed anyway.
        backward -= 2 * n * sum(a * b + RANK * a for a, b in maps[:3])
    readout = 2 * shape.examples * shape.read * d * shape.words
    return Operations(forward, backward, readout, trained * readout)


def _ut(shape: Shape) -> Operations:
    """UT: queries, their products, attention and W_s; the gradient of the products Y Yᵀ is one product."""
    d, a, t, n = shape.width, shape.inner, shape.tokens, shape.rows * shape.tokens
    queries, gram, attended, step = 2 * n * d * a, 2 * n * t * a, 2 * n * t * d, 2 * n * d * d
    forward = shape.layers * (queries + gram + attended + step)
    backward = shape.layers * (2 * queries + gram + 2 * attended + 2 * step)
    if shape.family == "ut":
        readout = 2 * shape.examples * d * 2
        return Operations(forward, backward, readout, 2 * readout)
    # Pixels have no gradient.
    return Operations(forward, backward - queries - attended, 0, 0)


def _dust(shape: Shape) -> Operations:
    """DUST: a product with D and one with Dᵀ in each layer, and one more if layers have dictionaries of their own."""
    p, a, t, n = shape.width, shape.inner, shape.tokens, shape.rows * shape.tokens
    dictionary, later = 2 * n * p * a, shape.layers - 1
    gram, codes, shown = 2 * n * t * p, 2 * n * t * a, 2 * n * t * p
    products = 2 if shape.tied else 3
    count = 1 if shape.tied else shape.layers
    # ‖D‖²: DDᵀ without gradients, and Dᵀu with them. Its eigenvectors are not counted.
    norm, projected = count * 2 * p * p * a, count * 2 * p * a
    forward = 2 * dictionary + later * (products * dictionary + gram + codes + shown) + norm + projected
    # Of the first layer, whose x has no gradient, D once; of the others without the product that is read. A layer that
    # nobody reads needs no gradient of it, unless the next layer uses the same product.
    backward = dictionary + later * (2 * (products - 1) * dictionary + gram + 2 * codes + 2 * shown) + projected
    if shape.tied:
        return Operations(forward, backward + 2 * shape.layers * dictionary, 0, 0)
    return Operations(forward, backward, 0, 2 * dictionary)


_BY_FAMILY = {"encoder": _encoder, "vit": _encoder, "causal": _causal, "ut": _ut, "ut_video": _ut, "dust": _dust}


@dataclass(frozen=True)
class Weights:
    """Numbers of weights."""

    all: int
    trained: int
    in_a_layer: int
    """Of the largest group that FSDP gathers at once: a layer."""

    def outside(self, layers: int) -> int:
        """Outside of the layers: embeddings and head."""
        return self.all - layers * self.in_a_layer


def weights(shape: Shape) -> Weights:
    """The weights of a model; positions are counted for the tokens of the shape."""
    d, f, layers = shape.width, shape.inner, shape.layers
    if shape.family in ("encoder", "vit"):
        layer = 4 * d * d + 2 * d * f + f + 9 * d
        ends = shape.words * d + (shape.tokens + 2) * d + 3 * d + 2 * d + 2
        if shape.family == "vit":
            ends = d * d + d + d + shape.tokens * d
        return Weights(ends + layers * layer, ends + layers * layer, layer)
    if shape.family == "causal":
        maps = [(d, d), (d, shape.keys), (d, shape.keys), (d, d), (d, f), (d, f), (f, d)]
        layer = sum(a * b for a, b in maps) + 2 * d
        frozen = 2 * shape.words * d + layers * layer + d
        if not shape.lora:
            return Weights(frozen, frozen, layer)
        adapters = RANK * sum(a + b for a, b in maps)
        return Weights(frozen + layers * adapters, layers * adapters, layer + adapters)
    layer = d * f if shape.family == "dust" else d * f + d * d
    count = 1 if shape.tied else layers
    ends = (shape.words + shape.tokens) * d + 2 * d + 2 if shape.family == "ut" else 0
    return Weights(ends + count * layer, ends + count * layer, layer)
