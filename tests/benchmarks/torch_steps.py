"""CPU seconds of some steps of local training in PyTorch on one thread. Run by `local_steps.py --torch-python`.

    PYTHON torch_steps.py MODEL BATCH_SIZE STEPS

PYTHON needs torch. Random images; SGD with momentum; the networks of `models.classifiers`, layer by layer.
"""

import sys
import time

import torch

nn = torch.nn


class Residual(nn.Sequential):
    """Adds to its input what its layers make of it."""

    def forward(self, x):
        return x + super().forward(x)


def block(inputs: int, outputs: int, *pooling):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(32, outputs), *pooling, nn.ReLU(inplace=True)
    )


def resnet9():
    half = nn.MaxPool2d(2)
    return nn.Sequential(
        block(3, 64), block(64, 128, half), Residual(block(128, 128), block(128, 128)), block(128, 256, half),
        block(256, 512, half), Residual(block(512, 512), block(512, 512)), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(512, 100),
    )  # fmt: skip


def leaf_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2),
        nn.ReLU(), nn.Flatten(), nn.Linear(3136, 2048), nn.ReLU(), nn.Linear(2048, 62),
    )  # fmt: skip


def lenet5():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


MODELS = {
    "resnet9": (resnet9, (3, 32, 32), 100),
    "leaf_cnn": (leaf_cnn, (1, 28, 28), 62),
    "lenet5": (lenet5, (1, 28, 28), 10),
}


def main(name: str, batch_size: str, steps: str):
    torch.set_num_threads(1)
    build, shape, classes = MODELS[name]
    model, warm = build(), 5
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    x, y = torch.randn(int(batch_size), *shape), torch.randint(0, classes, [int(batch_size)])
    for step in range(warm + int(steps)):
        if step == warm:
            start = time.process_time()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    print(time.process_time() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])
