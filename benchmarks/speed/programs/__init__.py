"""Programs that `benchmarks.speed.turns` runs in turns: cudt and its peers."""

from cudt.utils.compat import survive_torchvision_mismatch

# Before any of them imports transformers.
survive_torchvision_mismatch()
