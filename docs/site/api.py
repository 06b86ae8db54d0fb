"""The pages of the reference: which public name is on which page, by task; mkdocstrings writes what their docstrings say."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import fedtempo

MODULES = {
    "ft": "fedtempo",
    "ft.problems": "fedtempo.problems",
    "ft.published": "fedtempo.schemes.published",
    "ft.devices": "fedtempo.clock.devices",
    "ft.theory": "fedtempo.theory",
    "ft.track": "fedtempo.track",
    "ft.torch": "fedtempo.torch",
    "fedtempo.flower": "fedtempo.flower",
    "fedtempo.rules": "fedtempo.rules",
    "fedtempo.testing": "fedtempo.testing",
}
"""Public modules: how users write them, and where they are."""

PAGES: dict[str, tuple[str, str, str]] = {
    "schemes": (
        "Schemes",
        "What ends a round: the schemes by their names in the literature. [Notation](../notation.md#schemes) has each one's "
        "weights, delays and windows side by side, [How do I choose?](../choose.md) says when to take which.",
        "Scheme FedAvg AsyncFedAvg FedFix FedBuff StagedFedFix Centralized UniformSampling MultinomialSampling "
        "FastestSampling HighestLossSampling CuredSampling",
    ),
    "published": (
        "Published methods",
        "Other authors' methods as schemes; the [guide](../published.md) says how each works here.",
        "published.FedAsync published.FedBuff published.CutOff published.FedNova published.FedAU published.Mixing",
    ),
    "times": (
        "Client times",
        "How long each client's jobs take; the [guide](../times.md) has the same on the command line.",
        "ClientTimes FixedTimes ExponentialTimes LogNormalTimes UniformTimes ParetoTimes ShiftedExponentialTimes "
        "TraceTimes devices.named devices.CATALOGUE devices.Published",
    ),
    "timelines": (
        "Timelines",
        "Who contributes to which round, from which model version.",
        "timeline timeline_chunks write_timeline Timeline limit_cycle Cycle participation_of Participation",
    ),
    "weights": (
        "Weights",
        "With which weight an update enters the model.",
        "weights expected_weights Weights WeightRule TimeBased Identical ImportanceOnly Discounted ConstantDiscount "
        "PolynomialDiscount HingeDiscount CutOff Normalised ParticipationHistory",
    ),
    "plan": (
        "Plan",
        "Compare schemes from times alone, or let the planner find one for a problem: [read a plan](../plan.md), [the planner]"
        "(../planner.md).",
        "compare Plan recommend Recommendation",
    ),
    "problems": (
        "Problems",
        "Clients' rows, loss and importance, and how rows are dealt to clients; the [guide](../problems.md).",
        "Problem problems.digits problems.mnist problems.cifar10 problems.shakespeare problems.quadratics problems.Quadratics "
        "problems.classification_problem problems.from_parquet problems.logistic problems.Classifier problems.named "
        "problems.Partition problems.parse_partition IID Dirichlet LabelShards OneLabel NaturalKey",
    ),
    "torch": (
        "PyTorch",
        "Modules, losses and data sets as they are; the [guide](../pytorch.md).",
        "torch.problem torch.TorchProblem torch.LocalTorch",
    ),
    "training": (
        "Training",
        "What a client's job does, and what the server makes of it: [local solvers](../solvers.md), [corrections](../corrections.md), "
        "[server optimizers](../servers.md), [compression](../compression.md).",
        "LocalRule LocalSGD LocalOptax Correction FedProx FedDANE FedDyn Scaffold ServerOptimizer ServerOptax SlowMo FedAdam "
        "FedYogi FedAdaGrad MixModels CoordinateMedian TrimmedMean Krum NormClipping Compression QSGD TopK LowRank",
    ),
    "simulate": (
        "Simulate",
        "Train under every scheme, on the exact timeline of each; the [guide](../simulate.md).",
        "simulate History merge Model Progress RunInfo",
    ),
    "track": (
        "Follow a training",
        "What `on_measure=` takes; the [guide](../tracking.md).",
        "track.csv track.parquet track.tensorboard track.mlflow track.wandb",
    ),
    "theory": (
        "Theory",
        "Quantities, bounds, stability and forecasts; the [guide](../theory.md) explains each.",
        "theory.quantities theory.Quantities theory.expected_from_scheme theory.expected_from_timeline theory.Expected "
        "theory.rounds_in theory.remaining_times theory.bound theory.Bound theory.learning_rate_ceiling theory.Ceiling "
        "theory.assumptions theory.Assumption theory.constants theory.Constants theory.optimum theory.lemma_1 theory.Covariance "
        "theory.residuals theory.Residuals theory.regime theory.Regime theory.stability_limit theory.StabilityLimit "
        "theory.stationary_loss theory.Stationary theory.Coordinates theory.rate theory.forecast theory.Forecast theory.converges "
        "theory.Convergence theory.best_exponent theory.slowest_exponent theory.type_weights theory.TypeWeights "
        "theory.DataTypes theory.measure theory.Measured",
    ),
    "flower": (
        "Flower",
        "The same schemes over Flower's transport, and Flower apps in virtual time: [deploy](../deploy.md), "
        "[simulate an app](../flower-simulation.md).",
        "flower.FedFix flower.AsyncFedAvg flower.FedBuff flower.FedAvg flower.TimedStrategy flower.Result flower.RoundRecord "
        "flower.UpdateRecord flower.Fault flower.recorded flower.Record flower.replay flower.track_run flower.compressing "
        "flower.simulate_app flower.VirtualGrid flower.MeasuredTimes flower.Clock flower.WallClock flower.TransportCosts",
    ),
    "rules": (
        "A rule of your own",
        "All that a waiting rule is made of, and the check that it keeps the contract: [a whole one](../examples/own_rule.md).",
        "WaitingRule rules.State rules.resend rules.View rules.Job rules.Event rules.Tick rules.Arrived rules.Failed rules.Joined "
        "rules.Left rules.Deadline rules.Action rules.Close rules.Send rules.ClosedForm rules.Draws rules.RoundLaw "
        "rules.Everybody rules.EachByItself rules.OneAtATime rules.UniformSubset testing.check_rule testing.RuleReport",
    ),
    "errors": (
        "Errors",
        "What is raised, and exit codes on the command line.",
        "FedtempoError InputError DataMissing ResultsConflict WorkersLost ClockOverflow UnlawfulRule",
    ),
}
"""By page: its title, what it is about, and the names on it, as they come after `ft.`"""

COMMANDS = ("plan", "timeline", "times", "theory", "run", "app", "show", "watch", "reproduce", "data list", "data get")


def written(name: str) -> str:
    """A name as users write it: ft.FedFix, fedtempo.flower.FedFix."""
    first = name.split(".")[0]
    return f"fedtempo.{name}" if first in ("flower", "rules", "testing") else f"ft.{name}"


def place(name: str) -> str:
    """Where a name is found: fedtempo.schemes.published.FedAsync."""
    module, _, last = written(name).rpartition(".")
    return f"{MODULES[module]}.{last}"


def public_names() -> list[str]:
    """All public names that are not modules themselves, by their places."""
    modules = {written.rpartition(".")[2] for written in MODULES}
    return [f"{home}.{name}" for home in MODULES.values() for name in listed(home) if name not in modules | {"__version__"}]


def listed(home: str) -> list[str]:
    """The names that a module lists as public; of fedtempo.torch, which needs PyTorch, as its file has them."""
    if home != "fedtempo.torch":
        return list(importlib.import_module(home).__all__)
    tree = ast.parse((Path(fedtempo.__file__).parent / "torch.py").read_text(encoding="utf-8"))
    [names] = [node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return list(ast.literal_eval(names))


def names_on_pages() -> list[str]:
    """All names on the pages, by their places."""
    return [place(name) for _, _, names in PAGES.values() for name in names.split()]


def check() -> list[str]:
    """What is wrong: a public name on no page or on several, and a name on a page that is not public.

    A name that is public in two modules, as ft.IID and ft.problems.IID, is the same object, and on one page.
    """
    on, public = names_on_pages(), public_names()
    wrong = [f"{name}: it is {on.count(name)} times on the pages" for name in sorted(set(on)) if on.count(name) != 1]
    shown = {id(value) for value in map(value_of, on) if value is not None}
    wrong += [f"{name}: on no page of docs/site/api.py" for name in public if name not in on and id(value_of(name)) not in shown]
    return wrong + [f"{name}: on a page, but not public" for name in on if name not in public]


def value_of(place: str) -> object:
    """What is at a place; None where that cannot be imported here."""
    home, _, name = place.rpartition(".")
    return None if home == "fedtempo.torch" else getattr(importlib.import_module(home), name, None)


def write(pages: Path) -> list[dict[str, str]]:
    """All pages of the reference below `pages`; returns their menu."""
    folder = pages / "api"
    folder.mkdir(parents=True)
    table = ["# Reference", "", "Every public name, by task, with an example. `import fedtempo as ft` comes first everywhere.", ""]
    for page, (title, about, names) in PAGES.items():
        text = [f"# {title}", "", about, ""]
        table += [f"## [{title}]({page}.md)", "", "| name | |", "|---|---|"]
        for name in names.split():
            full = place(name)
            text += [f"::: {full}", "    options:", f"      heading: {written(name)}", f"      toc_label: {name}", ""]
            table.append(f"| [`{written(name)}`]({page}.md#{full}) | {_first_line(full)} |")
        table.append("")
        (folder / f"{page}.md").write_text("\n".join(text), encoding="utf-8")
    (folder / "index.md").write_text("\n".join(table), encoding="utf-8")
    (pages / "cli.md").write_text(commands(), encoding="utf-8")
    menu = [{title: f"api/{page}.md"} for page, (title, _, _) in PAGES.items()]
    return [{"Every public name": "api/index.md"}, {"The command line": "cli.md"}, *menu]


def _first_line(full: str) -> str:
    value = value_of(full)
    text = (inspect.getdoc(value) if inspect.isclass(value) or inspect.isroutine(value) else None) or ""
    first = text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    return first if len(first) < 160 else first[:157].rsplit(" ", 1)[0] + " …"


def commands() -> str:
    """What every command says of itself."""
    text = ["# The command line", "", "What `fedtempo COMMAND --help` prints. Each command ends with 0, or says in one line what", 
            "to change ([exit codes](plan.md#exit-codes)).", ""]
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "fedtempo", *command.split(), "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "110"},
        )
        help_text = done.stdout.replace("python -m fedtempo", "fedtempo").strip("\n")
        text += [f"## fedtempo {command}", "", "```text", *(line.rstrip() for line in help_text.splitlines()), "```", ""]
    return "\n".join(text)

