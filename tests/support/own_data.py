"""A file of data in all forms: numbers whose sum a network can tell, noise drawn anew each time."""

OWN = '''
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

TRAIN, TEST = 90, 33


def table(train):
    rng = np.random.default_rng(0 if train else 1)
    x = rng.standard_normal((TRAIN if train else TEST, 6)).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy((x.sum(1) > 0).astype(np.int64))


def tensors(train):
    return table(train)


def images(train):
    x, y = table(train)
    return (x[:, :3, None, None] * 40 + 128).clamp(0, 255).byte().repeat(1, 1, 6, 6), y


def named(train):
    x, y = table(train)
    return {"left": x[:, :3], "right": x[:, 3:]}, {"label": y}


class Noisy(Dataset):
    """Each sample with noise of all three generators, as an augmentation draws it."""

    classes = ("below", "above")

    def __init__(self, train):
        self.x, self.y = table(train)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        import random

        noise = random.random() + np.random.rand() + torch.rand(6)
        return self.x[i] + 0.01 * noise, self.y[i]


class NoisyInNames(Noisy):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return {"left": x[:3], "right": x[3:]}, {"label": y}


def samples(train):
    return Noisy(train)


def named_samples(train):
    return NoisyInNames(train)


class Restless(Noisy):
    """With a generator of its own, which cannot be seeded."""

    def __init__(self, train):
        super().__init__(train)
        self.rng = np.random.default_rng()

    def __getitem__(self, i):
        return self.x[i] + float(self.rng.random()), self.y[i]


def restless(train):
    return Restless(train)


def loader(train, batch_size, workers=0):
    return DataLoader(Noisy(train), batch_size=batch_size, shuffle=train, num_workers=workers)


def own_loader(train, batch_size):
    own = torch.Generator()
    return DataLoader(Noisy(train), batch_size=batch_size, shuffle=train, generator=own)


def restless_loader(train, batch_size):
    return DataLoader(Restless(train), batch_size=batch_size, shuffle=train)


class Stream:
    """Batches as webdataset's loader has them: an iterable with a length, and nothing of PyTorch's."""

    def __init__(self, train, batch_size):
        self.data, self.size = table(train), batch_size

    def __len__(self):
        return -(-len(self.data[0]) // self.size)

    def __iter__(self):
        x, y = self.data
        order = torch.randperm(len(x))
        for i in range(0, len(x), self.size):
            yield x[order[i : i + self.size]], y[order[i : i + self.size]]


def stream(train, batch_size):
    return Stream(train, batch_size)


def sequences(train, batch_size):
    """Tokens in batches as long as their longest."""

    def collate(pairs):
        x = torch.nn.utils.rnn.pad_sequence([x for x, _ in pairs], batch_first=True)
        return {"tokens": x, "length": (x > 0).sum(1)}, torch.stack([y for _, y in pairs])

    x, y = table(train)
    lengths = 2 + torch.arange(len(x)) % 5
    data = [(1 + torch.arange(n) % 7, y[i]) for i, n in enumerate(lengths.tolist())]
    return DataLoader(data, batch_size=batch_size, collate_fn=collate)
'''
