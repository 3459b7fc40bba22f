"""The Python blocks on the pages of the documentation run as they are written.

Blocks of one page and one package run one after another in one namespace. What a page takes for
granted, such as a model and its data, stands here. A block that cannot run alone has a comment
right before it on the page, `<!-- not run: needs ... -->`, and is left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.__main__ import COMMANDS
from tests import arviz_support, stan_support

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("howto/*.md")])
BLOCK = re.compile(r"(<!-- not run: needs [^>]+ -->\n+)?^```python\n(.*?)^```", re.S | re.M)
#: The page's blocks have tests of their own, which run them.
ELSEWHERE = {"own-engine": "tests/test_own_engine.py"}

WORDS = {"px": r"\b(px|pyro|torch)\b", "nx": r"\b(nx|numpyro|jax|jnp|optax)\b"}

IMPORTS = {
    "px": """
import pyro, torch
import pyro.distributions as dist
import pyro_ext as px
pyro.set_rng_seed(0)
""",
    "nx": """
import jax, jax.numpy as jnp, numpyro, optax
import numpyro.distributions as dist
import numpyro_ext as nx
from numpyro.infer import MCMC
key = jax.random.key(0)
""",
}

LOGISTIC = {
    "px": """
x = torch.randn(400, 3)
y = dist.Bernoulli(logits=x.sum(1)).sample()


def model(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", 400, subsample_size=min(len(x), 100)) as rows:
        pyro.sample("y", dist.Bernoulli(logits=x[rows] @ w), obs=y[rows])
""",
    "nx": """
x = jax.random.normal(key, (400, 3))
y = dist.Bernoulli(logits=x.sum(1)).sample(key)


def model(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", 400, subsample_size=min(len(x), 100)) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ w), obs=y[rows])
""",
}

#: The same on all rows.
WHOLE = {
    package: text.replace(", subsample_size=min(len(x), 100)) as rows", ")").replace("[rows]", "")
    for package, text in LOGISTIC.items()
}

#: The same of any rows, observed or not.
NEW_ROWS = {
    package: text.replace("(x, y)", "(x, y=None)").replace("400)", "len(x))") + "x_new = x[:10]\n"
    for package, text in WHOLE.items()
}

NETWORK = {
    "px": """
from pyro.nn import PyroModule, PyroSample
x = torch.randn(64, 2)
y = x.sin().sum(1)


class Network(PyroModule):
    def __init__(self):
        super().__init__()
        self.body = PyroModule[torch.nn.Sequential](
            PyroModule[torch.nn.Linear](2, 4), PyroModule[torch.nn.Tanh](),
            PyroModule[torch.nn.Linear](4, 1),
        )
        for layer in (self.body[0], self.body[2]):
            for name, value in list(layer.named_parameters()):
                prior = dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())
                setattr(layer, name, PyroSample(prior))

    def forward(self, x, y=None):
        mean = self.body(x).squeeze(-1)
        with pyro.plate("rows", len(x)):
            return pyro.sample("y", dist.Normal(mean, 0.3), obs=y)


model = Network()
""",
    "nx": """
from flax import nnx
from numpyro.contrib.module import random_nnx_module
x = jax.random.normal(key, (64, 2))
y = jnp.sin(x).sum(1)
body = nnx.Sequential(
    nnx.Linear(2, 4, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(4, 1, rngs=nnx.Rngs(1))
)


def model(x, y=None):
    mean = random_nnx_module("net", body, dist.Normal(0.0, 1.0))(x).squeeze(-1)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(mean, 0.3), obs=y)
""",
}

STAN = """
y = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
sigma = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]
"""

#: What stands before the block of that number: a page and a package for each that has blocks.
GRANTED: dict[tuple[str, str], dict[int, str]] = {
    ("index", "px"): {0: NEW_ROWS["px"]},
    ("index", "nx"): {0: NEW_ROWS["nx"]},
    ("howto/index", "px"): {},
    ("howto/index", "nx"): {},
    ("howto/stop-and-resume", "px"): {0: WHOLE["px"]},
    ("howto/stop-and-resume", "nx"): {0: WHOLE["nx"]},
    ("howto/log-a-run", "px"): {0: WHOLE["px"]},
    ("howto/log-a-run", "nx"): {0: WHOLE["nx"]},
    ("howto/own-curvature", "px"): {},
    ("howto/own-curvature", "nx"): {},
    ("howto/batches-from-loaders", "px"): {0: LOGISTIC["px"]},
    ("howto/batches-from-loaders", "nx"): {0: LOGISTIC["nx"]},
    ("howto/several-devices", "nx"): {0: LOGISTIC["nx"]},
    ("howto/scikit-learn", "px"): {},
    ("howto/scikit-learn", "nx"): {},
    ("howto/warm-start-nuts", "px"): {0: WHOLE["px"]},
    ("howto/warm-start-nuts", "nx"): {0: WHOLE["nx"]},
    ("examples-uncertainty", "nx"): {},
    ("implicit", "px"): {0: WHOLE["px"]},
    ("implicit", "nx"): {0: WHOLE["nx"]},
    ("starts", "px"): {0: LOGISTIC["px"]},
    ("starts", "nx"): {0: LOGISTIC["nx"]},
    ("getting-started", "px"): {
        0: LOGISTIC["px"],
        1: """
