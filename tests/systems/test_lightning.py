# SPDX-License-Identifier: Apache-2.0
"""A real Lightning trains with the Foresee loader, its ranks and its checkpoints, and with synchronized models."""

from __future__ import annotations

import pathlib

import pytest
from support import framework_runs as runs
from support.framework_runs import RANKS, SAMPLES

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


def test_one_device_reads_the_exact_order_and_resumes_at_any_step(tmp_path: pathlib.Path, rows: str) -> None:
    whole = runs.expected(SAMPLES)
    saved = tmp_path / "checkpoints"
    every = ["--every", "1", "--checkpoints", str(saved)]
    # In the middle of the first epoch and of a later one, at an epoch's last batch, and after the first of the next.
    cuts = [3, 7, 8, 17]
    resumed = {
        tmp_path / f"from-{cut}": [
            rows,
            "--resume",
            str(saved / f"step={cut}.ckpt"),
            "--checkpoints",
            str(tmp_path / f"c{cut}"),
        ]
        for cut in cuts
    }
    again = [
        rows,
        "--resume",
        str(tmp_path / "c3" / "step=5.ckpt"),
        "--checkpoints",
        str(tmp_path / "again-saved"),
    ]
    resumed[tmp_path / "from-3"] += ["--every", "1"]
    runs.run_several("lightning", {tmp_path / "whole": [rows, *every], **resumed, tmp_path / "again": again})
    assert runs.batches(tmp_path / "whole") == whole
    for cut in cuts:
        assert runs.batches(tmp_path / f"from-{cut}") == whole[cut:], cut
    # A resumed run is resumed again within the same epoch.
    assert runs.batches(tmp_path / "again") == whole[5:]


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_ranks_read_their_shares_and_resume_mid_epoch(
    tmp_path: pathlib.Path, rows: str, strategy: str
) -> None:
    saved = tmp_path / "checkpoints"
    ranks = [rows, "--devices", RANKS, "--strategy", strategy, "--checkpoints", saved, "--every", 3]
    runs.run("lightning", tmp_path / "whole", *ranks)
    runs.run("lightning", tmp_path / "rest", *ranks, "--resume", saved / "step=6.ckpt")
    for rank in range(RANKS):
        whole = runs.expected(SAMPLES, rank=rank, ranks=RANKS)
        assert runs.batches(tmp_path / "whole", rank) == whole
        assert runs.batches(tmp_path / "rest", rank) == whole[6:]


SYNCHRONIZED = """
    import sys, warnings
    import lightning
    import torch
    from torch import distributed, multiprocessing, nn
    import foresee.torch as ft
    from support.tensors import noise

    warnings.simplefilter("ignore")
    BATCHES, RANKS = 6, 2

    class Module(lightning.LightningModule):
        def __init__(self, automatic, synchronized):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
            self.automatic_optimization = automatic
            self.synchronized = synchronized

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
            if self.synchronized:
                self.net, optimizer = ft.synchronize(self.net, optimizer, servers="colocated")
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}

        def training_step(self, batch):
            loss = self.net(batch).square().mean()
            if self.automatic_optimization:
                return loss
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.lr_schedulers().step()

    def weights(automatic, ranks, synchronized):
        # Every rank has its share of each batch; a process alone has all shares.
        shares = [[noise(3, 4, seed=10 * number + rank) for rank in ranks] for number in range(BATCHES)]
        module = Module(automatic, synchronized)
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )
        trainer.fit(module, torch.utils.data.DataLoader([torch.cat(share) for share in shares], batch_size=None))
        return [value.clone() for value in module.net.state_dict().values()]

    def rank_main(rank, port, folder):
        store = distributed.TCPStore("127.0.0.1", port, is_master=False)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        for automatic in (True, False):
            torch.save(weights(automatic, [rank], True), f"{folder}/{rank}-{automatic}.pt")

    if __name__ == "__main__":
        folder = sys.argv[1]
        store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        multiprocessing.spawn(rank_main, (store.port, folder), RANKS)
        for automatic in (True, False):
            found = [torch.load(f"{folder}/{rank}-{automatic}.pt") for rank in range(RANKS)]
            assert all(map(torch.equal, *found)), "the ranks differ"
            for one, other in zip(found[0], weights(automatic, range(RANKS), False), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
"""


def test_a_synchronized_module_trains_as_one_process_on_the_joined_batches(tmp_path: pathlib.Path) -> None:
    # With automatic optimization, Lightning calls step(closure).
    runs.run_text(SYNCHRONIZED, tmp_path, tmp_path, FORESEE_ADDRESS="127.0.0.1")
