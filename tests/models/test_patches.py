from __future__ import annotations

import math

import pytest
import torch

from cudt.config.tasks import Reviews as ReviewsSection
from cudt.models import dust, unrolled_video
from cudt.models.patch_section import video_task
from cudt.models.patches import from_patches, overcomplete_dct, to_patches
from cudt.tasks import toys
from cudt.utils.errors import UserError
from tests.shapes import tiny_videos

SIZES = [(2, 2), (2, 5), (4, 4), (4, 6), (5, 7), (8, 12), (16, 24)]


def random_frames(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).float()


@pytest.mark.parametrize("side", [1, 2, 4])
def test_frames_that_are_cut_into_patches_and_put_together_are_the_same(side):
    frames = random_frames(3, 5, 8, 12)
    patches = to_patches(frames, side)
    assert patches.shape == (3 * 8 * 12 // side**2, 5, side**2)
    assert torch.equal(from_patches(patches, side, 8, 12), frames)


def test_a_sequence_is_one_patch_position_over_the_frames():
    frames = random_frames(2, 5, 8, 12)
    sequences = iter(to_patches(frames, 4))
    for example in range(2):
        for top in (0, 4):
            for left in (0, 4, 8):
                place = frames[example, :, top : top + 4, left : left + 4]
                assert torch.equal(next(sequences), place.flatten(1))


@pytest.mark.parametrize(("side", "atoms"), SIZES)
def test_atoms_are_products_of_cosines_without_their_mean_of_norm_1(side, atoms):
    def cosine(k: int) -> list[float]:
        values = [math.cos(math.pi * i * k / atoms) for i in range(side)]
        mean = sum(values) / side if k else 0.0
        norm = math.sqrt(sum((value - mean) ** 2 for value in values))
        return [(value - mean) / norm for value in values]

    dictionary = overcomplete_dct(side, atoms)
    assert dictionary.shape == (side**2, atoms**2)
    assert torch.allclose(dictionary.norm(dim=0), torch.ones(atoms**2), atol=1e-6)
    for down, across in [(0, 0), (0, 1), (1, 0), (atoms - 1, 1), (atoms - 1, atoms - 1)]:
        expected = [a * b for a in cosine(down) for b in cosine(across)]
        assert dictionary[:, down * atoms + across].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("side", "atoms"), SIZES)
def test_the_first_atom_is_constant_and_all_together_span_the_pixels(side, atoms):
    dictionary = overcomplete_dct(side, atoms)
    assert dictionary[:, 0].tolist() == pytest.approx([1 / side] * side**2)
    assert torch.linalg.matrix_rank(dictionary) == side**2


@pytest.mark.parametrize("model", [dust, unrolled_video])
def test_frames_that_do_not_fit_the_patches_are_refused(model):
    config = model.Config(name="x", patch=6, atoms=6)
    with pytest.raises(
        UserError,
        match=r"^model\.patch = 6: frames of 16×16 pixels are not a multiple .*; change task\.size or model\.patch$",
    ):
        model.build(config, tiny_videos(), None)
    assert model.build(config, tiny_videos(size=18), None).patch == 6


def test_a_task_that_is_not_video_is_refused():
    task = toys.reviews(ReviewsSection(name="reviews", train=4, validation=4, test=4), None, None)
    with pytest.raises(
        UserError,
        match=r"^model any needs a video task: set task.name to ucsd, folder or another video task$",
    ):
        video_task(task, "any")
    videos = tiny_videos()
    assert video_task(videos, "any") is videos


def test_the_signal_is_the_clean_frames_of_0_to_255_and_all_of_them_are_real():
    task = tiny_videos()
    model = dust.build(dust.Config(name="dust", patch=4, atoms=4), task, None)
    batch = task.collate(task.examples("train"))
    signal, mask = model.signal(batch)
    assert signal.dtype == torch.float32
    assert torch.equal(signal, batch["frames"].float())
    assert signal.max() > 100
    assert mask.shape == signal.shape[:2]
    assert mask.all()