optim, path = pyro.optim.Adam({"lr": 0.05}), "state.pt"
engine = px.SVGD(model, optim)
engine.run(9_800, x, y, checkpoint=path, progress_bar=False)
""",
    },
    ("getting-started", "nx"): {
        0: LOGISTIC["nx"]
        + """
optim, path = numpyro.optim.Adam(0.05), "state.npz"
engine = nx.SVGD(model, optim)
engine.run(key, 9_800, x, y, checkpoint=path, progress_bar=False)
"""
    },
    ("batches", "px"): {
        0: """
from pyro.optim import Adam
x = torch.randn(4096, 20)
y = dist.Bernoulli(logits=x[:, 0]).sample()
"""
    },
    ("devices", "nx"): {0: LOGISTIC["nx"]},
    ("guides", "px"): {},
    ("guides", "nx"): {},
    ("newton", "px"): {0: NETWORK["px"]},
    ("newton", "nx"): {
        0: NETWORK["nx"],
        1: LOGISTIC["nx"],
        2: NETWORK["nx"],
    },
    ("score-vi", "px"): {
        0: LOGISTIC["px"] + "guide = pyro.infer.autoguide.AutoMultivariateNormal(model)"
    },
    ("sgmcmc", "px"): {0: LOGISTIC["px"]},
    ("sgmcmc", "nx"): {
        0: LOGISTIC["nx"],
        2: """
