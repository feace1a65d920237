"""MKD as a plugin in Avalanche's own strategies, checked and measured with the real library, on the digits.

By hand, in an environment of its own, since avalanche-lib needs torchvision:

    python -m venv /tmp/av && /tmp/av/bin/pip install avalanche-lib .
    PYTHONPATH=src /tmp/av/bin/python bench/with_avalanche.py [--write]

First what must hold: with `weight=0` the plugin changes no bit of a strategy's weights; the term it adds is `mkd_loss` of the
strategy's own outputs.  Then each strategy, alone and with MKD, on five experiences of two digits, one pass.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

warnings.showwarning = lambda *_, **__: None  # avalanche shows its own whatever the filter
from avalanche.benchmarks import nc_benchmark  # noqa: E402
from avalanche.evaluation.metrics import accuracy_metrics  # noqa: E402
from avalanche.models import IncrementalClassifier  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin  # noqa: E402
from avalanche.training.supervised import DER, ER_ACE, Naive  # noqa: E402

from onepass.adapters.avalanche import MKDPlugin  # noqa: E402
from onepass.losses import mkd_loss  # noqa: E402

SEEDS = 3


class Digits(nn.Module):
    def __init__(self, growing: bool):
        super().__init__()
        body = [nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
        body += [nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.body = nn.Sequential(*body)
        self.classifier = IncrementalClassifier(64, initial_out_features=2) if growing else nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x))


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.targets = x, y.tolist()

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i], self.targets[i]

    def __len__(self) -> int:
        return len(self.targets)


def benchmark(seed: int) -> Any:
    data = load_digits()
    x, y = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(data.target)
    order = torch.from_numpy(np.random.RandomState(seed).permutation(len(y)))
    sets = [Rows(x[rows], y[rows]) for rows in (order[360:], order[:360])]
    return nc_benchmark(*sets, n_experiences=5, task_labels=False, seed=seed)


def jitter(x: Tensor) -> Tensor:
    """A shift of each image by a pixel at most."""
    padded = nn.functional.pad(x, (1, 1, 1, 1))
    corner = torch.randint(0, 3, (len(x), 2)).tolist()
    return torch.stack([image[:, i : i + 8, j : j + 8] for image, (i, j) in zip(padded, corner, strict=True)])


def strategy(name: str, plugins: list[Any], seed: int, growing: bool = False) -> Any:
    torch.manual_seed(seed)
    model = Digits(growing)
    how: dict[str, Any] = {
        "model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=2e-3), "train_mb_size": 4, "train_epochs": 1,
        "eval_mb_size": 128, "evaluator": EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
    }  # fmt: skip
    if name == "Replay":
        return Naive(plugins=[ReplayPlugin(mem_size=50, batch_size=4, batch_size_mem=10), *plugins], **how)
    if name == "DER++":
        return DER(mem_size=50, batch_size_mem=10, alpha=0.2, beta=1.0, plugins=plugins, **how)
    return ER_ACE(mem_size=50, batch_size_mem=10, plugins=plugins, **how)


def play(made: Any, seed: int, experiences: int = 5) -> float:
    torch.manual_seed(seed)
    data = benchmark(seed)
    for experience in list(data.train_stream)[:experiences]:
        made.train(experience)
    found = made.eval(data.test_stream)
    return next(v for k, v in found.items() if k.startswith("Top1_Acc_Stream/eval_phase/test_stream"))


def weights(made: Any) -> list[Tensor]:
    return [t.detach().clone() for t in made.model.state_dict().values()]


class Witness(MKDPlugin):
    """Compares what the plugin adds with the loss by hand."""

    checked, replayed = 0, 0

    def before_backward(self, strategy: Any, **more: Any) -> None:
        teacher, before = self._teacher, strategy.loss.item()
        outs, seen = [strategy.mb_output], [strategy.mb_x]
        if getattr(strategy, "replay_loader", None) is not None and hasattr(strategy, "mb_buffer_out"):
            outs.append(strategy.mb_buffer_out)
            seen.append(strategy.mb_buffer_x)
            self.replayed += 1
        kept = {k: v.clone() for k, v in teacher.net.state_dict().items()}
        by_hand = mkd_loss(outs, [teacher(x) for x in seen], alpha=self.alpha).item()
        teacher.net.load_state_dict(kept)  # its batch-norm has seen the images once too often
        super().before_backward(strategy, **more)
        assert abs(strategy.loss.item() - before - by_hand) < 1e-5 * max(1.0, by_hand), "the term is mkd_loss"
        self.checked += 1


def check(name: str) -> str:
    alone, with_nothing = strategy(name, [], 0), strategy(name, [MKDPlugin(weight=0.0, cross_entropy=False, infer="student")], 0)
    assert play(alone, 0, 3) == play(with_nothing, 0, 3), "weight 0 changes no prediction"
    assert all(torch.equal(a, b) for a, b in zip(weights(alone), weights(with_nothing), strict=True)), "weight 0 changes no bit"
    witness = Witness(alpha=0.05, cross_entropy=False)
    watched = strategy(name, [witness], 0)
    before = watched.model
    play(watched, 0, 3)
    assert watched.model is before and witness.checked > 100, "evaluation gives the student back"
    assert (witness.replayed > 50) == (name == "ER-ACE")
    assert len(list(watched.model.parameters())) == len(list(witness._teacher.net.parameters()))
    grown = strategy(name, [MKDPlugin(alpha=0.05)], 0, growing=True)
    if name != "DER++":  # whose stored logits are of one width
        accuracy = play(grown, 0, 3)
        assert accuracy > 0.1
    return f"{name}: weight 0 is the strategy bit for bit; {witness.checked} losses are `mkd_loss` by hand; student put back"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    from importlib.metadata import version

    began, rows = time.time(), []
    said = [check(name) for name in ("Replay", "DER++", "ER-ACE")]
    for name in ("Replay", "DER++", "ER-ACE"):
        alone = [play(strategy(name, [], seed), seed) for seed in range(SEEDS)]
        cells = [alone] + [
            [play(strategy(name, [MKDPlugin(alpha=0.05, augment=view, cross_entropy=ce)], seed), seed) for seed in range(SEEDS)]
            for view in (None, jitter)
            for ce in (False, True)
        ]
        cells = " | ".join(f"{100 * np.mean(a):.1f} ± {100 * np.std(a, ddof=1):.1f}" for a in cells)
        rows.append(f"| {name} | {cells} |")
        print(rows[-1], flush=True)
    text = "\n".join(
        [
            "- command: `python bench/with_avalanche.py --write`",
            f"- avalanche-lib {version('avalanche-lib')}, torch {torch.__version__}, {SEEDS} seeds, {time.time() - began:.0f} s",
            *(f"- {line}" for line in said),
            "",
            "| strategy (memory 50) | alone | with MKD | with its cross-entropy | two views | two views, cross-entropy |",
            "|---|--:|--:|--:|--:|--:|",
            *rows,
        ]
    )
    print(text)
    if arguments.write:
        file = Path(__file__).with_name("RESULTS.md")
        before, _, rest = file.read_text().partition("<!-- avalanche: begin -->")
        after = rest.partition("<!-- avalanche: end -->")[2]
        file.write_text(f"{before}<!-- avalanche: begin -->\n\n{text}\n\n<!-- avalanche: end -->{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
