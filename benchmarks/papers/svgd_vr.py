"""Claims of N. Dam, T. Le, V. Huynh and D. Phung, "Stein variational gradient descent with variance
reduction"."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.papers import claims
from benchmarks.papers.claims import Beats, Below, Claim
from benchmarks.papers.readings import logistic, regression
from benchmarks.records import Record
from benchmarks.regression.report import PUBLISHED, PUBLISHED_RATIOS

#: Accuracies of the paper's Tables I and II, in per cent. Its covertype has 581,012 rows.
ACCURACIES = {
    ("test", "a9a"): {"SVGD": 84.62, "SVRG, point estimate": 82.84, "SVGD-VR, reset": 84.90},
    ("test", "w8a"): {"SVGD": 98.51, "SVRG, point estimate": 97.02, "SVGD-VR, reset": 98.78},
    ("test", "cod_rna"): {"SVGD": 94.55, "SVRG, point estimate": 92.57, "SVGD-VR, reset": 95.06},
    ("online", "a9a"): {"SVGD": 81.44, "SVRG, point estimate": 81.69, "SVGD-VR": 84.45},
    ("online", "w8a"): {"SVGD": 96.72, "SVRG, point estimate": 96.00, "SVGD-VR": 98.56},
    ("online", "cod_rna"): {"SVGD": 92.61, "SVRG, point estimate": 91.86, "SVGD-VR": 95.05},
}
#: Standard deviations of Tables I and II over 100 and 10 runs: SVGD, SVRG, SVGD-VR.
DEVIATIONS = {
    ("test", "a9a"): (0.08, 0.45, 0.07),
    ("test", "w8a"): (0.03, 0.12, 0.02),
    ("test", "cod_rna"): (0.39, 0.15, 0.14),
    ("test", "covtype_subset"): (0.15, 0.31, 0.03),
    ("online", "a9a"): (0.07, 0.69, 0.05),
    ("online", "w8a"): (0.02, 0.30, 0.02),
    ("online", "cod_rna"): (0.03, 0.12, 0.01),
    ("online", "covtype_subset"): (0.03, 0.15, 0.02),
}
#: Accuracies on the whole covertype; the study has a subset of its rows.
COVERTYPE = {"test": (75.53, 74.07, 75.66), "online": (71.70, 73.47, 75.53)}
#: Sets of the logistic study with the names of the paper.
LOGISTIC = {
    "a9a": "a9a",
    "w8a": "w8a",
    "cod_rna": "cod-rna",
    "covtype_subset": "covertype",
}
#: Sets of the regression study with the names of the paper; its energy has the heating load as a
#: feature of the cooling load.
REGRESSION = {
    "yacht": "yacht",
    "boston": "housing",
    "energy_leaked": "energy",
    "concrete": "concrete",
    "wine_red": "wine",
    "kin8nm": "kin8nm",
    "power_plant": "power",
    "naval": "naval",
    "protein": "protein",
}
#: RMSE and log likelihood on protein, whose response is on another scale than the standard one.
PROTEIN = {"SVGD": (2.054, -2.146), "SVGD-VR": (2.004, -2.121)}


def _logistic_command(name: str, protocol: str) -> str:
    return f"logistic --sets {name} --protocols {protocol} --seeds 3"


def _regression_command(name: str) -> str:
    return f"regression --sets {name} --splits 5"


def _published(protocol: str, name: str) -> str:
    if name == "covtype_subset":
        values = COVERTYPE[protocol]
    else:
        found = ACCURACIES[protocol, name]
        last = "SVGD-VR, reset" if protocol == "test" else "SVGD-VR"
        values = found["SVGD"], found["SVRG, point estimate"], found[last]
    errors = DEVIATIONS[protocol, name]
    plain, point, ours = (
        f"{value:.2f} ± {error:.2f}" for value, error in zip(values, errors, strict=True)
    )
    return f"{ours} % against {plain} (SVGD), {point} (SVRG)"


def _accuracies() -> list[Claim]:
    protocols = (("test", "Table I", "SVGD-VR, reset"), ("online", "Table II", "SVGD-VR"))
    found = []
    for protocol, table, method in protocols:
        why = (
            "One fold of ten and five step sizes of nine choose the step size."
            if protocol == "test"
            else "The first 3,000 rows, the paper all; the first tenth of these choose the step "
            "size. Anchors of `SVGDVR` and SVRG take the scores of all rows, those yet to be "
            "predicted among them; SVGD has seen none of these."
        )
        for name, theirs in LOGISTIC.items():
            own = why + (" A subset of the rows." if name == "covtype_subset" else "")
            rivals = ("SVGD", "SVRG, point estimate")
            test = Beats(
                logistic(name, protocol, method),
                tuple(logistic(name, protocol, rival) for rival in rivals),
                larger=True,
            )
            found.append(
                Claim(
                    f"{table}, {theirs}",
                    "test accuracy (%) above SVGD's and SVRG's"
                    if protocol == "test"
                    else "accuracy (%) of rows before they are learnt above SVGD's and SVRG's",
                    _published(protocol, name),
                    test,
                    _logistic_command(name, protocol),
                    own,
                )
            )
    return found


def _logistic_figures() -> list[Claim]:
    found = []
    for name, theirs in LOGISTIC.items():
        ratio = Beats(
            logistic(name, "test", "SVGD-VR, reset", "variance ratio", -1, "at the end"),
            (logistic(name, "test", "SVGD-VR, reset", "variance ratio", 1, "at the start"),),
            log=True,
        )
        published = "23.07 % at first, 0.25 % at the end" if name == "a9a" else "a curve"
        command = _logistic_command(name, "test")
        says = "standard deviation of the score over that of a minibatch's falls along a run"
        why = "Half a cycle after the first anchor, and at the end."
        found.append(Claim(f"Fig. 1, {theirs}", says, published, ratio, command, why))
    for name, theirs in LOGISTIC.items():
        early = Beats(
            logistic(name, "test", "SVGD-VR, reset", at=0),
            (logistic(name, "test", "SVGD", at=0),),
            larger=True,
        )
        says = "accuracy (%) ahead of SVGD's early in a run, at as many steps"
        why = "After a tenth of the steps."
        found.append(
            Claim(f"Fig. 2, {theirs}", says, "a curve", early, _logistic_command(name, "test"), why)
        )
    return found


def _ratios() -> list[Claim]:
    found = []
    for name, theirs in REGRESSION.items():
        if name not in PUBLISHED_RATIOS:
            continue
        least, median, largest = PUBLISHED_RATIOS[name]
        method, figure = "SVGD-VR", "variance ratio"
        test = Below(
            regression(name, method, figure, "largest", "largest ratio"),
            1.0,
            (regression(name, method, figure, "median", "median"),),
        )
        says = "standard deviation of the score below that of a minibatch's all along"
        published = (
            f"largest {largest / 100:.4f}, median {median / 100:.4f}, least {least / 100:.4f}"
        )
        why = "At eight checkpoints, where the anchor is oldest."
        command = _regression_command(name)
        found.append(Claim(f"Table III, {theirs}", says, published, test, command, why))
    return found


def _networks() -> list[Claim]:
    found = []
    for index, (table, figure, larger) in enumerate(
        (("Table IV", "RMSE", False), ("Table V", "log likelihood", True))
    ):
        for name, theirs in REGRESSION.items():
            published = PUBLISHED.get(name, PROTEIN)
            # On housing the paper finds SVGD better.
            ours, rival = ("SVGD", "SVGD-VR") if name == "boston" else ("SVGD-VR", "SVGD")
            test = Beats(
                regression(name, ours, figure),
                (regression(name, rival, figure),),
                larger=larger,
                tie=name == "boston",
            )
            words = {"SVGD": "SVGD", "SVGD-VR": "SVGDVR"}
            comparison = "lower than" if not larger else "above"
            says = f"test {figure} of `{words[ours]}` {comparison} `{words[rival]}`'s"
            if name == "boston":
                says = f"test {figure} of `SVGD` no worse than `SVGDVR`'s"
            figures = " against ".join(f"{published[each][index]:g}" for each in (ours, rival))
            why = {
                "energy_leaked": "The heating load is a feature, as in the paper's code.",
                "protein": "The paper's response is scaled otherwise.",
            }.get(name, "")
            command = _regression_command(name)
            found.append(
                Claim(f"{table}, {theirs}", says, f"{figures} ({rival})", test, command, why)
            )
        says = "test RMSE lower than SVGD's" if not larger else "test log likelihood above SVGD's"
        figures = "8.915 against 9.32 (SVGD)" if not larger else "-3.591 against -3.634 (SVGD)"
        why = "The set (515,345 rows) is not one of the study's."
        found.append(Claim(f"{table}, year", says, figures, why=why))
    return found


CLAIMS: list[Claim] = [*_accuracies(), *_logistic_figures(), *_ratios(), *_networks()]


def _controls() -> list[Claim]:
    """What the paper does not ask: whether the gain is there at as many gradients."""
    found = []
    for name, theirs in LOGISTIC.items():
        test = Beats(
            logistic(name, "test", "SVGD-VR, reset"),
            (logistic(name, "test", "SVGD, equal gradients"),),
            larger=True,
        )
        says = "test accuracy (%) above SVGD's"
        command = _logistic_command(name, "test")
        found.append(Claim(f"Table I, {theirs}", says, "", test, command))
    for name, theirs in REGRESSION.items():
        for table, figure, larger in (
            ("Table IV", "RMSE", False),
            ("Table V", "log likelihood", True),
        ):
            test = Beats(
                regression(name, "SVGD-VR", figure),
                (regression(name, "SVGD, equal gradients", figure),),
                larger=larger,
            )
            says = f"test {figure} better than SVGD's"
            command = _regression_command(name)
            found.append(Claim(f"{table}, {theirs}", says, "", test, command))
    return found


CONTROLS: list[Claim] = _controls()


def table(runs: Iterable[Record]) -> str:
    """The paper's tables and Figures 1 and 2."""
    return claims.table(CLAIMS, runs)


def controls(runs: Iterable[Record]) -> str:
    """The comparisons at as many gradients."""
    return claims.table(CONTROLS, runs)
