"""MKD in a loop of your own: plain PyTorch, a buffer, an evaluation, and four lines of onepass (marked 1 to 4)."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from onepass import EMA, average, mkd_loss


def stream(seed: int) -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Handwritten digits, two classes after two classes, in batches of 2; and images to test on."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    test, train = order[:360], order[360:]
    train = train[(y[train] // 2).argsort(stable=True)]  # tasks 01, 23, 45, 67, 89
    return [(x[rows], y[rows]) for rows in train.split(2)], (x[test], y[test])


def network() -> nn.Module:
    def block(inside: int, out: int, stride: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

    body = [block(1, 32, 1), block(32, 64, 2), block(64, 128, 2)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def crop(x: Tensor) -> Tensor:
    """A crop of each image at random, one pixel of padding around."""
    padded = F.pad(x, (1, 1, 1, 1))
    corner = torch.randint(0, 3, (len(x), 2)).tolist()
    return torch.stack([image[:, i : i + 8, j : j + 8] for image, (i, j) in zip(padded, corner, strict=True)])


class Buffer:
    """A uniform sample of what has passed (Vitter's reservoir)."""

    def __init__(self, rows: int):
        self.rows, self.seen, self.x, self.y = rows, 0, torch.empty(0, 1, 8, 8), torch.empty(0, dtype=torch.int64)

    def add(self, x: Tensor, y: Tensor) -> None:
        for image, label in zip(x, y, strict=True):
            self.seen += 1
            slot = len(self.y) if len(self.y) < self.rows else int(torch.randint(self.seen, ()))
            if slot == len(self.y):
                self.x, self.y = torch.cat([self.x, image[None]]), torch.cat([self.y, label[None]])
            elif slot < self.rows:
                self.x[slot], self.y[slot] = image, label

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        rows = torch.randperm(len(self.y))[:n]
        return self.x[rows], self.y[rows]


def train(mkd: bool, seed: int = 0, limit: int | None = None) -> float:
    """One pass over the stream; the share of test images that are classified rightly at its end."""
    torch.manual_seed(seed)
    batches, (x_test, y_test) = stream(seed)
    model, buffer = network(), Buffer(10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    teacher = EMA(alpha=0.05).follow(model)  # 1: a network that follows the model
    for x, y in batches[:limit]:
        old_x, old_y = buffer.draw(10)
        both, labels = torch.cat([old_x, x]), torch.cat([old_y, y])
        augmented = crop(both)
        logits = model(augmented)
        loss = F.cross_entropy(logits, labels)
        if mkd:
            loss = loss + mkd_loss([model(both), logits], teacher(augmented), alpha=0.05)  # 2: one more term
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.update(model)  # 3: after each step
        buffer.add(x, y)
    predictor = average(model, teacher) if mkd else model.eval()  # 4: what predicts
    with torch.no_grad():
        return (predictor(x_test).argmax(1) == y_test).float().mean().item()


if __name__ == "__main__":
    for seed in range(3):
        print(f"seed {seed}: replay {100 * train(False, seed):.1f} %, replay and MKD {100 * train(True, seed):.1f} %")
