"""Train, detect, decide on scikit-learn's bundled digits: plain training against SPCP, in well under a minute.

Digits 0 to 5 are known; 6 to 9, inverted digits and noise are not. rho_norm is chosen by the paper's rule, on
validation digits against Gaussian noise: the test sets are looked at once.
"""

from __future__ import annotations

import statistics

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from spcp import apply_spcp

KNOWN, EPOCHS, BATCH, SEEDS = 6, 60, 32, (0, 1, 2)
GRID = (0.1, 0.2, 0.3, 0.5, 1.0)


def main() -> None:
    torch.set_num_threads(1)  # the network is too small to share
    x, y = (torch.tensor(a) for a in load_digits(return_X_y=True))
    x = x.float() / 16  # (1797, 64) in [0, 1]
    known = torch.randperm(int((y < KNOWN).sum()), generator=torch.Generator().manual_seed(0))
    x_known, y_known = x[y < KNOWN][known], y[y < KNOWN][known]
    (x_train, x_val, x_test), (y_train, _, y_test) = x_known.split([300, 300, 483]), y_known.split([300, 300, 483])
    noise = torch.Generator().manual_seed(0)
    x_noise = torch.randn(300, 64, generator=noise) * x_train.std() + x_train.mean()  # OOD validation
    odd = {
        "digits 6-9": x[y >= KNOWN],
        "inverted": 1 - x_test,
        "uniform noise": torch.rand(483, 64, generator=noise),
    }

    print(f"Known: digits 0-{KNOWN - 1}, {len(x_train)} for training. AUROC of the energy score, {len(SEEDS)} seeds.\n")
    print(f"{'':<22}{'accuracy':>10}" + "".join(f"{name:>15}" for name in odd) + f"{'ID flagged':>13}")
    plain = [train(x_train, y_train, 0, seed) for seed in SEEDS]
    by_rho = {rho: [train(x_train, y_train, rho, seed) for seed in SEEDS] for rho in GRID}
    chosen = max(GRID, key=lambda rho: statistics.mean(auroc(model, x_val, x_noise) for model in by_rho[rho]))
    for name, models in (("plain", plain), (f"SPCP, rho_norm {chosen:g}", by_rho[chosen])):
        accuracy = statistics.mean((m(x_test).argmax(1) == y_test).float().mean().item() for m in models)
        areas = [statistics.mean(auroc(m, x_test, x_odd) for m in models) for x_odd in odd.values()]
        # Decide: the threshold that 5 % of validation digits fall below.
        flagged = statistics.mean(
            (energy(m, x_test) < energy(m, x_val).quantile(0.05)).float().mean().item() for m in models
        )
        print(f"{name:<22}{accuracy:>10.1%}" + "".join(f"{area:>15.1%}" for area in areas) + f"{flagged:>13.1%}")


def train(x: Tensor, y: Tensor, rho_norm: float, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, KNOWN))
    steps = EPOCHS * -(-len(x) // BATCH)
    if rho_norm:
        apply_spcp(model, rho_norm, total_steps=steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def energy(model: nn.Module, x: Tensor) -> Tensor:
    """The score: `logsumexp` of the logits, larger for known inputs."""
    return torch.logsumexp(model(x), 1)


def auroc(model: nn.Module, x_id: Tensor, x_ood: Tensor) -> float:
    labels = torch.cat([torch.ones(len(x_id)), torch.zeros(len(x_ood))])
    return float(roc_auc_score(labels, torch.cat([energy(model, x_id), energy(model, x_ood)])))


if __name__ == "__main__":
    main()
