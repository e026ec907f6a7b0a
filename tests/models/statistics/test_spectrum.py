"""Loadings and eigenvalues: those of an SVD, with one sign, and what each of them can and cannot see."""

import numpy as np
import pytest
import torch

from models.statistics.feature_vector import compute, make
from models.statistics.spectrum import spectrum
from models.statistics.statistic_base import centred

CLASSES = 4
SIGNS = pytest.mark.parametrize("sign", ["ones", "largest", "data"])


def pictures(rows: int, side: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures whose pattern depends on their class; the first directions are far apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, rows)
    patterns = rng.random((CLASSES, side, side)) * np.array([1.0, 2.0, 4.0, 8.0])[:, None, None]
    return torch.from_numpy(patterns[y] + 0.3 * rng.random((rows, side, side))), torch.from_numpy(y)


def joint(x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    return np.column_stack([x.flatten(1).numpy(), np.eye(CLASSES)[y.numpy()]])


def of(x: torch.Tensor, y: torch.Tensor, **spec: object) -> np.ndarray:
    return compute([make(spec)], x, y, CLASSES).vector.numpy()


@SIGNS
@pytest.mark.parametrize("rows", [12, 200])  # fewer and more than the 29 columns
def test_loadings_are_the_right_singular_vectors_up_to_sign_and_scale(rows, sign):
    x, y = pictures(rows)
    z = joint(x, y)
    _, s, vt = np.linalg.svd(z - z.mean(0), full_matrices=False)
    found = compute([make({"kind": "loadings", "components": 3, "sign": sign})], x, y, CLASSES)
    mine = found.vector.numpy().reshape(3, 29)
    np.testing.assert_allclose(np.linalg.norm(mine, axis=1), np.sqrt(29))
    for v, wanted in zip(mine / np.sqrt(29), vt, strict=False):
        np.testing.assert_allclose(v * np.sign(v @ wanted), wanted, atol=1e-9)
        if sign != "data":
            assert v[:25].sum() > 0 if sign == "ones" else v[np.abs(v).argmax()] > 0
    values = s**2
    assert found.gap[0] == pytest.approx(min(1 - values[j + 1] / values[j] for j in range(3)), rel=1e-6)


@pytest.mark.parametrize("rows", [12, 20, 200])
def test_the_fingerprint_is_the_eigenvalues_of_the_covariance_then_zeros(rows):
    x, y = pictures(rows)
    values = np.sort(np.linalg.eigvalsh(np.cov(joint(x, y).T)))[::-1]
    expected = np.zeros(32)
    expected[:29] = np.clip(values, 0, None)
    np.testing.assert_allclose(of(x, y, kind="fingerprint"), expected, atol=1e-10)
    np.testing.assert_allclose(of(x, y, kind="fingerprint", values=4), expected[:4], atol=1e-10)
    np.testing.assert_allclose(of(x, y, kind="fingerprint", values=4, log=True), np.log1p(expected[:4]), atol=1e-10)
    assert not of(x, y, kind="fingerprint")[rows:].any()


@pytest.mark.parametrize(("rows", "columns"), [(9, 40), (40, 9), (9, 9)])
def test_both_ways_to_the_spectrum_agree_with_the_svd(rows, columns):
    z = centred(torch.randn(rows, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    values, directions = spectrum(z)
    _, s, vt = np.linalg.svd(z.numpy(), full_matrices=False)
    np.testing.assert_allclose(values, s**2 / (rows - 1), atol=1e-12)
    top = min(rows - 1, columns) - 1
    np.testing.assert_allclose(np.abs(np.sum(directions[:top].numpy() * vt[:top], 1)), 1, atol=1e-10)


def test_directions_that_the_rows_do_not_have_are_zeros():
    x, y = pictures(3)
    found = compute([make({"kind": "loadings", "components": 4, "sign": "ones"})], x, y, CLASSES)
    size = found.vector.reshape(4, 29).norm(dim=1)
    assert (size > 0).tolist() == [True, True, False, False]
    assert found.ok == (False,)


def test_a_loading_is_as_long_as_it_is_asked_to_be():
    x, y = pictures(9)
    asked, usual = (compute([make({"kind": "loadings", **more})], x, y, CLASSES) for more in ({"norm": 10.0}, {}))
    assert float(asked.vector.norm()) == pytest.approx(10)
    torch.testing.assert_close(asked.vector / 10, usual.vector / len(usual.vector) ** 0.5)
    for wrong in (0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="expected above 0 and at most 1,000,000,000"):
            make({"kind": "loadings", "norm": wrong})


def test_rows_that_are_all_alike_have_no_loadings():
    x, y = pictures(9)
    found = compute([make({"kind": "loadings"})], x[:1].expand_as(x), y[:1].expand_as(y), CLASSES)
    assert not found.vector.any()
    assert (found.ok, found.gap) == ((False,), (None,))


def test_equal_eigenvalues_show_as_no_gap():
    corners = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    found = compute([make({"kind": "loadings"})], corners, torch.zeros(4, dtype=torch.int64), CLASSES)
    assert found.gap[0] == pytest.approx(0, abs=1e-12)
    found = compute(
        [make({"kind": "loadings"})], corners * torch.tensor([2.0, 1.0]), torch.zeros(4, dtype=torch.int64), 4
    )
    assert found.gap[0] == pytest.approx(0.75)


def test_the_gap_of_the_free_form_is_that_of_the_last_direction_since_it_turns_at_no_other():
    """The first two eigenvalues are equal, the third is a hundredth of them: the vectors can turn, what they share not."""
    corners = torch.cat([torch.eye(3), -torch.eye(3)]) * torch.tensor([1.0, 1.0, 0.1])
    told = {}
    for sign in ("free", "ones"):
        spec = make({"kind": "loadings", "components": 2, "sign": sign})
        told[sign] = compute([spec], corners, torch.zeros(6, dtype=torch.int64), CLASSES).gap[0]
    assert told["free"] == pytest.approx(0.99)
    assert told["ones"] == pytest.approx(0, abs=1e-12)


RELABELLED = torch.tensor([2, 0, 3, 1])


def test_the_fingerprint_is_blind_to_permuted_labels_and_sees_merged_ones():
    """Published results claim that it sees the first: of the same rows it cannot."""
    x, y = pictures(60)
    plain, permuted = (of(x, labels, kind="fingerprint") for labels in (y, RELABELLED[y]))
    np.testing.assert_allclose(permuted, plain, atol=1e-12)
    assert np.abs(of(x, y.clamp(max=2), kind="fingerprint") - plain).max() > 0.01


def test_the_fingerprint_is_blind_to_pictures_turned_by_90_degrees():
    x, y = pictures(60)
    for turns in (1, 2, 3):
        turned = of(torch.rot90(x, turns, (1, 2)), y, kind="fingerprint")
        np.testing.assert_allclose(turned, of(x, y, kind="fingerprint"), atol=1e-12)


@pytest.mark.parametrize("kind", ["loadings", "class_means", "class_frequencies", "covariance_xy"])
def test_others_see_permuted_labels(kind):
    x, y = pictures(60)
    assert np.abs(of(x, RELABELLED[y], kind=kind) - of(x, y, kind=kind)).max() > 0.01


@pytest.mark.parametrize("kind", ["loadings", "class_means", "mean", "covariance_xy"])
def test_others_see_turned_pictures(kind):
    x, y = pictures(60)
    assert np.abs(of(torch.rot90(x, 1, (1, 2)), y, kind=kind) - of(x, y, kind=kind)).max() > 0.01
