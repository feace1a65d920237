"""The report on a memory, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from onepass.checkup import Report, examine, parts
from onepass.nets import Linear, Net, ResNet18
from onepass.seeds import Seeds
from onepass.stream import Spec

Y = torch.tensor([0, 0, 0, 0, 1, 1, 2])
NAMES = ("cat", "dog", 7)


def logits(predicted: list[int], classes: int = 3) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(predicted), classes).float()


NOW = (torch.full((7, 2), 3.0), logits([0, 1, 1, 1, 1, 1, 0]))
BEFORE = (torch.tensor([[3.0, 4.0]]).expand(7, 2), logits([0, 0, 0, 1, 1, 0, 0], 2))


def test_the_first_report_has_accuracy_by_class_and_nothing_to_compare() -> None:
    report = examine(70, Y, NAMES, NOW, None, 0, 0.1)
    assert report == Report(70, {"cat": 0.25, "dog": 1.0, 7: 0.0}, {"cat": 4, "dog": 2, 7: 1})
    assert report.drift is None and report.forgetting == {}
    assert report.mean == pytest.approx(1.25 / 3)


def test_the_next_says_what_moved_and_what_fell_on_the_same_images() -> None:
    report = examine(70, Y, NAMES, NOW, BEFORE, 2, 0.1)
    assert report.drift == pytest.approx(1.0 / 5.0)  # from (3, 4) to (3, 3)
    assert report.forgetting == {"cat": (0.75, 0.25)}
    assert examine(70, Y, NAMES, NOW, BEFORE, 2, 0.6).forgetting == {}


def test_classes_that_were_not_known_then_have_no_part_in_it() -> None:
    moved = (NOW[0].clone(), NOW[1])
    moved[0][6] = 1000.0
    assert examine(70, Y, NAMES, moved, BEFORE, 2, 0.1).drift == pytest.approx(0.2)
    assert examine(70, Y[6:], NAMES, (NOW[0][6:], NOW[1][6:]), (BEFORE[0][6:], BEFORE[1][6:]), 2, 0.1).drift == 0.0


def test_it_can_be_read() -> None:
    lines = str(examine(70, Y, NAMES, NOW, BEFORE, 2, 0.1)).splitlines()
    assert lines[0] == "70 images of 3 classes; 41.7 % of the memory is right; features have moved by 20.0 % of their length"
    assert lines[1:] == ["  7: 0.0 % of 1", "  cat: 25.0 % of 4, was 75.0 %: being forgotten", "  dog: 100.0 % of 2"]
    assert math.isnan(Report(0, {}, {}).mean)


def test_parts_are_those_of_the_network_whatever_the_number_at_a_time() -> None:
    net = Net(ResNet18(width=2).build(Spec(5, (1, 8, 8)), Linear(), Seeds())).eval()
    x = torch.randint(256, (7, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    features, found = parts(net, x, 3, rows=2)
    h, z = net.parts(x.float() / 255)
    torch.testing.assert_close(features, h.detach())
    torch.testing.assert_close(found, z[:, :3].detach())
