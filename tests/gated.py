"""A network that trains no more often than a file beside it says, so that a test can stop a run where it wants to."""


def gated(drop: float = 0.0, waiting: str = "pass") -> str:
    """The text of `net.py`, whose `build` is for `--net`.  While `gate` is beside it, its number is how often; `waiting` is done
    meanwhile, again and again."""
    return f"""
import os
import time
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).parent

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(64), nn.Dropout({drop}) if {drop} else nn.Identity()
        self.hidden, self.classifier = nn.Linear(64, 16), nn.Linear(16, classes)
        self.count = 0

    def features(self, x):
        self.count += torch.is_grad_enabled()
        try:
            while self.count > int((HERE / "gate").read_text()):
                {waiting}
                time.sleep(0.01)
        except FileNotFoundError:
            pass
        return torch.relu(self.hidden(self.drop(self.norm(x.flatten(1)))))

def build(classes, image):
    return Net(classes)
"""
