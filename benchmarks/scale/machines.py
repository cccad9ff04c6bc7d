"""The assumptions: GPUs, how much of their peak a step reaches, and links between them.

Peaks and NVLink are those of NVIDIA's data sheets (A100 80GB SXM, H100 SXM), without sparsity; NVLink in one direction.
PCIe 4.0 ×16 has 32 GB/s. No GPU was measured: the utilisation is an assumption, 40 % of the peak in bf16, with a range
of 25 to 50 %. Large transformers on many GPUs report 44 to 52 % (Megatron-LM, A100, Narayanan et al. 2021) and 46 %
(PaLM, Chowdhery et al. 2022); smaller models reach less. In fp32 it is the 12 TFLOP/s of recipes/reproduce/full.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """What a GPU computes in one number format."""

    name: str
    speed: float
    """Operations per second that a step reaches."""
    low: float
    high: float


FP32 = Precision("A100, fp32", 12e12, 9e12, 15e12)
BF16 = Precision("A100, bf16", 0.40 * 312e12, 0.25 * 312e12, 0.50 * 312e12)
H100 = Precision("H100, bf16", 0.40 * 989e12, 0.25 * 989e12, 0.50 * 989e12)

#: Bytes per second that one GPU sends, with a link of its own.
LINKS = {"NVLink": 300e9, "PCIe 4": 32e9, "400 Gbit/s": 50e9, "100 Gbit/s": 12.5e9}
#: Memory of GPUs in bytes by its name, and the share of it that a step can use: the rest is CUDA's, and gaps.
CARDS = {24: 24e9, 40: 40e9, 80: 80e9}
USABLE = 0.9