def model(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", 400, subsample_size=len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
""",
    },
    ("discrete", "px"): {},
    ("discrete", "nx"): {},
    ("warm-chains", "px"): {0: WHOLE["px"]},
    ("warm-chains", "nx"): {0: WHOLE["nx"]},
    ("stan", "px"): {0: STAN},
    ("stan", "nx"): {0: STAN},
    ("networks", "px"): {},
    ("networks", "nx"): {},
    ("uncertainty", "px"): {},
    ("uncertainty", "nx"): {
        0: """
x = jax.random.normal(key, (300, 2))
y = dist.Bernoulli(logits=2.0 * x[:, 0] - x[:, 1]).sample(key)


def classifier(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
"""
    },
}

#: What the blocks leave behind has to hold.
LEFT: dict[tuple[str, str], str] = {
    ("howto/index", "px"): "px.find_start(model, x, y).evaluations > 0",
    ("howto/index", "nx"): "nx.find_start(key, model, x, y).evaluations > 0",
    ("howto/stop-and-resume", "px"): "engine.num_steps_taken == 500",
    ("howto/stop-and-resume", "nx"): "int(result.state.step) == 500",
    ("howto/log-a-run", "px"): "history[-1].keys() == {'step', 'loss', 'force_norm'}",
    ("howto/log-a-run", "nx"): "history[-1].keys() == {'step', 'loss', 'force_norm'}",
    ("howto/own-curvature", "px"): "verdict.trusted and px.curvature.fisher.root_for(Rayleigh)",
    ("howto/own-curvature", "nx"): "verdict.trusted and nx.curvature.fisher.root_for(Rayleigh)",
    ("howto/batches-from-loaders", "px"): "idata.log_likelihood['y'].shape == (1, 16, 400)",
    ("howto/batches-from-loaders", "nx"): "idata.log_likelihood['y'].shape == (1, 16, 400)",
    ("howto/several-devices", "nx"): "draws['w'].shape == (8 * devices, 3)",
    # Of 200 rows the best rule gets about 75 %: one slope of 2.
    ("howto/scikit-learn", "px"): "0.65 < scores.mean() < 0.9",
    ("howto/scikit-learn", "nx"): "0.65 < scores.mean() < 0.9",
    ("howto/warm-start-nuts", "px"): "draws['w'].shape == (800, 3)",
    ("howto/warm-start-nuts", "nx"): "draws['w'].shape == (2000, 3)",
    ("index", "px"): "fit.verdict.trusted and fit['w'].shape[-1] == 3",
    ("index", "nx"): "fit.verdict.trusted and fit['w'].shape[-1] == 3",
    ("starts", "px"): "abs(vi.start.mean - engine.particles.numpy().mean(0)).max() < 0.1",
    ("starts", "nx"): "engine.start is start and vi.start.factor.shape == (3, 3)",
    ("getting-started", "px"): "engine.num_steps_taken == 10_000",
    ("warm-chains", "px"): "draws['w'].shape == (800, 3)",
    ("warm-chains", "nx"): "draws['w'].shape == (2000, 3)",
    ("guides", "px"): "khat.num_samples == 200 and len(losses) == 100",
    ("guides", "nx"): "khat.num_samples == 200 and len(result.losses) == 100",
    ("batches", "px"): "engine.num_steps_taken == 100",
    ("devices", "nx"): "predicted.sizes['draw'] == 8 * devices",
    ("newton", "px"): "all(len(values) == 500 for values in draws.values())",
    ("newton", "nx"): "all(len(values) == 500 for values in draws.values())",
    ("sgmcmc", "px"): "data.posterior['w'].shape == (4, 5000, 3) and rates.shape == (4, 2)",
    ("sgmcmc", "nx"): "data.posterior['w'].shape == (4, 5000, 3) and rates.shape == (4, 2)",
    ("stan", "px"): "draws['theta'].shape == (100, 8)",
    ("stan", "nx"): "draws['theta'].shape == (100, 8)",
    ("networks", "px"): "predictive.sizes['draw'] == 100",
    ("networks", "nx"): "predictive.sizes['draw'] == 100",
    ("uncertainty", "px"): "predictive.sizes['draw'] == 50",
    ("uncertainty", "nx"): "predictive.sizes['draw'] == 50",
}


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Package and text of a page's blocks that are to run."""
    for not_run, text in BLOCK.findall((DOCS / f"{page}.md").read_text(encoding="utf-8")):
        if not not_run:
            found = [package for package, words in WORDS.items() if re.search(words, text)]
            assert len(found) == 1, f"{page}: a block is of {found or 'no package'}:\n{text}"
            yield found[0], text


def test_every_page_with_blocks_is_known() -> None:
    found = {
        (page, package)
        for page in (str(path.relative_to(DOCS).with_suffix("")) for path in PAGES)
        if page not in ELSEWHERE
        for package, _ in blocks(page)
    }
    assert found == set(GRANTED)
    assert all(f"{page}.md" in Path(test).read_text() for page, test in ELSEWHERE.items())


@pytest.mark.parametrize("package", ["pyro", "numpyro"])
def test_names_on_the_pages_are_there(package: str) -> None:
    module = pytest.importorskip(f"{package}_ext")
    named = re.compile(rf"\b{'px' if package == 'pyro' else 'nx'}\.([A-Za-z]\w*)")
    for page in [*PAGES, *DOCS.glob("tutorials/*.md"), DOCS.parent / "README.md"]:
        for name in set(named.findall(page.read_text(encoding="utf-8"))):
            assert hasattr(module, name), f"{page.name}: {package}_ext has no {name}"


def test_links_between_pages_lead_to_files() -> None:
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\((?!\w+:)([^)#\s]+\.md)\b", page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file(), f"{page.name}: no page {target}"


@pytest.mark.docs
@pytest.mark.parametrize(("page", "package"), GRANTED, ids=lambda word: word)
def test_blocks_run_one_after_another(
    page: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page == "stan":
        if stan_support.REASON is not None:
            pytest.skip(stan_support.REASON)
        (tmp_path / "eight_schools.stan").write_text(stan_support.EIGHT_SCHOOLS.read_text())
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page}
    exec(IMPORTS[package], names)
    granted = GRANTED[page, package]
    own = [text for of_package, text in blocks(page) if of_package == package]
    for number, text in enumerate(own):
        exec(granted.get(number, ""), names)
        exec(compile(text, f"{page}.md", "exec"), names)
    assert eval(LEFT.get((page, package), "True"), names)


def test_the_gallery_has_every_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    pictures = importlib.import_module("gallery").PICTURES
    names = [picture.name for picture in pictures]
    assert sorted(names) == sorted(path.stem for path in DOCS.glob("images/*.png"))
    for picture in pictures:
        left, top, right, bottom = picture.panel
        assert 0.0 <= left < right <= 1.0 and 0.0 <= top < bottom <= 1.0
        script = (DOCS.parent / picture.script).read_text(encoding="utf-8")
        assert re.search(r"\b(save|savefig|curves)\(", script), picture.script
        page = (DOCS / f"{picture.page}.md").read_text(encoding="utf-8")
        assert f"images/{picture.name}.png" in page
        module, *rest = picture.command.split()
        if module == "benchmarks":
            assert rest[0] in COMMANDS, picture.command
        else:
            assert importlib.util.find_spec(module) is not None, picture.command


@pytest.mark.parametrize("reason", [None, "no g++ to compile Stan programs with"])
def test_stan_pages_are_run_where_stan_is_there_and_say_so_elsewhere(
    reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    own = importlib.import_module("stan_programs")
    monkeypatch.setattr(own, "missing", lambda: reason)
    config = SimpleNamespace(nb_execution_excludepatterns=("other.md",))
    own.leave_out(None, config)
    left_out = set(config.nb_execution_excludepatterns) - {"other.md"}
    assert left_out == (set() if reason is None else set(own.PAGES))
    assert bool(own.StanNote.run(None)) == (reason is not None)
    for page in own.PAGES:
        assert "```{stan-note}" in (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("Max retries exceeded with url: / (Caused by NameResolutionError(...))", "ignored"),
        ("404 Client Error: Not Found for url: https://example.org/gone", "broken"),
        ("Max retries exceeded (Caused by SSLError(certificate has expired))", "broken"),
        ("Anchor 'gone' not found", "broken"),
    ],
)
def test_the_link_check_tells_a_host_not_reached_from_a_page_that_is_gone(
    message: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    linkcheck = importlib.import_module("sphinx.builders.linkcheck")
    own = importlib.import_module("reachable_links")
    noted: list[Any] = []
    monkeypatch.setattr(
        linkcheck.CheckExternalLinksBuilder,
        "process_result",
        lambda _, result: noted.append(result),
    )
    broken = linkcheck._Status("broken")
    own.LinkCheck.process_result(
        object.__new__(own.LinkCheck),
        linkcheck.CheckResult("https://example.org", "page", 1, broken, message, 0),
    )
    (result,) = noted
    assert result.status == status
    # A link that is ignored says why, and one that is broken says what its host said.
    assert (
        "NameResolutionError" in result.message
        if status == "ignored"
        else message == result.message
    )


TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.S | re.M)
#: Entries of the sidebar that a reader has before the eyes at most.
MOST_ENTRIES = 20


def below(page: str) -> list[str]:
    """The pages below one, as its menus name them; what is no page of the folder has none."""
    path = DOCS / f"{page}.md"
    if not path.exists():
        return []
    lines = [line for menu in TOCTREE.findall(path.read_text("utf-8")) for line in menu.split("\n")]
    names = [line.strip() for line in lines if line.strip() and not line.startswith(":")]
    places = [name.partition("<")[2].rstrip(">") or name for name in names]
    inside = (path.parent / place for place in places)
    return [Path(os.path.normpath(each)).relative_to(DOCS).as_posix() for each in inside]


def test_a_sidebar_has_few_entries() -> None:
    """As `pages.css` shows them: of a part inside of a room that part alone."""
    rooms = below("index")
    assert len(rooms) <= MOST_ENTRIES // 2 + 2
    for room in rooms:
        parts = below(room)
        assert len(rooms) + len(parts) <= MOST_ENTRIES, room
        for part in parts:
            assert len(rooms) + 1 + len(below(part)) <= MOST_ENTRIES, part
            assert not any(map(below, below(part))), part


def test_every_page_is_in_a_menu_once() -> None:
    def every(page: str) -> Iterator[str]:
        yield page
        for each in below(page):
            yield from every(each)

    found = [*every("index"), "glossary"]  # which is in the reference's menu
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES}
    assert pages <= set(found) and len(found) == len(set(found))


pytestmark = [
    pytest.mark.library_start,
    *(pytest.mark.filterwarnings(rule) for rule in arviz_support.IGNORED),
]
