from __future__ import annotations

import subprocess
import sys

SURVIVES = """
from cudt.utils.device import survive_torchvision_mismatch
survive_torchvision_mismatch()
survive_torchvision_mismatch()
import torch, torchvision
from torchvision.transforms import v2
from transformers import BertModel, ViTModel
print(tuple(v2.Resize(8)(torch.zeros(1, 16, 16)).shape))
"""

#: A torchvision whose compiled half did not load behaves as its wheel does beside another build of
#: torch.
BROKEN = """
import torch
@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold):
    return dets
healthy = True
"""


def test_torchvision_and_transformers_import_whatever_builds_are_installed():
    done = subprocess.run(
        [sys.executable, "-c", SURVIVES], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "(1, 8, 8)", done.stderr


def test_a_mismatched_torchvision_fails_alone_and_is_survived(tmp_path):
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(BROKEN)
    alone = subprocess.run(
        [sys.executable, "-c", "import torchvision"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert "operator torchvision::nms does not exist" in alone.stderr
    code = (
        "from cudt.utils.device import survive_torchvision_mismatch as survive; survive(); "
        "import torchvision; print(torchvision.healthy)"
    )
    survived = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert survived.stdout.strip() == "True", survived.stderr
