"""DVC's learning rate with raw logits: a small grid, scored on training images that are held out, never on test images.

`python bench/dvc_rate.py --data-dir DIR`: the first two tasks of CIFAR-10, 1,250 images a class to learn from and the next 250 to
score on, width 20, memory 200; final average accuracy for each rate and seed.  `--data npz:PATH` takes these images from an archive
of any number of them, `--device cuda` trains elsewhere.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from onepass import Seeds, recipe, source
from onepass.learner import SGD
from onepass.nets import ResNet18
from onepass.stream import Batch


def accuracy(rate: float, seed: int, rows: tuple[Batch, Batch], names: tuple[str, ...], device: str) -> float:
    config = recipe("dvc", source("cifar10"), memory=200, seed=seed, device=device)
    method = replace(config.method, rate=rate)  # type: ignore[type-var]
    config = replace(config, method=method, optim=SGD(lr=rate, momentum=0.9), net=ResNet18(width=20))
    stream = config.stream.over(rows[0], names, Seeds(seed)).cut(5000)
    learner = config.learner(stream.spec, sharp=True)
    for batch in stream.to(learner.device).batches(config.batch_size):
        learner.observe(batch)
    y = stream.number(rows[1].y)
    scores = [
        (learner.predict(rows[1].x[m]) == y[m]).double().mean()
        for t in stream.spec.tasks[:2]
        for m in [torch.isin(y, torch.tensor(t))]
    ]
    return 100 * float(torch.stack(scores).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.03, 0.01, 0.003])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    known = parser.parse_args()
    data = source(known.data).load(known.data_dir)
    of_class = [(data.train.y == c).nonzero().squeeze(1) for c in range(10)]
    parts = [torch.cat([rows[a:b] for rows in of_class]) for a, b in ((0, 1250), (1250, 1500))]
    rows = tuple(Batch(data.train.x[p], data.train.y[p]) for p in parts)
    for rate in known.rates:
        print(
            f"lr {rate}: " + ", ".join(f"{accuracy(rate, s, rows, data.names, known.device):.1f}" for s in known.seeds), flush=True
        )  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
