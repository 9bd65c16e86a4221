# SPDX-License-Identifier: Apache-2.0
"""The tree of errors: base classes that callers catch, and attributes that survive pickling."""

from __future__ import annotations

import pickle

import pytest

from foresee import errors


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        (errors.OriginError, OSError),
        (errors.OriginMissing, FileNotFoundError),
        (errors.OriginDenied, PermissionError),
        (errors.OriginChanged, OSError),
        (errors.IndexInvalid, ValueError),
        (errors.CacheError, OSError),
        (errors.CatalogInvalid, ValueError),
        (errors.CatalogBusy, TimeoutError),
        (errors.JobFailed, RuntimeError),
        (errors.PageCacheKept, OSError),
        (errors.SlurmUnreachable, OSError),
        (errors.StallTimeout, TimeoutError),
        (errors.Closed, RuntimeError),
        (errors.SampleFault, RuntimeError),
        (errors.WorkerDied, RuntimeError),
        (errors.RankLost, RuntimeError),
        (errors.ServerLost, ConnectionError),
        (errors.StateMismatch, ValueError),
        (errors.ConfigError, ValueError),
        (errors.NotMeasured, LookupError),
        (errors.PackageMissing, ImportError),
    ],
)
def test_each_error_has_foresees_base_class_and_the_builtin_one_that_callers_expect(ours, builtin):
    assert issubclass(ours, errors.ForeseeError)
    assert issubclass(ours, builtin)


def test_the_package_exports_all_public_errors():
    import foresee

    names = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ForeseeError) and not name.startswith("_")
    ]
    assert set(names) <= set(foresee.__all__)


def test_a_config_error_shows_every_fault_and_lists_them_separately():
    error = errors.ConfigError(["a is wrong", "b is wrong"])
    assert error.faults == ["a is wrong", "b is wrong"]
    assert "a is wrong" in str(error)
    assert "b is wrong" in str(error)
    assert str(errors.ConfigError("only one")) == "only one"


def test_attributes_of_errors_survive_pickling():
    fault = errors.SampleFault(7, "s3://b/k", 3, "missing", "gone", "restore it", permanent=True)
    again = pickle.loads(pickle.dumps(fault))
    assert str(again) == "sample 7 (s3://b/k) on rank 3: gone; restore it"
    assert (again.sample, again.uri, again.rank, again.kind, again.permanent) == (
        7,
        "s3://b/k",
        3,
        "missing",
        True,
    )
    rank = pickle.loads(pickle.dumps(errors.RankLost("lost rank 3", 3)))
    assert (str(rank), rank.rank) == ("lost rank 3", 3)
    server = pickle.loads(pickle.dumps(errors.ServerLost("lost server 0", "10.0.0.1:7000")))
    assert (str(server), server.address) == ("lost server 0", "10.0.0.1:7000")
    assert pickle.loads(pickle.dumps(errors.ConfigError(["x", "y"]))).faults == ["x", "y"]


def test_an_unknown_value_survives_pickling():
    again = pickle.loads(pickle.dumps(errors.NotMeasured("the rate", "measure it")))
    assert (str(again), again.field, again.remedy) == (
        "the rate is not known; measure it",
        "the rate",
        "measure it",
    )
