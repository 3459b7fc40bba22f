"""How efficient many accelerators would be, from what a step moves and how fast links are.

Nothing here is measured but the numbers that a step's collectives move, which the records of
`measure` hold as multiples of P D. The rest is stated: the rates below, and the sizes of a network.
Nothing overlaps: a step takes its arithmetic and then its exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.records import Record

#: Stated: operations a second that a network's training reaches on an accelerator (an H100's
#: 989e12 in bfloat16 at 40 %), and bytes a second of one device: over NVLink to the other devices
#: of a machine, and over InfiniBand (400 Gb/s a device) between machines.
RATE, NVLINK, INFINIBAND, MACHINE = 0.4 * 989e12, 450e9, 50e9, 8
#: ViT-B/16 at 224 pixels: weights and tokens; a training step costs 6 operations a weight, token
#: and image. Numbers travel in single precision.
WEIGHTS, TOKENS, BYTES, PARTICLES = 86_000_000, 197, 4, 64
#: Images of a minibatch, which all particles share.
BATCHES = (256, 1024)
DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024)


def predictions(found: Sequence[Record]) -> list[Record]:
    """Records "predicted" for each layout of particles whose exchange has been measured."""
    results = []
    for name, moved in sorted(_multiples(found).items()):
        for batch in BATCHES:
            figures = {
                str(devices): _efficiency(moved, name[1], devices, batch) for devices in DEVICES
            }
            settings: dict[str, Any] = {
                "engine": name[0],
                "exchange": name[1],
                "network": "ViT-B/16",
                "weights": WEIGHTS,
                "particles": f"{PARTICLES}, or one a device where there are more devices",
                "images of a batch": batch,
                "operations a second": RATE,
                "bytes a second in a machine": NVLINK,
                "bytes a second between machines": INFINIBAND,
                "devices of a machine": MACHINE,
            }
            record = Record("scaling", "predicted", "numpyro", "vit-b", settings=settings)
            record.figures = {"efficiency": figures, "sent over P D": moved}
            results.append(record)
    return results


def _multiples(found: Sequence[Record]) -> dict[tuple[str, str], float]:
    """Bytes that a device sends, over those of P D numbers times (n - 1) / n, by engine.

    Of an exchange all to all, which falls as 1 / n, the multiple is of P D / n.
    """
    best: dict[tuple[str, str], tuple[int, float]] = {}
    for each in found:
        settings, n = each.settings, each.settings.get("devices", 0)
        if each.method != "measured" or each.failed or n < 2 or "rows" in settings["layout"]:
            continue
        if each.backend != "numpyro" or settings["engine"] not in ("SVGD", "DeepEnsemble"):
            continue
        exchange = settings["exchange"]
        whole = settings["particles"] * settings["dim"] * settings["bytes of a number"]
        moved = each.figures["bytes sent by a device"] / (whole * (n - 1) / n)
        if exchange == "all-to-all":
            moved *= n
        name = (settings["engine"], exchange)
        if n > best.get(name, (0, 0.0))[0]:
            best[name] = (n, moved)
    return {name: moved for name, (_, moved) in best.items()}


def _efficiency(moved: float, exchange: str, devices: int, batch: int) -> float:
    """Share of a step that is arithmetic on the particles of a device."""
    particles = max(PARTICLES, devices)
    work = 6 * WEIGHTS * TOKENS * batch * particles / devices / RATE
    link = NVLINK if devices <= MACHINE else INFINIBAND
    sent = moved * particles * WEIGHTS * BYTES * (devices - 1) / devices
    if exchange == "all-to-all":
        sent /= devices
    return work / (work + sent / link)
