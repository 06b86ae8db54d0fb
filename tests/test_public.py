"""The public names: pinned, documented, readable twice, and the package starts without its heavy parts."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import fedtempo as ft
import fedtempo.flower
import fedtempo.rules
import fedtempo.testing

ROOT = Path(__file__).parents[1]

NAMES = """
AsyncFedAvg Centralized ClientTimes ClockOverflow Compression ConstantDiscount CoordinateMedian Correction CuredSampling
CutOff Cycle DataMissing Dirichlet Discounted ExponentialTimes FastestSampling FedAdaGrad FedAdam FedAvg FedBuff FedDANE
FedDyn FedFix FedProx FedYogi FedtempoError FixedTimes HighestLossSampling HingeDiscount History IID Identical
ImportanceOnly InputError Krum LabelShards LocalOptax LocalRule LocalSGD LogNormalTimes LowRank MixModels Model
MultinomialSampling NaturalKey NormClipping Normalised OneLabel ParetoTimes Participation ParticipationHistory Plan
PolynomialDiscount Problem Progress QSGD Recommendation ResultsConflict RunInfo Scaffold Scheme ServerOptax
ServerOptimizer ShiftedExponentialTimes SlowMo StagedFedFix TimeBased Timeline TopK TraceTimes TrimmedMean
UniformSampling UniformTimes UnlawfulRule WaitingRule WebPage WeightRule Weights WorkersLost compare expected_weights
limit_cycle merge participation_of recommend simulate timeline timeline_chunks weights write_timeline
"""

THEORY = """
Assumption Bound Ceiling Constants Convergence Coordinates Covariance DataTypes Expected Forecast Measured
Quantities Regime Residuals StabilityLimit Stationary TypeWeights assumptions best_exponent bound constants converges
expected_from_scheme expected_from_timeline forecast learning_rate_ceiling lemma_1 measure optimum quantities
rate regime remaining_times residuals rounds_in slowest_exponent stability_limit stationary_loss type_weights
"""


def test_the_public_names_are_these() -> None:
    modules = ["devices", "problems", "published", "theory", "track"]
    assert sorted(ft.__all__) == sorted(["__version__", *modules, *NAMES.split()])
    assert dir(ft) == sorted([*ft.__all__, "torch"])


def test_without_pytorch_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import fedtempo as ft\n"
        "try:\n    ft.torch.problem\n"
        "except ft.DataMissing as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip().endswith("pip install 'fedtempo[torch]'"), done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_the_names_of_the_theory_are_these() -> None:
    assert sorted(ft.theory.__all__) == dir(ft.theory) == sorted(THEORY.split())
    assert not hasattr(ft.theory, "theorem_nothing")


def test_every_name_can_be_read_twice() -> None:
    code = (
        "import importlib, fedtempo\n"
        "first = {n: getattr(fedtempo, n) for n in fedtempo.__all__}\n"
        "assert all(getattr(fedtempo, n) is first[n] for n in fedtempo.__all__)\n"
        "assert [n for n, v in first.items() if inspect.ismodule(v)] == ['devices', 'problems', 'published', 'theory', "
        "'track']"
    )
    subprocess.run([sys.executable, "-c", "import inspect\n" + code], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(ft, "FedNothing")


def test_everything_public_is_documented() -> None:
    missing = []
    others = (ft.theory, ft.problems, ft.published, ft.devices, fedtempo.flower, fedtempo.rules, fedtempo.testing)
    for home, name in [*((ft, name) for name in NAMES.split()), *((m, name) for m in others for name in m.__all__)]:
        thing = getattr(home, name)
        if not inspect.getdoc(thing):
            missing.append(name)
        if inspect.isclass(thing):
            for member, value in inspect.getmembers(thing):
                plain = inspect.isfunction(value) or isinstance(value, property)
                if plain and not member.startswith("_") and not inspect.getdoc(getattr(thing, member)):
                    missing.append(f"{name}.{member}")
    assert missing == []


def test_no_module_bears_the_name_of_an_exported_function() -> None:
    modules = {path.stem for path in (ROOT / "src" / "fedtempo").glob("*.py")}
    modules |= {path.name for path in (ROOT / "src" / "fedtempo").iterdir() if path.is_dir()}
    assert not modules & {name for name in NAMES.split() if inspect.isfunction(getattr(ft, name))}
    assert not {path.stem for path in (ROOT / "src" / "fedtempo" / "theory").glob("*.py")} & set(THEORY.split())


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, fedtempo; print([m for m in ('numpy', 'typer', 'rich', 'jax', 'xarray') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_it_runs_from_the_source_folder_alone() -> None:
    code = "import runpy, sys; sys.argv = ['fedtempo', '--version']; runpy.run_module('fedtempo', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True
    )
    assert done.stdout == f"fedtempo {ft.__version__}\n"


def test_the_changelog_knows_the_version() -> None:
    assert f"## {ft.__version__}" in (ROOT / "CHANGELOG.md").read_text()
